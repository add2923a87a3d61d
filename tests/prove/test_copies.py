"""Copies held against the first: lists of hashes, and what two checkpoints have in common."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

from csf_tool.checkpoint.downloads import NOTES
from tests.building import change_json, mini_container, mini_hf, overwrite, sha256, shard_name, span, tree
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
    says(good, "the stored bytes are as listed in first.sha256 (5 files", "VERIFIED AS LISTED in first.sha256;")
    says(
        good, "Not proved: that the stored bytes are the published ones (first.sha256 is a list that you gave; it says"
    )
    size = (copy / TWO).stat().st_size
    (copy / TWO).write_bytes((copy / TWO).read_bytes()[:-10])
    quick = run("verify", copy, "--manifest", manifest, "--quick")
    assert quick.exit_code == 1
    says(quick, f"{TWO}: is {size - 10} bytes long, but first.sha256 has {size}")
    (copy / TWO).unlink()
    says(run("verify", copy, "--manifest", manifest, "--quick"), f"{TWO}: is missing, but first.sha256 lists it")


def test_quick_calls_itself_sizes_only_and_misses_what_deep_finds(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in", 3)
    manifest = saved(root, tmp_path / "list")
    begin, _ = span(root / TWO, "model.layers.1.norm.weight")
    overwrite(root / TWO, begin, b"\x55\x55")
    quick = run("verify", root, "--manifest", manifest, "--quick")
    assert quick.exit_code == 0
    says(
        quick,
        "NO FAULT FOUND in headers and sizes; no data was read.",
        "sizes of 5 files, compared with list; --quick reads no",
    )
    deep = run("verify", root, "--manifest", manifest)
    assert deep.exit_code == 1
    says(deep, f"{TWO}: sha256 is ", ", expected ")


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
        says(quick, f"presence of {len(files)} files without a size, compared with sums")
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
    says(result, f"list: is a list of revision {'a' * 40}, but {other} is of {'c' * 40}")
    (tmp_path / "far").write_text(f"{'0' * 64}  model-00001-of-00099.safetensors\n")
    result = run("verify", good, "--manifest", tmp_path / "far")
    assert result.exit_code == 2
    says(result, "far: none of the 1 files that it lists is in")
    (tmp_path / "empty").write_text("nothing\n")
    assert run("verify", good, "--manifest", tmp_path / "empty").exit_code == 2
    assert run("verify", good, "--manifest", tmp_path / "nowhere").exit_code == 2


def test_no_list_is_saved_of_a_faulty_checkpoint_nor_over_a_file(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    shard = root / "tensors" / shard_name(1, 2)
    overwrite(shard, shard.stat().st_size - 1, bytes([shard.read_bytes()[-1] ^ 1]))
    result = run("verify", root, "--save-hashes", tmp_path / "list")
    assert (result.exit_code, (tmp_path / "list").exists()) == (1, False)
    says(result, "list was not written, because a check failed")
    (tmp_path / "list").write_text("mine")
    assert run("verify", root, "--save-hashes", tmp_path / "list").exit_code == 2
    assert (tmp_path / "list").read_text() == "mine"


def kinds_of_copies(folder: Path) -> dict[str, Path]:
    """The same files as they come from the Hub, into a cache and into a folder, with sums, and with nothing."""
    good = mini_hf(folder / "in")
    copies = {name: Path(shutil.copytree(good, folder / name)) for name in ("bare", "sums", "partly noted")}
    names = sorted(path.name for path in good.iterdir())
    (copies["sums"] / "SHA256SUMS").write_text("".join(f"{sha256((good / n).read_bytes())}  {n}\n" for n in names))
    hf_download(copies["partly noted"])
    (copies["partly noted"] / NOTES / f"{shard_name(1, 2)}.metadata").unlink()
    return {**copies, "cache": hub_cache(good, folder / "cache"), "download": hf_download(good)}


def test_the_same_files_have_one_identity_by_digests_and_one_by_sizes(tmp_path: Path) -> None:
    """However they came: a kind that records no hashes is refused, not given an identity of another kind."""
    copies = kinds_of_copies(tmp_path)
    by_default = {name: run("identity", root) for name, root in copies.items()}
    known = {name: result.stdout for name, result in by_default.items() if result.exit_code == 0}
    assert known.keys() == {"sums", "cache", "download"}
    for name in ("bare", "partly noted"):
        assert (by_default[name].exit_code, by_default[name].stdout) == (2, "")
        says(by_default[name], "no SHA-256 is recorded for", f"{shard_name(1, 2)}: --hash reads every byte")
    hashed = {run("identity", root, "--hash").stdout for root in copies.values()}
    assert hashed == set(known.values())
    assert hashed.pop().endswith("  digests\n")
    [by_size] = {run("identity", root, "--by", "sizes").stdout for root in copies.values()}
    assert by_size.endswith("  sizes\n")
    assert by_size.split()[0] != known["cache"].split()[0]
    says(run("identity", copies["bare"], "--by", "sizes"), "size-based: other bytes of the same size have the")
    assert run("identity", copies["bare"], "--by", "sizes", "--hash").exit_code == 2


def test_records_that_do_not_fit_are_told(tmp_path: Path) -> None:
    copies = kinds_of_copies(tmp_path)
    download, one = copies["download"], shard_name(1, 2)
    (download / NOTES / f"{one}.metadata").write_text(f"{'1' * 40}\n{'c' * 64}\n1.0\n")
    hashed = run("identity", download, "--hash")
    assert hashed.stdout == run("identity", copies["cache"]).stdout
    says(hashed, f"warning: {one}: sha256 is ", f", expected {'c' * 64} (the hash that hf download recorded)")
    shutil.copy(copies["sums"] / "SHA256SUMS", download)
    told = run("identity", download)
    assert (told.exit_code, told.stdout) == (1, "")
    says(told, f"{one}: its SHA-256 is ", " (SHA256SUMS, line 2), but also ccc")


def test_the_identity_of_a_container_is_that_of_its_manifest_and_can_be_checked(tmp_path: Path) -> None:
    root = mini_container(tmp_path)
    good = run("identity", root)
    assert good.stdout.endswith("  manifest\n")
    assert run("identity", root, "--hash").stdout == good.stdout
    assert run("identity", root, "--by", "sizes").exit_code == 2
    shard = root / "tensors" / shard_name(1, 2)
    overwrite(shard, shard.stat().st_size - 1, bytes([shard.read_bytes()[-1] ^ 1]))
    hashed = run("identity", root, "--hash")
    assert (hashed.exit_code, hashed.stdout) == (1, "")
    says(hashed, "sha256 is ", ", expected ", "(target_sha256)")
    change_json(root / "manifest.json", lambda manifest: [row.pop("target_sha256") for row in manifest["shards"]])
    says(run("identity", root), "warning: manifest.json: has no SHA-256 of 2 shards, for example")
