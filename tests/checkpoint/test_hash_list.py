"""Lists of hashes: what is written is read again, and no name or number in one does harm."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from csf_tool.checkpoint.hash_list import read_hash_list
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.published import hash_list
from csf_tool.errors import UsageError
from tests.building import mini_hf, sha256

DIGEST = "a" * 64


def listed(folder: Path, text: str) -> dict[str, str]:
    (folder / "list").write_text(text)
    return read_hash_list(folder / "list").digests


def test_a_size_of_more_digits_than_any_number_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "list").write_text(f"# size: {'9' * 5000} x\n# size: 12 y\n{DIGEST}  x\n{DIGEST}  y\n")
    assert read_hash_list(tmp_path / "list").sizes == {"y": 12}


def test_a_text_without_a_line_of_sha256sums_is_no_list(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="which is not a SHA-256 with a file name; csf-tool reads what sha256sum"):
        listed(tmp_path, f"{DIGEST[1:]}  x\n")
    with pytest.raises(UsageError, match=r"line 1: file name '\.\./x' leaves the checkpoint's folder"):
        listed(tmp_path, f"{DIGEST}  ../x\n")


@pytest.mark.skipif(sys.platform != "linux", reason="names that other systems refuse")
@pytest.mark.parametrize(
    "name",
    [f"x\n{DIGEST}  config.json", "x\u2028y", "x\r", "x ", "a:b", "a\\b", os.fsdecode(b"caf\xe9.txt")],
    ids=ascii,
)
def test_a_name_that_no_line_can_hold_is_left_out_and_that_is_said(tmp_path: Path, name: str) -> None:
    """A file's name could pass for a line of its own, with any hash for any file."""
    root = mini_hf(tmp_path / "c")
    expected = {path.name: sha256(path.read_bytes()) for path in root.iterdir()}
    (root / name).write_text("x")
    (root / "café.txt").write_text("y")
    made = hash_list(open_checkpoint(root), "list", {})
    (tmp_path / "list").write_text(made.render(), "utf-8")
    assert read_hash_list(tmp_path / "list").digests == expected | {"café.txt": sha256(b"y")}
    [said] = [line for line in made.render().splitlines() if line.startswith("# left out")]
    assert said.isprintable()


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="no sha256sum here")
def test_sha256sum_reads_our_lists(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "c")
    (root / "with space.txt").write_text("x")
    (tmp_path / "list").write_text(hash_list(open_checkpoint(root), "list", {}).render())
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", tmp_path / "list"], cwd=root, check=True)
    (root / "with space.txt").write_text("y")
    done = subprocess.run(["sha256sum", "--check", "--quiet", tmp_path / "list"], cwd=root, capture_output=True)
    assert done.returncode == 1
