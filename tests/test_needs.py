"""Cases that users of quantised checkpoints have met, by number: here those that no other test proves.

Each test makes a small checkpoint with the fault, runs the commands on it as a user does, and looks for the right
answer and its one clear line. Where another test proves a case, `COVERED` names it.
"""

import ast
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from csf_tool.cli import app
from csf_tool.codec.swizzle import swizzle
from tests.building import (
    CODECS,
    LFS_POINTER,
    MXFP4,
    NVFP4,
    Codec,
    Tensor,
    change_json,
    compressed,
    layer,
    make_scales,
    matrix,
    mini_container,
    mini_dense,
    mini_hf,
    model,
    sha256,
    shard_bytes,
    shard_name,
    tree,
    write_hf,
    write_json,
    write_shard,
)

INDEX = "model.safetensors.index.json"
ONE, TWO, THREE = (shard_name(i, 3) for i in (1, 2, 3))
GATE = "model.layers.0.mlp.experts.0.gate_proj"


def run(*args: object) -> Result:
    """A command, decoding on the CPU."""
    words = [str(arg) for arg in args]
    device = ["--device", "cpu"] if words[0] in ("verify", "expand", "compress") and "--quick" not in words else []
    result = CliRunner().invoke(app, [*words, *device])
    assert "Traceback" not in result.output
    return result


def says(result: Result, *texts: str) -> bool:
    """Whether a command's output has all of these, however a terminal would wrap it."""
    missing = [text for text in texts if text not in result.output]
    assert not missing, result.output
    return True


