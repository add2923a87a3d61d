"""What strangers' files may try on the commands as a whole. Faults of single files are tested beside their readers.

Lengths, offsets, shapes, dtypes: tests/checkpoint/test_headers.py. Strict JSON: test_files.py. Paths that leave the
folder: test_index.py, test_container.py, test_odd_files.py. Receipts: test_container.py, test_planes.py. Streams:
tests/codec/test_reference.py. Anything else that nobody thought of: tests/fuzz.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csf_tool.checkpoint.numbered import MAX_NUMBERED_SHARDS
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from tests.building import (
    MXFP4,
    Tensor,
    change_json,
    home_made,
    mini_container,
    mini_dense,
    mini_hf,
    raw_file,
    sha256,
    shard_bytes,
    write_json,
    write_shard,
)

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"
RECEIPT = f"receipts/{FIRST}.json"

posix = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and names of POSIX")


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and everything that was printed by a command."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "internal error" not in result.output, result.output
    return result.exit_code, result.output


def run_json(*arguments: str | Path) -> tuple[int, Any, str]:
    """Exit code, the JSON document on stdout, and its text."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout), result.stdout


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


# Names on the terminal


@pytest.mark.parametrize("name", ["[/]", "[bold red]x[/]", "[link=x]y[/link]", ":fire:", "[0]"])
@pytest.mark.parametrize("by", ["layer", "shard", "projection"])
def test_a_name_is_no_markup(tmp_path: Path, name: str, by: str) -> None:
    shard = f"{name.replace('/', '|')}.safetensors"
    dense = mini_dense(tmp_path / "d", shards=1)
    tensors = [
        Tensor(f"{name}.0.{name}.weight", "U8", (16, 32), bytes(512)),
        Tensor(f"{name}.0.{name}.weight_scale", "F8_E4M3", (16, 4), bytes(64)),
    ]
    write_shard(dense / shard, tensors)
    (dense / INDEX).unlink()
    code, output = run("stats", dense, "--by", by)
    assert code == 0
    assert {"layer": f"{name}.0", "shard": shard, "projection": f"{name} 16x4"}[by] in output


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_no_control_character_in_json_either(tmp_path: Path, command: str) -> None:
    every = "".join(map(chr, [*range(32), *range(0x7F, 0xA0), 0x202E, 0x2066, 0xFEFF]))
    write_shard(tmp_path / "model.safetensors", [Tensor(f"{every}.nvfp4_csf_fixed", "U8", (1,), b"x")])
    code, found, text = run_json(command, tmp_path)
    assert code == 1
    assert set(text) & set(every) == {"\n"}
    problems = found["problems"] if command == "stats" else found["checks"][0]["failures"]
    assert problems[0]["tensor"] == every


def test_letters_that_the_terminal_does_not_have(tmp_path: Path) -> None:
    dense = mini_dense(tmp_path, shards=1)
    (dense / INDEX).unlink()
    (dense / "model-00001-of-00001.safetensors").rename(dense / "日本.safetensors")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "csf_tool", "stats", str(dense), "--by", "shard"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u65e5\\u672c.safetensors" in done.stdout


# Names that lead nowhere, or to what is no file


