"""What downloads leave behind, and what only looks like it."""

from pathlib import Path

import pytest

from csf_tool.checkpoint.downloads import unfinished_downloads
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.errors import CheckpointError
from csf_tool.write.destination import Destination
from csf_tool.write.journal import Journal
from csf_tool.write.run import Run
from tests.building import NVFP4, layer, shard_bytes


@pytest.mark.parametrize(
    "name",
    ["x.safetensors.incomplete", "x.safetensors.aria2", "x.part", "x.partial", "x.crdownload", ".x.safetensors.Ab12Cd"],
)
def test_what_downloaders_have_not_finished(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert unfinished_downloads(tmp_path) == [tmp_path / name]


SHARD = shard_bytes(layer(0, NVFP4))
CUTS = {"in its header": SHARD[:100], "in its data": SHARD[:-9], "never filled": bytes(len(SHARD))}


@pytest.mark.parametrize("content", CUTS.values(), ids=CUTS.keys())
@pytest.mark.parametrize("ending", ["xltd", "downloading", "filepart", "!qB", "opdownload", "tmp", "1", "part2"])
def test_the_beginning_of_a_shard_under_whatever_ending(tmp_path: Path, ending: str, content: bytes) -> None:
    file = tmp_path / f"model-00002-of-00002.safetensors.{ending}"
    file.write_bytes(content)
    assert unfinished_downloads(tmp_path) == [file]


def test_what_lies_beside_a_shard_and_is_none(tmp_path: Path) -> None:
    name = "model.safetensors"
    (tmp_path / name).write_bytes(SHARD[:-9])  # said of the shard itself
    contents = {
        "bak": SHARD,
        "lock": b"",
        "sha256": b"0" * 64,
        "sig": bytes(range(64)),
        "json": b"{}",
        "index.json": b"{}",
    }
    for ending, content in contents.items():
        (tmp_path / f"{name}.{ending}").write_bytes(content)
    (tmp_path / f"{name}.d").mkdir()
    assert unfinished_downloads(tmp_path) == []


def test_what_modelscope_has_not_finished(tmp_path: Path) -> None:
    inside = tmp_path / "._____temp" / "model.safetensors"
    inside.parent.mkdir()
    inside.write_bytes(SHARD[:-9])
    assert unfinished_downloads(tmp_path) == [inside]
    with pytest.raises(CheckpointError, match=r"an incomplete download \(1 unfinished file, model.safetensors\)"):
        open_checkpoint(tmp_path)


def test_what_csf_tool_has_not_finished_is_no_download(tmp_path: Path) -> None:
    """An interrupted run has a journal, and a warning, of its own: to download again would be the wrong advice."""
    with Destination(tmp_path).create("model.safetensors"):
        assert [path.suffix for path in tmp_path.iterdir()] == [".partial"]
        assert unfinished_downloads(tmp_path) == []


def test_a_run_that_has_finished_no_shard_yet_is_to_go_on(tmp_path: Path) -> None:
    Journal.open(tmp_path, Run("expand", "the source", {}))
    with Destination(tmp_path).create("model.safetensors"), pytest.raises(CheckpointError) as refused:
        open_checkpoint(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path}: a csf-tool run into this folder is not finished, and has written no shard yet: "
        "run the same command again"
    )
