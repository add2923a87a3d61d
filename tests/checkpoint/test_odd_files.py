"""Files that are no files, and lists that point outside."""

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.published import published_hashes
from csf_tool.disk.json_files import load_json
from csf_tool.errors import CheckpointError
from tests.commands import run
from tests.fixture_types import Copied


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX pipes")
@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json"])
def test_a_pipe_is_not_waited_for(copied: Copied, name: str) -> None:
    folder = copied("nvfp4-csf-hf")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert any(p.file == name and "a pipe or a device" in p.problem for p in open_checkpoint(folder).problems)


@pytest.mark.skipif(not Path("/proc/version").is_file(), reason="a file that the system makes while it is read")
@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json", "README.md", "more/code.py"])
def test_a_file_of_no_size_is_empty_only_if_nothing_can_be_read_from_it(
    copied: Copied, tmp_path: Path, name: str
) -> None:
    folder, reference = copied("nvfp4-csf-hf"), copied("nvfp4-csf-hf", "reference")
    for root in (folder, reference):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).unlink(missing_ok=True)
        (root / name).write_bytes(b"")
    (folder / name).unlink()
    (folder / name).symlink_to("/proc/version")
    said = "has no bytes by its size, but content"
    for more in (["--dry-run"], []):
        result = run("expand", folder, tmp_path / "out", *more)
        assert (result.exit_code, f"{name}: {said}" in result.output) == (1, True), result.output
    verified = run("verify", folder, "--against", reference)
    assert (verified.exit_code, said in verified.output) == (1, True), verified.output
    hashed = run("verify", folder, "--save-hashes", tmp_path / "hashes")
    assert (hashed.exit_code, (tmp_path / "hashes").exists()) == (1, False), hashed.output


def test_a_container_whose_manifest_is_damaged_is_not_passed_over_in_silence(copied: Copied) -> None:
    """One layout downloaded over the other, and the manifest cut short."""
    folder, container = copied("nvfp4-csf-hf"), copied("nvfp4-csf-container")
    shutil.copytree(container / "tensors", folder / "tensors")
    (folder / "manifest.json").write_bytes((container / "manifest.json").read_bytes()[:100])
    checkpoint = open_checkpoint(folder)
    assert checkpoint.layout.name == "hf"
    [problem] = [p for p in checkpoint.problems if p.file == "manifest.json"]
    assert problem.problem.startswith("cannot be read, so csf-tool reads the folder as a Hugging Face checkpoint")


def test_the_manifest_of_another_tool_is_nothing_to_speak_of(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    (folder / "manifest.json").write_text('{"name": "something else"}')
    assert open_checkpoint(folder).problems == []


def test_a_folder_is_no_json_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a file"):
        load_json(tmp_path, "config.json")


def test_a_sums_file_does_not_lead_out_of_the_folder(copied: Copied, tmp_path: Path) -> None:
    folder = copied("nvfp4-csf-hf")
    (tmp_path / "secret").write_text("x")
    digest = hashlib.sha256(b"x").hexdigest()
    outside = ["../secret", str(tmp_path / "secret"), "a/../../secret"]
    (folder / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name in [*outside, "config.json"]))
    assert [entry.file for entry in published_hashes(open_checkpoint(folder))] == ["config.json"]
