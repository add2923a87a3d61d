"""What verify says to do next: files to download again, and what would prove more."""

import shutil
from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.prove.next_steps import known_download
from tests.building import mini_container, mini_dense, mini_hf, shard_name
from tests.commands import run, says

ONE, TWO = shard_name(1, 2), shard_name(2, 2)


def damaged(shard: Path) -> None:
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)


def steps(output: str) -> list[str]:
    """The lines after the statements."""
    lines = output.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith(("Proved", "Not proved", "Nothing")))
    return lines[last + 1 :]


def test_damaged_and_missing_files_are_to_be_downloaded_again(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "root")
    damaged(root / "tensors" / ONE)
    (root / "tensors" / TWO).unlink()
    result = run("verify", root)
    assert result.exit_code == 1
    [line] = steps(result.stdout)
    assert line.startswith("Download again: ")
    says(result, f", tensors/{ONE}, tensors/{TWO}, ")


def test_the_command_is_given_where_the_origin_is_known(tmp_path: Path) -> None:
    commit = "0123456789" * 4
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    mini_container(snapshot)
    damaged(snapshot / "tensors" / ONE)
    command = (
        f"  hf download org/name tensors/{ONE} --revision {commit} --cache-dir {tmp_path / 'hub'} --force-download"
    )
    assert steps(run("verify", snapshot).stdout) == [f"Download again: tensors/{ONE}", command]


def test_the_repository_that_hashes_were_asked_of_is_an_origin(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "a b")
    found = known_download(open_checkpoint(root), "org/name@v1")
    assert found
    assert found.command(["x.safetensors", "y z"]) == (
        f"hf download org/name x.safetensors 'y z' --revision v1 --local-dir '{root}' --force-download"
    )
    assert known_download(open_checkpoint(root)) is None


def test_what_no_download_mends_is_not_to_be_downloaded(tmp_path: Path) -> None:
    """Faults of the reference, files that it lacks, and a second copy of a shard; but what is missing here is."""
    root, dense = mini_hf(tmp_path / "root"), mini_dense(tmp_path / "dense")
    (root / "more.py").write_text("pass")
    (dense / ONE).unlink()
    result = run("verify", root, "--against", dense)
    assert result.exit_code == 1
    assert steps(result.stdout) == []
    (root / "more.py").unlink()
    dense = mini_dense(tmp_path / "dense2")
    (dense / "tokenizer.json").write_text("{}")
    assert steps(run("verify", root, "--against", dense).stdout) == ["Download again: tokenizer.json"]


def test_published_files_are_not_to_be_downloaded_again(tmp_path: Path) -> None:
    root, dense = mini_container(tmp_path / "root"), mini_dense(tmp_path / "dense")
    shutil.copy(dense / TWO, dense / "x.safetensors")
    damaged(dense / ONE)
    result = run("verify", root, "--against", dense)
    assert result.exit_code == 1
    says(result, "FAILED: against.")
    assert not any(line.startswith("Download again") for line in steps(result.stdout))


@pytest.mark.parametrize(
    ("words", "proposed"),
    [
        ([], "--against DENSE, or --hub ORG/NAME"),
        (["--only", ONE], "--against DENSE, or --hub ORG/NAME, or the same without --only"),
        (["--quick"], "the same without --quick"),
    ],
)
def test_what_would_prove_more(tmp_path: Path, words: list[str], proposed: str) -> None:
    result = run("verify", mini_hf(tmp_path / "root"), *words)
    assert steps(result.stdout) == [f"To prove more: {proposed}"]


def test_a_checkpoint_that_is_proved_needs_nothing_more(tmp_path: Path) -> None:
    root, dense = mini_container(tmp_path / "root"), mini_dense(tmp_path / "dense")
    assert steps(run("verify", root).stdout) == []
    assert steps(run("verify", mini_hf(tmp_path / "hf"), "--against", dense).stdout) == [
        "To prove more: --hub ORG/NAME"
    ]
