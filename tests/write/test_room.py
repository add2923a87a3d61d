"""The check for room before a run, what it counts, and how to go on without it."""

import shutil
from pathlib import Path

import pytest

from tests.building import mini_container, mini_dense, mini_hf
from tests.commands import run, says


def test_the_room_check_can_be_overridden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, dense = mini_hf(tmp_path / "in"), mini_dense(tmp_path / "dense")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    result = run("expand", root, tmp_path / "out")
    assert (result.exit_code, (tmp_path / "out").exists()) == (3, False)
    says(result, "not enough disk space: ", " needed, 10 B free, ", "(--ignore-space overrides)")
    for line in (
        ("expand", root, tmp_path / "out"),
        ("compress", dense, tmp_path / "csf", "--keep-larger"),
        ("convert", root, tmp_path / "container", "--to", "container"),
    ):
        assert run(*line, "--ignore-space").exit_code == 0


def test_what_is_linked_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that do not change are hard links: room for the small files is enough."""
    root = mini_container(tmp_path / "in")
    assert run("convert", root, tmp_path / "hf", "--to", "hf").exit_code == 0
    usage = shutil.disk_usage(tmp_path)
    shards = sum(p.stat().st_size for p in (tmp_path / "hf").glob("*.safetensors"))
    small = sum(p.stat().st_size for p in (tmp_path / "hf").iterdir()) - shards
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=small))
    assert run("convert", root, tmp_path / "copied", "--to", "hf").exit_code == 3
    assert run("convert", root, tmp_path / "linked", "--to", "hf", "--link").exit_code == 0