@pytest.mark.parametrize("name", ["n" * 300, "a/" * 3000 + "b", f"{INDEX}/x"])
def test_names_that_no_system_takes(tmp_path: Path, name: str) -> None:
    root = mini_container(tmp_path / "c")
    (root / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n")
    change_json(root / "manifest.json", lambda m: m["metadata_sha256"].update({name: "0" * 64}))
    code, output = run("verify", root)
    assert code == 1
    assert "is missing, but its hash is known (metadata_sha256)" in output


@pytest.mark.parametrize("folder", ["n" * 300, f"{FIRST}"])
def test_an_index_into_a_folder_that_cannot_be(tmp_path: Path, folder: str) -> None:
    root = mini_hf(tmp_path / "c")
    change_json(root / INDEX, lambda d: d["weight_map"].update({"x": f"{folder}/x.safetensors"}))
    for command in ("stats", "verify"):
        code, output = run(command, root)
        assert (code, "is not a file" in output) == (1, True)


@posix
def test_a_file_name_with_next_to_no_room_left(tmp_path: Path) -> None:
    """What `hf download` notes of it would have a name that is too long."""
    root = mini_hf(tmp_path / "c")
    (root / ("n" * 250)).write_text("x")
    assert run("verify", root)[0] == 0
    assert run("expand", root, tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / ("n" * 250)).read_text() == "x"


@posix
@pytest.mark.parametrize("root", ["n" * 300, "loop", "/" + "a/" * 3000])
def test_a_serving_directory_that_leads_nowhere(tmp_path: Path, root: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    config = {"quantization_config": {"quant_method": "nvfp4_csf", "checkpoint_root": root}}
    write_json(tmp_path / "config.json", config)
    code, output = run("stats", tmp_path)
    assert (code, "is a serving directory, not a checkpoint" in output) == (2, True)


@pytest.mark.slow
@posix
@pytest.mark.parametrize("what", ["pipe", "device"])
@pytest.mark.parametrize(
    "file",
    [
        *(f"hf/{INDEX}", "hf/config.json", "hf/notes.txt", "hf/SHA256SUMS", "container/manifest.json"),
        *(f"container/{RECEIPT}", "container/build-contract.json", "container/verification.json"),
        f"container/metadata/{INDEX}",
    ],
)
def test_nothing_waits_for_a_pipe_or_reads_a_device_without_end(tmp_path: Path, file: str, what: str) -> None:
    mini_hf(tmp_path / "hf")
    mini_container(tmp_path / "container")
    path = tmp_path / file
    path.unlink(missing_ok=True)
    os.mkfifo(path) if what == "pipe" else path.symlink_to("/dev/zero")
    root = tmp_path / file.partition("/")[0]
    commands: list[list[str | Path]] = [["stats"], ["verify"], ["expand", tmp_path / "out"], ["identity", "--hash"]]
    for name, *destination in commands:
        assert run(name, root, *destination)[0] in (0, 1)


@posix
def test_a_file_beside_the_shards_that_is_a_link_to_a_missing_blob(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "c")
    (root / "tokenizer.json").symlink_to("../blobs/gone")
    code, output = run("expand", root, tmp_path / "out")
    assert (code, "tokenizer.json: is missing, or is a link to a missing file" in output) == (1, True)


@posix
def test_a_link_in_the_source_becomes_a_file_in_the_destination(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("x")
    root = mini_hf(tmp_path / "c")
    (root / "tokenizer.json").symlink_to("../blob")
    assert run("expand", root, tmp_path / "out")[0] == 0
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are no UTF-8")
@pytest.mark.parametrize("options", [[], ["--consume-source", "--yes"]])
def test_file_names_that_are_no_utf_8(tmp_path: Path, options: list[str]) -> None:
    """Of the source, of a file in it and of the destination; and the same command again finds them all."""
    root, out = tmp_path / os.fsdecode(b"c\xe9"), tmp_path / os.fsdecode(b"o\xe9")
    mini_hf(root)
    (root / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    again = tmp_path / "again"
    for _ in range(2):
        assert run("expand", root, out, *options, "--json")[0] == 0
    for _ in range(2):
        assert run("compress", out, again, "--keep-larger", "--to", "hf", *options, "--json")[0] == 0
    assert (again / os.fsdecode(b"caf\xe9.txt")).read_text() == "x"


@pytest.mark.skipif(sys.platform != "linux", reason="file names that are no UTF-8")
def test_a_shard_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    """Alone it is expanded; an index cannot hold its name, and the message says what to do."""
    root, name = mini_hf(tmp_path / "c"), os.fsdecode(b"mod\xe9le.safetensors")
    first, second = sorted(path.name for path in root.glob("*.safetensors"))
    assert run("expand", root / first, tmp_path / "plain")[0] == 0
    (root / first).rename(root / name)
    assert run("expand", root / name, tmp_path / "out")[0] == 0
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "plain" / first).read_bytes()
    (root / second).rename(root / "other.safetensors")
    (root / INDEX).unlink()
    code, output = run("expand", root, tmp_path / "other")
    assert (code, 'mod\\udce9le.safetensors": rename the file' in output) == (1, True)
    assert "not UTF-8" in output
    assert not (tmp_path / "other").exists()


# Names that csf-tool keeps for itself in a destination


@pytest.mark.parametrize(
    "name",
    [".csf-tool", ".csf-tool.closing", ".CSF-Tool", f".x.gone-1-{'0' * 8}.partial", f"a/.x.y-1-{'0' * 8}.partial"],
)
def test_a_file_of_the_source_does_not_pass_for_the_journal(tmp_path: Path, name: str) -> None:
    root = mini_hf(tmp_path / "c")
    expected = [path for path in files(root) if path != name]
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("{}")
    assert run("expand", root, tmp_path / "out")[0] == 0
    assert files(tmp_path / "out") == expected


@pytest.mark.parametrize(
    "name", [".csf-tool/lock", ".csf-tool/complete", ".csf-tool/journal.json", ".csf-tool.closing"]
)
def test_a_shard_does_not_pass_for_the_journal(tmp_path: Path, name: str) -> None:
    root = mini_hf(tmp_path / "c")
    write_shard(root / name, [Tensor("x", "U8", (1,), b"x")])
    change_json(root / INDEX, lambda d: d["weight_map"].update({"x": name}))
    code, output = run("expand", root, tmp_path / "out", "--jobs", "1")
    assert (code, f"{name}: csf-tool needs this name for its own files" in output) == (1, True)


# More work than there are bytes


def test_names_of_many_sets_do_not_add_up_to_millions_of_shards(tmp_path: Path) -> None:
    for i in range(200):
        (tmp_path / f"s{i}-00001-of-10000.safetensors").write_bytes(shard_bytes([]))
    checkpoint = open_checkpoint(tmp_path)
    assert len(checkpoint.problems) <= MAX_NUMBERED_SHARDS


def test_tensors_that_lie_upon_one_another_are_not_read_each(tmp_path: Path) -> None:
    """Ten thousand names for one megabyte of zeros, which verify would look at ten thousand times."""
    size = 1 << 20
    entry = {"dtype": "U8", "shape": [1024, 1024], "data_offsets": [0, size]}
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw_file({f"t{i}": entry for i in range(10_000)}, bytes(size)))
    copy = shutil.copy(path, tmp_path / "copy.safetensors")
    code, found, _ = run_json("verify", path, "--against", copy)
    assert code == 1
    checks = {check["name"]: check for check in found["checks"]}
    assert sum("overlap" in fault["problem"] for fault in checks["structure"]["failures"]) == 9999
    assert checks["against"]["checked"] == 1


def test_planes_that_share_their_streams_are_not_decoded_each(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "model.safetensors", [])
    fixed = {"dtype": "U8", "shape": [64, 16 * 1025], "data_offsets": [0, 1024 * 1025]}
    empty = {"dtype": "U32", "shape": [0], "data_offsets": [0, 0]}
    names = {f"{i}.x.weight_scale.nvfp4_csf_{part}": entry for i in range(5000) for part, entry in
             (("exceptions", empty), ("fixed", fixed))}  # fmt: skip
    path.write_bytes(raw_file(names, bytes(1024 * 1025)))
    code, found, _ = run_json("verify", path, "--device", "cpu")
    checks = {check["name"]: check for check in found["checks"]}
    assert (code, checks["streams"]["checked"], checks["decode"]["checked"]) == (1, 5000, 1)


@pytest.mark.parametrize("command", ["verify", "expand"])
def test_source_headers_do_not_ask_for_one_tensor_twice(tmp_path: Path, command: str) -> None:
    """Receipts of empty shards that each ask for the large tensor of another: all their hashes are right."""
    root = mini_container(tmp_path / "c", shards=2)
    source = json.loads((root / RECEIPT).read_text())
    second = source["file"].replace("00001-of", "00002-of")
    change_json(root / f"receipts/{second}.json", lambda receipt: receipt.update(_twin(receipt, source)))
    rows = [json.loads((root / f"receipts/{file}.json").read_text()) for file in (source["file"], second)]
    keys = ("file", "source_file_bytes", "source_sha256", "target_file_bytes", "target_sha256")
    change_json(root / "manifest.json", lambda m: m.update(shards=[{k: row[k] for k in keys} for row in rows]))
    change_json(root / "manifest.json", lambda m: [m.pop(k) for k in [*m] if k.endswith(("_bytes", "_count"))])
    change_json(root / "build-contract.json", lambda c: c.pop("compressed_scale_count"))
    code, output = run(command, root, *([tmp_path / "out"] if command == "expand" else []))
    assert code == 1
    if command == "verify":
        assert f"tensors/{second}: cannot be rebuilt: {second}: " in output.replace("\n", " ")
    assert "two source headers list it" in output


def _twin(receipt: dict[str, object], source: dict[str, object]) -> dict[str, object]:
    return {key: source[key] for key in ("source_header_base64", "source_sha256", "source_file_bytes")}


def test_a_name_of_a_megabyte_is_refused_and_not_taken_apart(tmp_path: Path) -> None:
    name = "a." * 500_000 + "weight_scale"
    root = mini_hf(tmp_path / "c", shards=1)
    write_shard(root / "model.safetensors", [Tensor(name, "U8", (1,), b"x")])
    for command in ("stats", "verify"):
        code, output = run(command, root)
        assert code == 1
        assert "has 1000012 characters, but csf-tool reads at most 4096" in output
        assert len(output) < 20_000


@pytest.mark.slow
def test_a_table_of_more_rows_than_anybody_reads_is_cut(tmp_path: Path) -> None:
    tensors = []
    for i in range(1003):
        tensors.append(Tensor(f"{i}.x.weight", "U8", (0, 16), b""))
        tensors.append(Tensor(f"{i}.x.weight_scale", "F8_E4M3", (0, 2), b""))
    write_shard(tmp_path / "model.safetensors", tensors)
    code, output = run("stats", tmp_path, "--by", "layer")
    assert code == 0
    assert output.endswith("\n... and 3 more; --json lists all\n")
    assert len(output.splitlines()) < 1020


def test_documents_that_nest_deep_are_refused_in_every_place(tmp_path: Path) -> None:
    deep = '{"schema": ' + "[" * 200 + "]" * 200 + "}"
    root = mini_container(tmp_path / "c")
    for file in ("verification.json", "build-contract.json", RECEIPT, "manifest.json"):
        (root / file).write_text(deep)
        code, output = run("verify", root)
        assert (code, "JSON nested too deeply" in output, file in output) == (1, True, True)


def test_messages_stay_short_whatever_a_file_says(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "c")
    long = dict.fromkeys(("codec", "family", "status", "compressed_scale_count"), ["x" * 1_000_000] * 3)
    change_json(root / "manifest.json", lambda m: m.update(long))
    change_json(root / "manifest.json", lambda m: m["shards"].append({"file": "x" * 1_000_000}))
    code, output = run("stats", root)
    assert (code, len(output) < 20_000) == (1, True)


# Documents of another kind than they should be


@pytest.mark.parametrize("content", ["[]", "null", "7", '"x"'])
def test_a_serving_directory_of_a_config_that_is_no_object(tmp_path: Path, content: str) -> None:
    root = mini_container(tmp_path / "c", MXFP4)
    (root / "metadata" / "config.json").write_text(content)
    change_json(
        root / "manifest.json", lambda m: m["metadata_sha256"].update({"config.json": sha256(content.encode())})
    )
    code, output = run("convert", root, tmp_path / "out", "--to", "serving")
    assert (code, "config.json: not a JSON object" in output) == (1, True)


@pytest.mark.parametrize("build", [mini_hf, home_made], ids=["hf", "home-made"])
def test_a_number_that_no_json_can_hold_is_not_written_into_an_index(
    tmp_path: Path, build: Callable[[Path], Path]
) -> None:
    root = build(tmp_path / "c")
    text = (root / INDEX).read_text()
    (root / INDEX).write_text(text.replace('"metadata": {', '"metadata": {"x": 1e999,'))
    code, output = run("expand", root, tmp_path / "out")
    assert (code, "a number that no reader can store" in output) == (1, True)


@pytest.mark.parametrize("record", ["", "{", "[]", "null", '{"size": "x"}', '{"size": null}'])
def test_a_damaged_record_of_an_interrupted_run_counts_as_none(tmp_path: Path, record: str) -> None:
    root, out = mini_hf(tmp_path / "c"), tmp_path / "out"
    assert run("expand", root, out, "--shards", "1/2")[0] == 0
    [path] = (out / ".csf-tool" / "finished").iterdir()
    path.write_text(record)
    assert run("expand", root, out)[0] == 0
    assert run("verify", root, "--against", out)[0] == 0


def test_a_source_header_as_large_as_headers_may_be_is_no_header(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "c")
    for length in (1 << 63, (1 << 64) - 1, 100_000_001):
        header = base64.b64encode(length.to_bytes(8, "little") + b"{}").decode()
        receipt = json.loads((root / RECEIPT).read_text())
        write_json(root / RECEIPT, {**receipt, "source_header_base64": header})
        code, output = run("verify", root)
        assert (code, f"states a header of {length} bytes, but has 2" in output) == (1, True)
