"""What downloads leave behind, and what only looks like it."""

from pathlib import Path

import pytest

from csf_tool.checkpoint.downloads import unfinished_downloads
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.errors import CheckpointError
from csf_tool.write.destination import Destination
from csf_tool.write.journal import Journal
from csf_tool.write.run import Run


@pytest.mark.parametrize(
    "name",
    ["x.safetensors.incomplete", "x.safetensors.aria2", "x.part", "x.partial", "x.crdownload", ".x.safetensors.Ab12Cd"],
)
def test_what_downloaders_have_not_finished(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    assert unfinished_downloads(tmp_path) == [tmp_path / name]


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
        f"{tmp_path}: a csf-tool run into this folder is not finished, and no shard is there yet: "
        "run the same command again"
    )
