"""Copies held against the first: lists of hashes, and what two checkpoints have in common."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.building import mini_container, mini_hf, overwrite, sha256, shard_name, span, tree
from tests.commands import run, says
from tests.downloads import hf_download, hub_cache

TWO = shard_name(2, 3)


def saved(root: Path, to: Path) -> Path:
    assert run("verify", root, "--save-hashes", to).exit_code == 0
    return to


def test_a_copy_is_held_against_a_list_saved_from_the_first(tmp_path: Path) -> None:
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


def test_quick_calls_itself_sizes_only_and_misses_what_deep_finds(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in", 3)
    manifest = saved(root, tmp_path / "list")
    begin, _ = span(root / TWO, "model.layers.1.norm.weight")
    overwrite(root / TWO, begin, b"\x55\x55")
    quick = run("verify", root, "--manifest", manifest, "--quick")
    assert quick.exit_code == 0
    says(quick, "NO FAULT FOUND in headers and sizes; no data was read.", "sizes of 5 files by list; --quick reads no")
    deep = run("verify", root, "--manifest", manifest)
    assert deep.exit_code == 1
    says(deep, f"{TWO}: sha256 is ", "list says ")


def test_lists_are_those_of_sha256sum(tmp_path: Path) -> None:
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
def test_sha256sum_reads_our_lists(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in")
    manifest = saved(root, tmp_path / "list")
    check = ["sha256sum", "--check", "--strict", "--quiet", str(manifest)]
    assert subprocess.run(check, cwd=root, capture_output=True, check=False).returncode == 0
    overwrite(root / "config.json", 1, b" ")
    assert subprocess.run(check, cwd=root, capture_output=True, check=False).returncode == 1


def test_a_list_of_something_else_is_wrong_usage(tmp_path: Path) -> None:
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


def test_no_list_is_saved_of_a_faulty_checkpoint_nor_over_a_file(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    shard = root / "tensors" / shard_name(1, 2)
    overwrite(shard, shard.stat().st_size - 1, bytes([shard.read_bytes()[-1] ^ 1]))
    result = run("verify", root, "--save-hashes", tmp_path / "list")
    assert (result.exit_code, (tmp_path / "list").exists()) == (1, False)
    says(result, "list is not written: a check failed")
    (tmp_path / "list").write_text("mine")
    assert run("verify", root, "--save-hashes", tmp_path / "list").exit_code == 2
    assert (tmp_path / "list").read_text() == "mine"


def test_identity_of_a_download_a_cache_and_a_bare_copy(tmp_path: Path) -> None:
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
