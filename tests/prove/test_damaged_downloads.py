"""What downloads and copies do to files: zeros, missing ends, leftovers, links that lead nowhere."""

import shutil
from pathlib import Path

import pytest

from tests.building import (
    NVFP4,
    Tensor,
    compressed,
    mini_hf,
    model,
    overwrite,
    shard_name,
    span,
    write_hf,
    write_json,
)
from tests.commands import run, says
from tests.downloads import hub_cache

ONE, TWO = (shard_name(i, 3) for i in (1, 2))


def test_zeroed_tensors_in_a_cache_are_found_by_the_blobs_name_and_by_their_zeros(tmp_path: Path) -> None:
    snapshot = hub_cache(mini_hf(tmp_path / "good"), tmp_path)
    damaged = [(snapshot / shard_name(i + 1, 2), f"model.layers.{i}.mlp.experts.0.down_proj.weight") for i in (0, 1)]
    for path, name in damaged:
        begin, end = span(path, name)
        overwrite(path.resolve(), begin, bytes(end - begin))
    result = run("verify", snapshot)
    assert result.exit_code == 1
    (path, name), (other, _) = damaged
    zero = f"{path.name}: {name}: weight tensor is entirely zero: a failed download can look like this"
    says(result, zero, f"{path.name}: sha256 is ", "(the blob's name in the Hub cache)")
    assert result.output.count(f"; and 1 more like it, in {other.name}\n") == 2
    bare = Path(shutil.copytree(snapshot, tmp_path / "bare"))
    result = run("verify", bare)
    assert result.exit_code == 0  # without a digest it may be meant, and is no more than a warning
    says(result, "weight tensor is entirely zero", "NO FAULT FOUND, but nothing to compare with")


def test_a_shard_shorter_than_its_header_is_refused_by_every_command(tmp_path: Path) -> None:
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
        says(result, f"model-cut.safetensors: the file has {size - 100} bytes, but its header needs {size}", lost)
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
def test_an_unfinished_download_beside_shards_that_look_complete(tmp_path: Path, leftover: str) -> None:
    root = hub_cache(mini_hf(tmp_path / "in", 3), tmp_path / "cache")
    (root / leftover).parent.mkdir(parents=True, exist_ok=True)
    (root / leftover).write_bytes(b"x")
    text = f"{Path(leftover).name}: is left over from an unfinished download or copy"
    for command in ("stats", "verify"):
        result = run(command, root)
        assert result.exit_code == 0
        says(result, text)
    (root / TWO).resolve().write_bytes((root / TWO).read_bytes()[:50])
    assert run("verify", root).exit_code == 1


def test_an_unfinished_run_of_csf_tool_itself(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    write_json(root / ".csf-tool" / "journal.json", {})
    says(run("stats", root), ".csf-tool: a csf-tool run into this folder is not finished: run the same command again")


def test_a_dangling_a_valid_and_an_empty_link(tmp_path: Path) -> None:
    snapshot = hub_cache(mini_hf(tmp_path / "in", 3), tmp_path)
    (snapshot / ONE).resolve().unlink()
    (snapshot / TWO).resolve().write_bytes(b"")
    result = run("verify", snapshot)
    assert result.exit_code == 1
    says(result, f"{ONE}: the Hub cache has 2 of 3 shards and lacks {ONE}: `hf download")
    says(result, f"{TWO}: has 0 bytes, too few")