def place(path: Path, name: str) -> tuple[int, int]:
    """Where a tensor's bytes lie in a shard."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    begin, end = json.loads(raw[8 : 8 + length])[name]["data_offsets"]
    return 8 + length + begin, 8 + length + end


def overwrite(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def hub_cache(folder: Path, cache: Path, revision: str = "a" * 40) -> Path:
    """The snapshot of a Hub cache that holds the files of `folder`: links to blobs named by their SHA-256."""
    snapshot = cache / "models--example--mini" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    blobs = snapshot.parent.parent / "blobs"
    blobs.mkdir(exist_ok=True)
    for path in folder.iterdir():
        blob = blobs / sha256(path.read_bytes())
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def hf_download(folder: Path, revision: str = "b" * 40) -> Path:
    """Beside the files of `folder`, what `hf download --local-dir` notes of them."""
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    for path in [p for p in folder.iterdir() if p.is_file()]:
        (notes / f"{path.name}.metadata").write_text(f"{revision}\n{sha256(path.read_bytes())}\n1.0\n")
    return folder


# A. Bytes


def test_case_2_zeroed_tensors_in_a_cache_are_found_by_the_blobs_name_and_by_their_zeros(tmp_path: Path) -> None:
    snapshot = hub_cache(mini_hf(tmp_path / "good"), tmp_path)
    damaged = [(snapshot / shard_name(i + 1, 2), f"model.layers.{i}.mlp.experts.0.down_proj.weight") for i in (0, 1)]
    for path, name in damaged:
        begin, end = place(path, name)
        overwrite(path.resolve(), begin, bytes(end - begin))
    result = run("verify", snapshot)
    assert result.exit_code == 1
    for path, name in damaged:
        zero = f"{path.name}: {name}: weight tensor is entirely zero: a failed download can look so"
        says(result, zero, f"{path.name}: sha256 is ", "the blob's name in the Hub cache says")
    bare = Path(shutil.copytree(snapshot, tmp_path / "bare"))
    result = run("verify", bare)
    assert result.exit_code == 0  # without a digest it may be meant, and is no more than a warning
    says(result, "weight tensor is entirely zero", "NO FAULT FOUND, which proves little")


def test_case_3_a_shard_shorter_than_its_header_is_refused_by_every_command(tmp_path: Path) -> None:
    tensors = [Tensor(f"t{i}", "U8", (90,), bytes(range(90))) for i in range(4)]
    shards = {**model(NVFP4, 1), "model-cut.safetensors": tensors}
    root = write_hf(tmp_path / "in", {name: compressed(t, NVFP4) for name, t in shards.items()})
    path = root / "model-cut.safetensors"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-100])
    lost = f"model-cut.safetensors: t2: ends at byte {size - 90}, past the end of the file ({size - 100} bytes)"
    for command in ("stats", "verify"):
        result = run(command, root)
        assert result.exit_code == 1
        says(result, f"model-cut.safetensors: the file is {size - 100} bytes, its header needs {size}", lost)
        says(result, "100 bytes are missing")
    result = run("expand", root, tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out").exists()) == (1, False)
    says(result, "not expanded", "100 bytes are missing")


@pytest.mark.parametrize(
    "leftover",
    [
        "../../blobs/{}.incomplete".format("0" * 64),
        f"{TWO}.aria2",
        f".{TWO}.Ab12Cd",
        ".cache/huggingface/download/tensors/abc.{}.incomplete".format("0" * 64),
    ],
)
def test_case_6_an_unfinished_download_beside_shards_that_look_complete(tmp_path: Path, leftover: str) -> None:
    root = hub_cache(mini_hf(tmp_path / "in", 3), tmp_path / "cache")
    (root / leftover).parent.mkdir(parents=True, exist_ok=True)
    (root / leftover).write_bytes(b"x")
    text = f"{Path(leftover).name}: 1 file of a download or copy that was not finished"
    for command in ("stats", "verify"):
        result = run(command, root)
        assert result.exit_code == 0
        says(result, text)
    (root / TWO).resolve().write_bytes((root / TWO).read_bytes()[:50])
    assert run("verify", root).exit_code == 1


def test_case_6_an_unfinished_run_of_csf_tool_itself(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    write_json(root / ".csf-tool" / "journal.json", {})
    says(run("stats", root), ".csf-tool: a csf-tool run into this folder is not finished: run the same command again")


# Lists of hashes


def saved(root: Path, to: Path) -> Path:
    assert run("verify", root, "--save-hashes", to).exit_code == 0
    return to


def test_case_10_a_copy_is_held_against_a_list_saved_from_the_first(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "first", 3)
    manifest = saved(root, tmp_path / "first.sha256")
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    good = run("verify", copy, "--manifest", manifest)
    assert good.exit_code == 0
    says(good, "the stored bytes are the published ones (5 files by first.sha256)", "VERIFIED AS PUBLISHED")
    size = (copy / TWO).stat().st_size
    (copy / TWO).write_bytes((copy / TWO).read_bytes()[:-10])
    quick = run("verify", copy, "--manifest", manifest, "--quick")
    assert quick.exit_code == 1
    says(quick, f"{TWO}: is {size - 10} bytes, first.sha256 says {size}")
    (copy / TWO).unlink()
    says(run("verify", copy, "--manifest", manifest, "--quick"), f"{TWO}: first.sha256 lists it, it is not there")


def test_case_10_quick_calls_itself_sizes_only_and_misses_what_deep_finds(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in", 3)
    manifest = saved(root, tmp_path / "list")
    begin, _ = place(root / TWO, "model.layers.1.norm.weight")
    overwrite(root / TWO, begin, b"\x55\x55")
    quick = run("verify", root, "--manifest", manifest, "--quick")
    assert quick.exit_code == 0
    says(quick, "NO FAULT FOUND in headers and sizes; no data was read.", "sizes of 5 files by list; --quick reads no")
    deep = run("verify", root, "--manifest", manifest)
    assert deep.exit_code == 1
    says(deep, f"{TWO}: sha256 is ", "list says ")


def test_case_10_lists_are_those_of_sha256sum(tmp_path: Path) -> None:
    """Ours hold the digests that hashlib gives, one a line; theirs are taken, and so are BSD's."""
    root = mini_container(tmp_path / "in")
    manifest = saved(root, tmp_path / "list")
    files = {name: data for name, data in tree(root).items() if "/" not in name or not name.startswith(".")}
    lines = [line for line in manifest.read_text().splitlines() if not line.startswith("#")]
    assert sorted(lines) == sorted(f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in files.items())
    plain = [f"{sha256(data)} *./{name}" for name, data in files.items()]
    tagged = [f"SHA256 ({name}) = {sha256(data)}" for name, data in files.items()]
    for text in (plain, tagged):
        (tmp_path / "sums").write_text("\n".join(text))
        assert run("verify", root, "--manifest", tmp_path / "sums").exit_code == 0
        quick = run("verify", root, "--manifest", tmp_path / "sums", "--quick")
        says(quick, f"presence, for it gives no sizes, of {len(files)} files by sums")
    (tmp_path / "sums").write_text("\n".join(plain).replace(plain[0][:8], "0" * 8))
    assert run("verify", root, "--manifest", tmp_path / "sums").exit_code == 1


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="the tool itself is the judge")
def test_case_10_sha256sum_reads_our_lists(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in")
    manifest = saved(root, tmp_path / "list")
    check = ["sha256sum", "--check", "--strict", "--quiet", str(manifest)]
    assert subprocess.run(check, cwd=root, capture_output=True, check=False).returncode == 0
    overwrite(root / "config.json", 1, b" ")
    assert subprocess.run(check, cwd=root, capture_output=True, check=False).returncode == 1


def test_case_10_a_list_of_something_else_is_wrong_usage(tmp_path: Path) -> None:
    good = mini_hf(tmp_path / "in", 3)
    ours = hub_cache(good, tmp_path / "cache")
    other = hub_cache(mini_hf(tmp_path / "other", 2), tmp_path / "cache", "c" * 40)
    manifest = saved(ours, tmp_path / "list")
    assert "# repository: example/mini\n# revision: " + "a" * 40 in manifest.read_text()
    result = run("verify", other, "--manifest", manifest)
    assert result.exit_code == 2
    says(result, f"list: is a list of revision {'a' * 40}; {other} is of {'c' * 40}")
    (tmp_path / "far").write_text(f"{'0' * 64}  model-00001-of-00099.safetensors\n")
    result = run("verify", good, "--manifest", tmp_path / "far")
    assert result.exit_code == 2
    says(result, "far: not one of the 1 files that it lists is in")
    (tmp_path / "empty").write_text("nothing\n")
    assert run("verify", good, "--manifest", tmp_path / "empty").exit_code == 2
    assert run("verify", good, "--manifest", tmp_path / "nowhere").exit_code == 2


def test_case_10_no_list_is_saved_of_a_faulty_checkpoint_nor_over_a_file(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    shard = root / "tensors" / shard_name(1, 2)
    overwrite(shard, shard.stat().st_size - 1, bytes([shard.read_bytes()[-1] ^ 1]))
    result = run("verify", root, "--save-hashes", tmp_path / "list")
    assert (result.exit_code, (tmp_path / "list").exists()) == (1, False)
    says(result, "list is not written: a check failed")
    (tmp_path / "list").write_text("mine")
    assert run("verify", root, "--save-hashes", tmp_path / "list").exit_code == 2
    assert (tmp_path / "list").read_text() == "mine"


def test_case_11_identity_of_a_download_a_cache_and_a_bare_copy(tmp_path: Path) -> None:
    good = mini_hf(tmp_path / "in")
    cache = hub_cache(good, tmp_path / "cache")
    bare = Path(shutil.copytree(good, tmp_path / "bare"))
    download = run("identity", hf_download(good))
    cached, copied = run("identity", cache), run("identity", bare)
    assert download.stdout == cached.stdout != copied.stdout
    for result in (download, cached):
        says(result, "digest-based: the SHA-256 of every shard")
    says(copied, "size-based: a copy of that size with other bytes has the same one; --hash reads every byte")
    assert run("identity", bare, "--hash").stdout == cached.stdout


# B. Headers


def test_case_20_an_empty_shard_is_kept_and_a_file_of_0_bytes_is_an_error(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in")
    write_shard(root / "empty.safetensors", [])
    assert run("stats", root).exit_code == 0
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "empty.safetensors").exists()
    (root / "nothing.safetensors").write_bytes(b"")
    result = run("stats", root)
    assert result.exit_code == 1
    says(result, "nothing.safetensors: 0 bytes, too short for a safetensors file")


def test_case_24_25_unknown_and_small_dtypes_are_bytes_like_any_other(tmp_path: Path) -> None:
    """Tensors of every dtype, and of one that nobody knows, come through as they are."""
    sizes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "F16": 2, "BF16": 2}
    sizes |= {"U16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8, "C64": 8}
    odd = [Tensor(f"x.{dtype}", dtype, (2,), b"\x80\x7f" * size) for dtype, size in sizes.items()]
    odd += [Tensor("x.F6_X", "F6_X", (4,), b"\x7f\x80\xff"), Tensor("x.F4", "F4", (2, 8), bytes(range(8)))]
    tensors = [*layer(0, NVFP4), *odd]
    root = write_shard(tmp_path / "in" / "model.safetensors", compressed(tensors, NVFP4), {"format": "pt"}).parent
    assert run("stats", root).exit_code == 0
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == shard_bytes(tensors, {"format": "pt"})
    assert run("verify", root, "--against", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_case_27_47_48_every_byte_value_comes_back_and_odd_ones_are_only_counted(tmp_path: Path, codec: Codec) -> None:
    """Constant rows of the values at the limits of a base, and one row of each byte value."""
    rows = [bytes([value]) * 16 for value in (0x00, 0xF0, 0xF1, 0xF7, 0xFE, 0xFF, 0x7F, 0x80)]
    scales = b"".join(rows * 2 + [bytes(range(16 * i, 16 * i + 16)) for i in range(16)])
    module = "m.layers.0.mlp.experts.0.w1"
    tensors = matrix(module, codec, 5, rows=32, cols=16)
    tensors = [Tensor(t.name, t.dtype, t.shape, scales if t.dtype == codec.dtype else t.data) for t in tensors]
    dense = write_shard(tmp_path / "in" / "model.safetensors", tensors, {"format": "pt"}).parent
    to = "hf" if codec is NVFP4 else "container"
    assert run("compress", dense, tmp_path / "csf", "--keep-larger", "--to", to).exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    assert tree(tmp_path / "out") == tree(dense)
    for folder in (dense, tmp_path / "csf"):
        result = run("stats", folder, "--scales", "--json")
        assert result.exit_code == 0
        [counted] = json.loads(result.stdout)["scale_bytes"]
        nan = (0x7F, 0xFF) if codec is NVFP4 else (0xFF,)
        assert counted["layer"] == "m.layers.0"
        assert counted["bytes"] == {f"0x{value:02x}": scales.count(value) for value in range(256)}
        assert counted["nan"] == sum(scales.count(value) for value in nan)
        assert counted["zero"] == scales.count(0)
        signed = sum(value >= 0x80 for value in scales) - scales.count(0xFF)
        assert counted["negative"] == (signed if codec is NVFP4 else 0)
    says(run("stats", dense, "--scales"), "NaN", "Such bytes are data like any other: no command changes one.")


def test_case_47_a_broken_plane_is_not_counted_and_hides_no_other(tmp_path: Path) -> None:
    root = mini_hf(tmp_path, 1)
    path = root / shard_name(1, 1)
    begin, _ = place(path, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    overwrite(path, begin, b"\xff")
    result = run("stats", root, "--scales", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["scale_bytes"][0]["scales"] == 2 * 16 * 4
    assert [p["tensor"] for p in document["problems"]] == [f"{GATE}.weight_scale"]
    assert document["problems"][0]["problem"].startswith("not counted: row 0: base 255")


def test_case_26_no_reader_of_bytes_is_borrowed_that_knows_fewer_dtypes() -> None:
    """safetensors' `load` fails on dtypes that `load_file` reads: csf-tool reads bytes by itself."""
    source = Path(__file__).parent.parent / "csf_tool"
    imports = [
        line
        for p in source.rglob("*.py")
        for line in re.findall(r"^\s*(?:from|import) safetensors.*", p.read_text(), re.M)
    ]
    assert {line.strip() for line in imports} <= {"from safetensors import SafetensorError"}


# C. Index and config


def test_case_29_an_index_that_names_thirty_shards_where_three_are(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in", 3)
    change_json(root / INDEX, lambda i: i["weight_map"].update({"ghost": "model-00030-of-00030.safetensors"}))
    (root / TWO).unlink()
    for command in ("stats", "verify"):
        result = run(command, root)
        assert result.exit_code == 1
        says(result, "model-00030-of-00030.safetensors: not there", f"{TWO}: not there")
    write_shard(root / "more.safetensors", [Tensor("more", "U8", (1,), b"x")])
    says(run("verify", root), f"more.safetensors: {INDEX} does not list this shard")
    assert run("expand", root, tmp_path / "out").exit_code == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["hf", "container"])
def test_case_31_34_compress_carries_what_no_index_lists_and_says_so(tmp_path: Path, to: str) -> None:
    dense = mini_dense(tmp_path / "in")
    extra = [Tensor("amax", "F32", (1,), b"abcd")]
    write_shard(dense / "amax.safetensors", extra, {"format": "pt"})
    change_json(dense / INDEX, lambda index: index["weight_map"].pop("model.layers.0.norm.weight"))
    result = run("compress", dense, tmp_path / "csf", "--to", to, "--keep-larger")
    assert result.exit_code == 0
    says(
        result, f"amax.safetensors: {INDEX} does not list this shard", f"norm.weight: {INDEX} does not list this tensor"
    )
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    back = tree(tmp_path / "out")
    assert {n: d for n, d in back.items() if n != INDEX} == {n: d for n, d in tree(dense).items() if n != INDEX}
    assert "model.layers.0.norm.weight" not in json.loads(back[INDEX])["weight_map"]


def test_case_34_expand_says_which_shards_the_container_never_held(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    index = json.loads((root / "metadata" / INDEX).read_text())
    index["weight_map"]["mtp.fc.weight"] = "mtp.safetensors"
    raw = json.dumps(index).encode()
    (root / "metadata" / INDEX).write_bytes(raw)
    for name, keys in (("manifest.json", ("metadata_sha256", "source_index_sha256")), ("build-contract.json", ())):
        document = json.loads((root / name).read_text())
        if keys:
            document["metadata_sha256"][INDEX] = sha256(raw)
        document["source_index_sha256"] = sha256(raw)
        write_json(root / name, document)
    result = run("expand", root, tmp_path / "out")
    assert result.exit_code == 0
    says(result, f"Note: {INDEX} lists 1 shard that the container never held, as mtp.safetensors")


FLAT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}
NESTED = {"quantization_config": FLAT["quantization"]}
OTHER = {"quantization_config": {"quant_method": "mxfp4"}}


@pytest.mark.parametrize(
    ("config", "hf_quant", "expected"),
    [
        ({"quantization_config": {"quant_algo": "NVFP4"}}, None, []),
        ({"text_config": {"quantization_config": {"quant_algo": "NVFP4"}}}, None, []),
        ({}, FLAT, []),
        ({}, NESTED, []),
        (OTHER, None, ["config.json: speaks of MXFP4, the tensors are NVFP4: the tensors are believed"]),
        (
            {"quantization_config": {"quant_algo": "NVFP4"}, "text_config": OTHER},
            None,
            ["config.json: quantization_config stands at the top and in text_config, and they differ: the one at the"],
        ),
        (
            {"quantization_config": {"quant_algo": "NVFP4"}},
            {"quantization": {"quant_algo": "MXFP4"}},
            ["hf_quant_config.json: speaks of MXFP4, config.json of NVFP4: mend one of them"],
        ),
    ],
)
def test_case_38_quantization_config_in_four_places_and_in_disagreement(
    tmp_path: Path, config: object, hf_quant: object, expected: list[str]
) -> None:
    root = mini_dense(tmp_path)
    write_json(root / "config.json", config)
    if hf_quant:
        write_json(root / "hf_quant_config.json", hf_quant)
    result = run("stats", root)
    assert result.exit_code == 0
    says(result, "dense NVFP4", *expected)
    assert ("warning" in result.stderr) == bool(expected)


# D. Naming and layout


def test_case_42_names_under_any_prefix(tmp_path: Path) -> None:
    for prefix in ("", "model.language_model.", "mtp.0.ffn."):
        tensors = [Tensor(prefix + t.name, t.dtype, t.shape, t.data) for t in matrix("experts.0.gate_proj", NVFP4, 3)]
        dense = write_shard(tmp_path / f"in{prefix}" / "model.safetensors", tensors, {"format": "pt"}).parent
        assert run("compress", dense, tmp_path / f"csf{prefix}", "--keep-larger").exit_code == 0
        assert run("expand", tmp_path / f"csf{prefix}", tmp_path / f"out{prefix}").exit_code == 0
        assert tree(tmp_path / f"out{prefix}") == tree(dense)


@pytest.mark.parametrize("name", ["m.experts.gate_up_proj_scales", "m.experts.w.weight_scale"])
def test_case_41_43_stacked_experts_are_named_and_left_alone(tmp_path: Path, name: str) -> None:
    tensors = [Tensor(name, "U8", (4, 32, 8), bytes(1024)), Tensor(name[:-7], "U8", (4, 32, 8, 16), bytes(16384))]
    write_shard(tmp_path / "in" / "model.safetensors", tensors)
    result = run("stats", tmp_path / "in")
    assert result.exit_code == 0
    says(result, "no FP4 scales", f"{name}: is [4, 32, 8]: scales of stacked experts; CSF planes are of one matrix")
    assert run("compress", tmp_path / "in", tmp_path / "out").exit_code == 2


@pytest.mark.parametrize("to", ["hf", "container"])
def test_case_44_padded_and_tiled_scales_are_spoken_of_and_wait_for_leave(tmp_path: Path, to: str) -> None:
    """Scales of 100 rows and 4 columns, in one tile of 128x4 as tensor cores take it."""
    scales = np.frombuffer(make_scales(100, 4, NVFP4, 1), np.uint8).reshape(100, 4)
    tile = swizzle(scales)
    module = "m.layers.0.mlp.experts.0.w1"
    weight = Tensor(f"{module}.weight", "U8", (100, 32), bytes(range(256)) * 12 + bytes(128))
    tensors = [weight, Tensor(f"{module}.weight_scale", "F8_E4M3", tile.shape, tile.tobytes())]
    dense = write_shard(tmp_path / "in" / "model.safetensors", tensors, {"format": "pt"}).parent
    line = "its layout is unknown, it is [128, 4] beside a weight of U8 [100, 32]"
    result = run("stats", dense)
    assert result.exit_code == 0
    says(result, f"{module}.weight_scale: {line}: padded, or in tiles?")
    refused = run("compress", dense, tmp_path / "no", "--keep-larger", "--to", to)
    assert refused.exit_code == 2
    says(refused, line, "--allow-padded takes it as it is")
    assert run("compress", dense, tmp_path / "csf", "--keep-larger", "--allow-padded", "--to", to).exit_code == 0
    assert run("verify", tmp_path / "csf", "--against", dense).exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    assert tree(tmp_path / "out") == tree(dense)


def test_case_44_metadata_of_another_quantiser_make_the_layout_unknown(tmp_path: Path) -> None:
    tensors = matrix("m.experts.0.w1", NVFP4, 1)
    path = write_shard(tmp_path / "in" / "model.safetensors", tensors, {"_quantization_metadata": "{}"})
    result = run("compress", path.parent, tmp_path / "out", "--keep-larger")
    assert result.exit_code == 2
    says(result, "its layout is unknown, its shard has _quantization_metadata (--allow-padded takes it as it is)")


# E. Disk


def test_case_52_the_room_check_can_be_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, dense = mini_hf(tmp_path / "in"), mini_dense(tmp_path / "dense")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    result = run("expand", root, tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out").exists()) == (3, False)
    says(result, "are needed, 10 B are free", "(--ignore-space begins all the same)")
    for line in (
        ("expand", root, tmp_path / "out"),
        ("compress", dense, tmp_path / "csf", "--keep-larger"),
        ("convert", root, tmp_path / "container", "--to", "container"),
    ):
        assert run(*line, "--ignore-space").exit_code == 0


def test_case_52_what_is_linked_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that do not change are hard links: room for the small files is enough."""
    root = mini_container(tmp_path / "in")
    assert run("convert", root, tmp_path / "hf", "--to", "hf").exit_code == 0
    usage = shutil.disk_usage(tmp_path)
    shards = sum(p.stat().st_size for p in (tmp_path / "hf").glob("*.safetensors"))
    small = sum(p.stat().st_size for p in (tmp_path / "hf").iterdir()) - shards
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=small))
    assert run("convert", root, tmp_path / "copied", "--to", "hf").exit_code == 3
    assert run("convert", root, tmp_path / "linked", "--to", "hf", "--link").exit_code == 0


def test_case_59_a_dangling_a_valid_and_an_empty_link(tmp_path: Path) -> None:
    snapshot = hub_cache(mini_hf(tmp_path / "in", 3), tmp_path)
    (snapshot / ONE).resolve().unlink()
    (snapshot / TWO).resolve().write_bytes(b"")
    result = run("verify", snapshot)
    assert result.exit_code == 1
    says(result, f"{ONE}: not there (missing, or a link to a missing blob)", f"{TWO}: 0 bytes, too short")


# G. Scale


def test_case_68_failed_shards_are_named_and_verified_again_alone(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in", shards=8)
    bad = f"tensors/{shard_name(5, 8)}"
    good = (root / bad).read_bytes()
    overwrite(root / bad, len(good) - 1, bytes([good[-1] ^ 1]))
    first = run("verify", root, "--json", "-j", 3)
    assert json.loads(first.stdout)["failed_files"] == [bad]
    again = run("verify", root, "--only", shard_name(5, 8))
    assert again.exit_code == 1
    says(again, "Only 1 of 8 shards were looked at.", f"{bad}: sha256 is ")
    (root / bad).write_bytes(good)
    mended = run("verify", root, "--only", bad, "--json")
    assert mended.exit_code == 0
    document = json.loads(mended.stdout)
    assert document["shards"] == {"checked": 1, "of": 8}
    decode, source = (next(c for c in document["checks"] if c["name"] == name) for name in ("decode", "source"))
    assert (decode["checked"], source["status"], source["checked"]) == (3, "passed", 4)
    says(run("verify", root, "--only", "*-00005-*", "--only", "*-00006-*"), "Only 2 of 8 shards")
    wrong = run("verify", root, "--only", "model-9")
    assert wrong.exit_code == 2
    says(wrong, "--only model-9: no readable shard is called so; there are 8, as tensors/model-00001-of-00008")


# H. CSF


def test_case_71_mixed_layouts_stand_in_the_first_line(tmp_path: Path) -> None:
    root = mini_hf(mini_container(tmp_path / "both"))
    result = run("stats", root)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].endswith("CSF container, NVFP4 CSF (mixed with a Hugging Face checkpoint)")
    says(result, "in one folder? Download each into a folder of its own")


def test_case_71_what_is_left_of_a_container_does_not_hide_a_good_checkpoint(tmp_path: Path) -> None:
    root = mini_hf(mini_container(tmp_path / "both"))
    shutil.rmtree(root / "tensors")
    result = run("stats", root)
    assert result.exit_code == 0
    assert "Hugging Face layout, NVFP4 CSF (mixed with what is left of a container)" in result.stdout.splitlines()[0]
    says(result, "manifest.json: lists shards in tensors, where none is, and the folder is taken as a Hugging Face")


def test_case_75_a_serving_directory_is_named_in_the_first_line(tmp_path: Path) -> None:
    mini_container(tmp_path / "weights")
    config = {"quant_method": "nvfp4_csf", "format_version": 1, "checkpoint_root": "../weights"}
    write_json(tmp_path / "serve" / "config.json", {"quantization_config": config})
    first = run("stats", tmp_path / "serve").stdout.splitlines()[0]
    assert first.endswith(f"NVFP4 CSF (the weights of the serving directory {tmp_path / 'serve'})")


def test_case_84_a_rollback_takes_what_is_there_already(tmp_path: Path) -> None:
    """Of three shards one is good, one corrupt, one missing."""
    root, original = mini_container(tmp_path / "in", shards=3), mini_dense(tmp_path / "original", shards=3)
    there = tmp_path / "there"
    there.mkdir()
    shutil.copy(original / ONE, there)
    overwrite(Path(shutil.copy(original / TWO, there)), 5000, b"\x55\x55")
    refused = run("expand", root, there)
    assert refused.exit_code == 2
    says(refused, "is not empty")
    wrong = run("expand", root, there, "--adopt")
    assert wrong.exit_code == 2
    says(wrong, f"{there / TWO}: does not belong there: remove what is wrong, and run again")
    (there / TWO).unlink()
    kept = (there / ONE).stat().st_mtime_ns
    assert run("expand", root, there, "--adopt").exit_code == 0
    assert (there / ONE).stat().st_mtime_ns == kept
    assert {n: d for n, d in tree(there).items() if n.endswith(".safetensors")} == {
        name: (original / name).read_bytes() for name in (ONE, TWO, THREE)
    }


def test_case_84_without_original_hashes_the_bytes_are_compared(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in", 3)
    assert run("expand", root, tmp_path / "out").exit_code == 0
    expected = tree(tmp_path / "out")
    (tmp_path / "out" / TWO).unlink()
    says(run("expand", root, tmp_path / "out", "--adopt"), "Kept 4 files that lay there already, each compared.")
    assert tree(tmp_path / "out") == expected
    begin, _ = place(tmp_path / "out" / ONE, f"{GATE}.weight")
    overwrite(tmp_path / "out" / ONE, begin, bytes([expected[ONE][begin] ^ 1]))
    assert run("expand", root, tmp_path / "out", "--adopt").exit_code == 2
    shutil.rmtree(tmp_path / "out" / ".csf-tool")
    (tmp_path / "out" / "mine.txt").write_text("x")
    foreign = run("expand", root, tmp_path / "out", "--adopt")
    assert foreign.exit_code == 2
    says(foreign, "has mine.txt in it, which is no file of the result")


def test_case_87_a_family_and_a_geometry_that_no_model_has(tmp_path: Path) -> None:
    module = "encoder.blocks.7.moe.experts.{}.proj"
    content = {
        "a b.safetensors": [
            tensor for expert in range(3) for tensor in matrix(module.format(expert), MXFP4, expert, rows=48, cols=20)
        ]
    }
    root = mini_container(tmp_path / "in", MXFP4, content=content)
    for name in ("manifest.json", "build-contract.json"):
        change_json(root / name, lambda document: document.update(family="something_new"))
    assert run("verify", root).exit_code == 0
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "a b.safetensors").read_bytes() == shard_bytes(
        content["a b.safetensors"], {"format": "pt"}
    )


def test_case_88_licences_travel_and_are_named(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    (root / "LICENSES").mkdir()
    for name in ("LICENSE", "NOTICE", "LICENSES/MIT.txt"):
        (root / name).write_text(f"terms of {name}")
    result = run("expand", root, tmp_path / "out")
    says(result, "Its terms travel with it: LICENSE, LICENSES/MIT.txt, NOTICE.", f"original of example/mini@{'0' * 40}")
    assert (tmp_path / "out" / "LICENSES" / "MIT.txt").read_text() == "terms of LICENSES/MIT.txt"


# What a folder really is


def only(name: str, content: bytes = b"x") -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        root.mkdir()
        (root / name).write_bytes(content)
        return root

    return make


def spoilt(content: bytes, *names: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        mini_hf(root)
        for name in names:
            (root / name).write_bytes(content)
        return root

    return make


def without_shards(root: Path) -> Path:
    mini_hf(root)
    for name in (shard_name(1, 2), shard_name(2, 2)):
        (root / name).unlink()
    return root


def of_schema(schema: str) -> Callable[[Path], Path]:
    def make(root: Path) -> Path:
        mini_container(root)
        change_json(root / "manifest.json", lambda manifest: manifest.update(schema=schema))
        return root

    return make


FOLDERS: list[tuple[Callable[[Path], Path], int, str]] = [
    (only("model.gguf"), 2, "no *.safetensors.index.json and no .safetensors file in it; it has 1 GGUF files"),
    (only("strings.csf"), 2, "1 .csf files, another format of that name (CSF is here a compression of block scales)"),
    (only("pytorch_model.bin"), 2, "1 torch's .bin files"),
    (only("model.safetensors", b"GGUF\3\0\0\0" + bytes(30)), 1, "model.safetensors: is a GGUF file, not a safetensors"),
    (only("model.safetensors", b"Entry not found"), 1, "is text, not a safetensors file: an error message that was"),
    (only("model.safetensors", bytes(5000)), 1, "begins with zeros: a download made room for it and never filled it"),
    (without_shards, 1, f"none that {INDEX} lists is there, as {shard_name(1, 2)}; download the .safetensors files"),
    (spoilt(LFS_POINTER, shard_name(1, 2), shard_name(2, 2)), 1, "run `git lfs pull`, or download the file again"),
    (spoilt(b"<!doctype html>", INDEX), 1, f"{INDEX}: is a web page (HTML or XML), not the file itself: download it"),
    (spoilt(b'{"error":"gated"}', shard_name(1, 2)), 1, """It begins '{"error":"gated"}'; download it again"""),
    (of_schema("lil-nvfp4-csf-checkpoint/2"), 1, "an older or newer container, for which another version of csf-tool"),
    (of_schema("chrome-extension"), 1, "is not one that csf-tool reads (lil-nvfp4-csf-checkpoint/1, lil-mxfp4-csf-"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code", "line"), FOLDERS)
@pytest.mark.parametrize("command", ["stats", "verify"])
def test_case_7_63_what_a_folder_is_instead_stands_in_one_line(
    tmp_path: Path, command: str, make: Callable[[Path], Path], code: int, line: str
) -> None:
    result = run(command, make(tmp_path / "x"))
    assert result.exit_code == code
    says(result, line)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("game.csf", b" FSC\3\0\0\0" + bytes(60), "is one of .csf files, another format of that name"),
        (
            "model.gguf",
            b"GGUF\3\0\0\0" + bytes(60),
            "is one of GGUF files; give a checkpoint's folder or one .safetensors",
        ),
        ("notes.txt", b"hello there, this is text", "notes.txt: is text, not a safetensors file"),
    ],
)
def test_case_71_a_file_of_another_kind_is_wrong_usage(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    (tmp_path / name).write_bytes(content)
    result = run("stats", tmp_path / name)
    assert result.exit_code == 2
    says(result, line)


# The map

V, L, H, P, D, E, I = (  # noqa: E741
    "tests/test_verify.py",
    "tests/checkpoint/test_layouts.py",
    "tests/checkpoint/test_headers.py",
    "tests/checkpoint/test_planes.py",
    "tests/checkpoint/test_dense.py",
    "tests/test_expand.py",
    "tests/test_interruption.py",
)

COVERED = {
    1: [f"{V}::test_one_flipped_bit_anywhere_in_a_container_is_reported"],
    9: [f"{V}::test_a_shard_that_shrinks_meanwhile_is_an_error_and_not_a_signal"],
    12: [
        f"{V}::test_without_hashes_or_a_reference_nothing_is_said_of_the_original_bytes",
        f"{V}::test_a_zeroed_stream_is_well_formed_but_warned_of",
        f"{V}::test_whatever_changes_a_decoded_byte_is_found_against_a_reference",
        f"{V}::test_a_flipped_code_under_an_exception_breaks_stored_but_not_source",
    ],
    13: [f"{H}::test_headers_around_a_hundred_thousand_bytes"],  # read from a disk
    15: [f"{D}::test_own_headers_keep_metadata_but_for_the_codec"],
    16: [f"{D}::test_the_original_order_padding_and_metadata_come_from_the_source_header"],
    17: [f"{P}::test_streams_side_by_side_at_an_odd_offset_are_read_right", f"{H}::test_a_hole_between_tensors"],
    19: [f"{D}::test_zero_size_tensors_are_kept_at_the_start_in_the_middle_and_at_the_end"],
    23: [
        f"{H}::test_overlapping_data",
        f"{H}::test_two_names_for_the_same_bytes_overlap",
        f"{H}::test_a_hole_before_the_first_tensor",
    ],
    28: ["tests/checkpoint/test_compare.py::test_minus_zero_is_not_zero", f"{V}::test_floats_are_compared_as_bytes"],
    36: [f"{L}::test_without_an_index_the_shards_are_taken_as_they_are", f"{E}::test_a_missing_index_is_written_anew"],
    37: [f"{L}::test_a_hostile_path_in_the_index", f"{L}::test_shards_in_folders"],
    39: [
        "tests/checkpoint/test_config.py::test_a_mixed_config_loses_one_key_of_one_recipe",
        f"{E}::test_the_hf_layout_gives_the_original_config_and_index",
        f"{E}::test_a_container_gives_back_the_original_folder_byte_for_byte",
    ],
    40: ["tests/test_compress.py::test_every_scale_left_dense_has_its_reason"],
    41: [f"{P}::test_every_dialect_of_weight", f"{P}::test_weight_scale_2_has_nothing_to_do_with_weight_scale"],
    43: [
        "tests/test_compress.py::test_stacked_expert_tensors_are_left_alone",
        "tests/codec/test_reference.py::test_a_plane_of_exactly_the_most_scales",
        "tests/codec/test_reference.py::test_impossible_geometry",
    ],
    46: [
        "tests/test_compress.py::test_every_scale_left_dense_has_its_reason",
        f"{P}::test_a_two_dimensional_mxfp4_stream_does_not_tell_its_columns",
    ],
    50: [f"{I}::test_killed_at_every_step", f"{I}::test_killed_again_and_again"],
    51: [f"{I}::test_another_revision_of_the_source_is_refused", f"{I}::test_other_options_are_refused"],
    53: [
        "tests/write/test_consume.py::test_killed_at_any_step_it_goes_on_from_what_is_left",
        "tests/write/test_consume.py::test_links_and_files_with_two_names_are_refused",
    ],
    54: [f"{E}::test_a_destination_inside_the_source_is_refused", f"{E}::test_a_link_to_the_source_is_refused"],
    56: ["tests/test_memory.py::test_a_tensor_of_6_gib"],  # files past 4 GiB; locks of Windows are not tested
    57: [
        "tests/checkpoint/test_writer.py::test_a_system_that_writes_little_at_a_time",
        "tests/checkpoint/test_writer.py::test_no_call_writes_more_than_a_chunk",
        "tests/checkpoint/test_files.py::test_no_call_asks_for_more_than_a_chunk",
    ],
    58: ["tests/checkpoint/test_files.py::test_nothing_is_mapped"],
    62: [
        "tests/checkpoint/test_hub.py::test_all_of_a_run_is_one_commit",
        "tests/checkpoint/test_hub.py::test_a_refusal_is_one_line_with_its_remedy",
    ],
    63: [
        "tests/checkpoint/test_hub.py::test_a_header_takes_two_ranges_of_exactly_its_bytes",
        "tests/test_hub_commands.py::test_only_scales_are_fetched",
        "tests/test_hub_commands.py::test_no_more_shards_are_on_the_disk_than_jobs",
    ],
    64: ["tests/test_memory.py::test_a_tensor_of_6_gib"],
    65: ["tests/test_memory.py::test_a_large_tensor_that_is_hashed"],
    66: ["tests/test_memory.py::test_drop_cache_leaves_next_to_nothing_in_the_page_cache"],
    67: [f"{D}::test_neighbours_are_read_together_and_planes_stand_between"],
    69: [f"{L}::test_many_names_take_little_time_and_no_quadratic_step"],
    70: [
        f"{I}::test_all_parts_at_once",
        f"{I}::test_one_part_twice_at_once",
        "tests/running/test_cluster.py::test_parts_by_themselves_and_finish",
    ],
    72: [f"{E}::test_a_container_gives_back_the_original_folder_byte_for_byte"],
    73: [
        f"{P}::test_a_one_dimensional_stream_with_nothing_beside_it_has_no_geometry",
        f"{P}::test_the_weight_contradicts_the_stream",
    ],
    74: [
        f"{L}::test_a_home_made_container_with_the_sources_index_at_the_root",
        "tests/checkpoint/test_container.py::test_without_receipts_it_is_said_that_the_source_cannot_be_proved",
        f"{E}::test_a_container_without_receipts_is_expanded_to_an_ordinary_checkpoint",
    ],
    76: [f"{E}::test_no_trace_of_csf_is_left"],
    78: [
        "tests/checkpoint/test_container.py::test_one_changed_field_is_reported",
        f"{E}::test_a_shard_that_is_not_the_original_never_gets_its_name",
    ],
    79: [
        f"{P}::test_a_fixed_stream_alone",
        f"{P}::test_an_exception_list_alone",
        f"{P}::test_a_scale_that_is_stored_dense_as_well",
        f"{D}::test_exceptions_before_fixed_and_a_pair_split_over_shards",
        f"{D}::test_a_contract_says_which_shard_a_split_plane_belongs_to",
    ],
    80: [
        "tests/codec/test_reference.py::test_broken_streams_are_named",
        "tests/codec/test_reference.py::test_exception_words_are_read_unsigned_and_little_endian_at_any_offset",
        f"{P}::test_an_exception_list_of_the_wrong_kind",
        f"{E}::test_broken_streams_are_refused",
    ],
    81: ["tests/test_compress.py::test_keep_larger_forces_planes_that_grow"],
    82: ["tests/codec/test_reference.py::test_every_row_has_the_lowest_best_base"],
}  # fmt: skip

CASES = [
    1, 2, 3, 6, 7, 9, 10, 11, 12, 13, 15, 16, 17, 19, 20, 23, 24, 25, 26, 27, 28, 29, 31, 34, 36, 37, 38, 39, 40, 41,
    42, 43, 44, 46, 47, 48, 50, 51, 52, 53, 54, 56, 57, 58, 59, 62, 63, 64, 65, 66, 67, 68, 69, 70, 71, 72, 73, 74, 75,
    76, 78, 79, 80, 81, 82, 84, 87, 88,
]  # fmt: skip


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_case_has_a_test() -> None:
    root = Path(__file__).parent.parent
    here = [re.match(r"test_case_((?:\d+_)+)", name) for name in functions_of(Path(__file__))]
    own = {int(number) for match in here if match for number in match[1].rstrip("_").split("_")}
    named = [test.split("::") for tests in COVERED.values() for test in tests]
    assert [test for path, test in named if test not in functions_of(root / path)] == []
    assert sorted({*own, *COVERED}) == CASES
