"""expand --adopt: files that lie in the destination already, good ones and wrong ones."""

import shutil
from pathlib import Path

from tests.building import GATE, mini_container, mini_dense, mini_hf, overwrite, shard_name, span, tree
from tests.commands import run, says

ONE, TWO, THREE = (shard_name(i, 3) for i in (1, 2, 3))


def test_a_rollback_takes_what_is_there_already(tmp_path: Path) -> None:
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
    says(wrong, f"{there / TWO}: does not belong there: remove the wrong files, and run the command again")
    (there / TWO).unlink()
    kept = (there / ONE).stat().st_mtime_ns
    assert run("expand", root, there, "--adopt").exit_code == 0
    assert (there / ONE).stat().st_mtime_ns == kept
    assert {n: d for n, d in tree(there).items() if n.endswith(".safetensors")} == {
        name: (original / name).read_bytes() for name in (ONE, TWO, THREE)
    }


def test_without_original_hashes_the_bytes_are_compared(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in", 3)
    assert run("expand", root, tmp_path / "out").exit_code == 0
    expected = tree(tmp_path / "out")
    (tmp_path / "out" / TWO).unlink()
    says(
        run("expand", root, tmp_path / "out", "--adopt"), "Kept 4 files that were already there, after comparing each."
    )
    assert tree(tmp_path / "out") == expected
    begin, _ = span(tmp_path / "out" / ONE, f"{GATE}.weight")
    overwrite(tmp_path / "out" / ONE, begin, bytes([expected[ONE][begin] ^ 1]))
    assert run("expand", root, tmp_path / "out", "--adopt").exit_code == 2
    shutil.rmtree(tmp_path / "out" / ".csf-tool")
    (tmp_path / "out" / "mine.txt").write_text("x")
    foreign = run("expand", root, tmp_path / "out", "--adopt")
    assert foreign.exit_code == 2
    says(foreign, "contains mine.txt, which is not a file of the result")
