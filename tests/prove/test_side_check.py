"""The files beside the shards: alone, and against a reference's."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.prove.reference_check import other_frameworks
from csf_tool.prove.side_check import check_side_files
from csf_tool.prove.side_comparison import SideComparison, compare_side_files
from tests.building import NVFP4, change_json, mini_container, mini_dense, mini_hf, model, write_json, write_shard

INDEX = "model.safetensors.index.json"
AT = "differs from the reference at"
Change = Callable[[Path], object]


def alone(root: Path) -> list[str]:
    return [f"{p.severity}: {p}" for p in check_side_files(open_checkpoint(root))]


def compared(root: Path, reference: Path) -> list[str]:
    return [str(p) for p in compare_side_files(open_checkpoint(root), open_checkpoint(reference)).problems]


def put(name: str, data: bytes) -> Change:
    return lambda root: (root / name).write_bytes(data)


def edit(name: str, **values: Any) -> Change:
    return lambda root: change_json(root / name, lambda document: document.update(values))


def test_json_that_is_none(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    assert alone(root) == []
    for name, data in {
        "a.json": b'{"x": NaN}',
        "b.json": b"",
        "c.json": b"{}\0",
        "d.txt": b"",
        "e.json": b"[" * 9999,
    }.items():
        (root / name).write_bytes(data)
    said = alone(root)
    assert [line.split(": ")[1] for line in said] == ["b.json", "c.json", "e.json"]
    assert all(": not valid JSON: " in line for line in said)


def test_a_containers_files_are_named_by_where_they_lie(tmp_path: Path) -> None:
    root = mini_container(tmp_path)
    (root / "metadata" / "config.json").write_bytes(b"{")
    assert [line.partition(": not")[0] for line in alone(root)] == ["error: metadata/config.json"]


def test_a_config_that_is_missing_or_broken_is_said_once(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    (root / "config.json").write_bytes(b"{")
    assert alone(root) == []  # opening has said so
    (root / "config.json").unlink()
    [line] = alone(root)
    assert line.startswith("warning: config.json: missing")
    assert "CSF streams" in line


def test_a_dense_model_in_mistrals_format_lacks_no_config(tmp_path: Path) -> None:
    root = mini_dense(tmp_path)
    (root / "config.json").unlink()
    assert alone(root) == ["warning: config.json: missing: nothing says which model this is"]
    (root / "params.json").write_text("{}")
    assert alone(root) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (edit("config.json", model_type="maxi"), f"config.json: {AT} model_type: 'maxi' here, 'mini' there"),
        (edit("config.json", rope={"theta": 1}), f"config.json: {AT} rope: {{'theta': 1}} here, nothing there"),
        (put("tokenizer.json", b'{"v": [1]}'), f"tokenizer.json: {AT} v: [1] here, [2] there"),
        (put("tokenizer.json", b'{"v": '), "tokenizer.json: differs from the reference: 6 bytes here, 10 there"),
        (put("chat.jinja", b"{{ x }}"), "chat.jinja: differs from the reference: 7 bytes here, 7 there"),
        (lambda root: (root / "chat.jinja").unlink(), "chat.jinja: missing; the reference has it"),
        (lambda root: (root / INDEX).unlink(), f"{INDEX}: missing; the reference has it"),
        (put("tokenizer.json", b'{ "v" : [2] }\n'), None),
        (put("README.md", b"other"), None),
        (put("SHA256SUMS.txt", b"other"), None),
        (edit(INDEX, metadata={"total_size": 1}), None),  # of streams here, of dense scales there
    ],
)  # fmt: skip
def test_against_a_reference(tmp_path: Path, change: Change, problem: str | None) -> None:
    roots = mini_hf(tmp_path / "csf"), mini_dense(tmp_path / "dense")
    for root in roots:
        files = {"tokenizer.json": b'{"v": [2]}', "chat.jinja": b"{{ y }}", "README.md": b"r", "SHA256SUMS.txt": b""}
        for name, data in files.items():
            (root / name).write_bytes(data)
    assert compared(*roots) == []
    change(roots[0])
    assert compared(*roots) == ([problem] if problem else [])


def test_a_containers_index_is_the_references_own(tmp_path: Path) -> None:
    dense = mini_dense(tmp_path / "dense")
    files = {name: (dense / name).read_bytes() for name in ("config.json", INDEX)}
    root = mini_container(tmp_path / "csf", metadata=files)
    assert compared(root, dense) == []
    change_json(root / "metadata" / INDEX, lambda document: document["metadata"].update(total_size=1))
    assert compared(root, dense)[0].startswith(f"metadata/{INDEX}: {AT} metadata.total_size: 1 here,")
    (root / "metadata" / INDEX).unlink()
    assert compared(root, dense) == [f"metadata/{INDEX}: missing; the reference has it"]
    write_json(root / "metadata" / INDEX, {})
    assert compared(root, dense)[0].startswith(f"metadata/{INDEX}: cannot be compared with the reference: ")


def test_another_division_into_shards_has_another_index(tmp_path: Path) -> None:
    dense, one = mini_dense(tmp_path / "dense"), mini_dense(tmp_path / "one", shards=3)
    (one / "config.json").write_bytes((dense / "config.json").read_bytes())
    assert compared(one, dense) == []


def test_a_single_file_is_compared_alone(tmp_path: Path) -> None:
    dense = mini_dense(tmp_path)
    shard = open_checkpoint(next(dense.glob("*.safetensors")))
    assert compare_side_files(shard, open_checkpoint(dense)) == SideComparison()


def test_the_framework_that_headers_state(tmp_path: Path) -> None:
    tensors = model(NVFP4, 1).popitem()[1]
    paths = [tmp_path / folder / "model.safetensors" for folder in ("pt", "qt", "none")]
    for path, metadata in zip(paths, ({"format": "pt"}, {"format": "qt"}, None), strict=True):
        write_shard(path, tensors, metadata)
    pt, qt, none = map(open_checkpoint, paths)
    text = "model.safetensors: its header has format 'qt', but the reference has 'pt'"
    assert [str(p) for p in other_frameworks(qt, pt)] == [text]
    assert other_frameworks(none, pt) == other_frameworks(qt, none) == other_frameworks(pt, pt) == []


def as_link_to_a_folder(root: Path) -> None:
    (root / "x.py").symlink_to("..")


def as_link_to_nothing(root: Path) -> None:
    (root / "x.py").symlink_to("nowhere")


def as_pipe(root: Path) -> None:
    os.mkfifo(root / "x.py")


NOT_THERE = "x.py: in the reference: is missing, or is a link to a missing file"
NO_FILE = "x.py: in the reference: is not a file, but a folder, a pipe or a device"
SURPLUS = "x.py: the reference does not have it"
MISSING = "x.py: missing; the reference has it"
NOTHING = put("other.txt", b"")


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (as_link_to_a_folder, NOTHING, SURPLUS),
        (as_link_to_a_folder, put("x.py", b""), MISSING),
        (as_link_to_nothing, NOTHING, SURPLUS),
        (as_link_to_nothing, put("x.py", b""), MISSING),
        (as_pipe, NOTHING, SURPLUS),
        (as_pipe, put("x.py", b""), MISSING),
        (NOTHING, as_link_to_a_folder, MISSING),
        (put("x.py", b""), as_link_to_a_folder, SURPLUS),
        (NOTHING, as_link_to_nothing, NOT_THERE),
        (put("x.py", b""), as_link_to_nothing, NOT_THERE),
        (as_link_to_nothing, as_link_to_nothing, NOT_THERE),
        (NOTHING, as_pipe, NO_FILE),
        (put("x.py", b""), as_pipe, NO_FILE),
        (as_pipe, as_pipe, NO_FILE),
    ],
)
def test_what_has_a_files_name_and_is_none(tmp_path: Path, ours: Change, theirs: Change, said: str) -> None:
    root, reference = mini_hf(tmp_path / "in"), mini_dense(tmp_path / "reference")
    NOTHING(root)
    NOTHING(reference)
    ours(root)
    theirs(reference)
    assert compared(root, reference) == [said]
    found = CliRunner().invoke(app, ["verify", str(root), "--against", str(reference), "--device", "cpu"])
    assert (found.exit_code, said in found.stdout) == (1, True)
    if "in the reference" in said and not any(link.is_symlink() or link.is_fifo() for link in [root / "x.py"]):
        assert "Download again" not in found.stdout


SECOND = "other.safetensors.index.json"


def with_second_index(root: Path) -> Path:
    (root / SECOND).write_bytes((root / INDEX).read_bytes())
    return root


@pytest.mark.parametrize("place", ["a norm", "a stream", "all but one stream"])
def test_a_second_index_of_streams_that_is_wrong(tmp_path: Path, place: str) -> None:
    """Both sides list the same dense tensors; what follows the names of streams does not excuse other places."""
    root, reference = with_second_index(mini_hf(tmp_path / "in")), with_second_index(mini_dense(tmp_path / "reference"))
    assert compared(root, reference) == []

    def change(index: dict[str, Any]) -> None:
        places = index["weight_map"]
        name = next(name for name in places if ("_csf_" in name) is (place != "a norm"))
        if place.startswith("all"):
            del places[name], places[name.replace("fixed", "exceptions")]
        else:
            places[name] = "model-00002-of-00002.safetensors"

    change_json(root / SECOND, change)
    assert [line.partition(" at weight_map")[0] for line in compared(root, reference)] == [
        f"{SECOND}: differs from the reference"
    ]


def test_a_second_index_of_other_shards_is_not_called_compared(tmp_path: Path) -> None:
    root, reference = mini_hf(tmp_path / "in", 1), with_second_index(mini_dense(tmp_path / "reference", shards=1))
    for old, new in (("model-00001-of-00001", "one"),):
        (root / f"{old}.safetensors").rename(root / f"{new}.safetensors")
        (root / INDEX).write_text((root / INDEX).read_text().replace(old, new))
    with_second_index(root)
    found = compare_side_files(open_checkpoint(root), open_checkpoint(reference))
    assert (found.problems, SECOND in found.compared) == ([], False)
