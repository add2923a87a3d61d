"""Hashes that somebody published: container rows, SHA256SUMS, blob names, what hf download recorded."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from csf_tool.checkpoint.downloads import NOTES
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.published import damaged_evidence, download_commits, published_hashes
from csf_tool.disk.hashing import PublishedHash, hash_file
from csf_tool.errors import CheckpointError
from tests.building import change_json, git_sha1, home_made, mini_container, mini_hf, sha256, shard_name
from tests.downloads import hub_cache

ONE, TWO = shard_name(1, 2), shard_name(2, 2)


def found(path: Path) -> list[PublishedHash]:
    return published_hashes(open_checkpoint(path))


def test_a_bare_checkpoint_has_none(tmp_path: Path) -> None:
    assert found(mini_hf(tmp_path)) == []


def test_a_containers_manifest_gives_those_of_shards_and_metadata(tmp_path: Path) -> None:
    root = mini_container(tmp_path)
    assert [(h.file, h.algorithm, h.evidence) for h in found(root)] == [
        (f"tensors/{ONE}", "sha256", "target_sha256"),
        (f"tensors/{TWO}", "sha256", "target_sha256"),
        ("metadata/config.json", "sha256", "metadata_sha256"),
        ("metadata/model.safetensors.index.json", "sha256", "metadata_sha256"),
    ]
    assert all(h.digest == sha256((root / h.file).read_bytes()) for h in found(root))


def test_metadata_at_the_root_of_a_home_made_container(tmp_path: Path) -> None:
    root = home_made(tmp_path)
    assert [h.file for h in found(root)] == [
        f"tensors/{ONE}", f"tensors/{TWO}", "config.json", "model.safetensors.index.json"
    ]  # fmt: skip


def test_rows_without_a_hash_give_none(tmp_path: Path) -> None:
    root = home_made(tmp_path)
    change_json(root / "manifest.json", lambda m: [row.pop("target_sha256") for row in m["shards"]])
    assert [h.evidence for h in found(root)] == ["metadata_sha256"] * 2


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.txt", "sha256sums.txt", "sha256sum.txt"])
def test_a_sums_file_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    (mini_hf(tmp_path) / name).write_text(f"{'a' * 64}  {ONE}\n")
    assert PublishedHash(ONE, "sha256", "a" * 64, name) in found(tmp_path)


def test_lines_of_a_sums_file(tmp_path: Path) -> None:
    lines = [
        f"{'a' * 64}  {ONE}",
        f"{'B' * 64} *{TWO}\r",
        f"{'c' * 64}  ./tensors/with space.safetensors",
        "# a comment",
        "",
        f"{'d' * 63}  short.safetensors",
        f"{'e' * 64}",
        f"{'f' * 64} one-space.safetensors",
    ]
    (mini_hf(tmp_path) / "SHA256SUMS").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    assert found(tmp_path) == [
        PublishedHash(ONE, "sha256", "a" * 64, "SHA256SUMS"),
        PublishedHash(TWO, "sha256", "b" * 64, "SHA256SUMS"),
        PublishedHash("tensors/with space.safetensors", "sha256", "c" * 64, "SHA256SUMS"),
    ]


def test_the_names_of_blobs_in_a_hub_cache(tmp_path: Path) -> None:
    snapshot = hub_cache(mini_hf(tmp_path / "plain"), tmp_path)
    evidence = "the blob's name in the Hub cache"
    assert [(h.file, h.algorithm, h.evidence) for h in found(snapshot)] == [
        ("config.json", "git-sha1", evidence),
        (ONE, "sha256", evidence),
        (TWO, "sha256", evidence),
        ("model.safetensors.index.json", "git-sha1", evidence),
    ]
    for entry in found(snapshot):
        digests = hash_file(snapshot / entry.file, entry.file, {entry.algorithm}, lambda _: None)
        assert digests == {entry.algorithm: entry.digest}


def test_a_blob_of_the_right_size_with_a_run_of_zeros_differs_from_its_name(tmp_path: Path) -> None:
    snapshot = hub_cache(mini_hf(tmp_path / "plain"), tmp_path)
    blob = (snapshot / ONE).resolve()
    blob.write_bytes(blob.read_bytes()[:-900] + bytes(900))
    checkpoint = open_checkpoint(snapshot)
    assert checkpoint.problems == []
    [entry] = [h for h in published_hashes(checkpoint) if h.file == ONE]
    assert entry.digest == blob.name
    assert hash_file(snapshot / ONE, ONE, {"sha256"}, lambda _: None)["sha256"] != entry.digest


@pytest.mark.parametrize("target", ["../elsewhere/{}", "../../blobs/not-a-hash"])
def test_other_links_say_nothing(tmp_path: Path, target: str) -> None:
    root = mini_hf(tmp_path / "a" / "b")
    data = (root / ONE).read_bytes()
    place = (root / target.format(sha256(data))).resolve()
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(data)
    (root / ONE).unlink()
    (root / ONE).symlink_to(place)
    assert found(root) == []


def note(root: Path, name: str, commit: str, etag: str) -> None:
    """What `hf download --local-dir` writes beside the files: commit, ETag, time."""
    path = root / ".cache" / "huggingface" / "download" / f"{name}.metadata"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{commit}\n{etag}\n1764430000.5\n")


def test_the_hashes_that_a_download_recorded(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    note(root, ONE, "1" * 40, "a" * 64)
    note(root, "config.json", "1" * 40, "b" * 40)
    note(root, "gone.safetensors", "1" * 40, "c" * 64)
    evidence = "the hash that hf download recorded"
    assert found(root) == [
        PublishedHash("config.json", "git-sha1", "b" * 40, evidence),
        PublishedHash("gone.safetensors", "sha256", "c" * 64, evidence),
        PublishedHash(ONE, "sha256", "a" * 64, evidence),
    ]
    assert download_commits(open_checkpoint(root)) == {"1" * 40: ["config.json", ONE]}


def test_downloads_of_shards_in_folders(tmp_path: Path) -> None:
    root = mini_container(tmp_path)
    note(root, f"tensors/{TWO}", "1" * 40, "a" * 64)
    note(root, "metadata/config.json", "1" * 40, "b" * 40)
    note(root, f"receipts/{ONE}.json", "1" * 40, "c" * 40)
    recorded = [h for h in found(root) if h.evidence.startswith("the hash that")]
    assert [(h.file, h.digest) for h in recorded] == [
        ("metadata/config.json", "b" * 40),
        (f"receipts/{ONE}.json", "c" * 40),
        (f"tensors/{TWO}", "a" * 64),
    ]


def test_several_commits(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    note(root, ONE, "1" * 40, "a" * 64)
    note(root, TWO, "2" * 40, "a" * 64)
    assert download_commits(open_checkpoint(root)) == {"1" * 40: [ONE], "2" * 40: [TWO]}


@pytest.mark.parametrize("text", ["", "\n", "1111\n", "1111\nnot-a-hash\n0\n"])
def test_a_download_note_that_says_nothing(tmp_path: Path, text: str) -> None:
    root = mini_hf(tmp_path)
    note(root, ONE, "x", "y")
    (root / ".cache/huggingface/download" / f"{ONE}.metadata").write_text(text)
    assert found(root) == []


def test_a_single_file_is_not_judged_by_its_neighbours(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    note(root, ONE, "1" * 40, "a" * 64)
    note(root, TWO, "2" * 40, "b" * 64)
    assert [h.file for h in found(root / ONE)] == [ONE]


def test_both_algorithms_from_one_reading(tmp_path: Path) -> None:
    data = bytes(range(256)) * 3
    (tmp_path / "x").write_bytes(data)
    read: list[int] = []
    digests = hash_file(tmp_path / "x", "x", {"sha256", "git-sha1"}, read.append)
    assert digests == {"sha256": sha256(data), "git-sha1": git_sha1(data)}
    assert sum(read) == 768


def test_known_digests_of_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    assert hash_file(tmp_path / "x", "x", {"sha256", "git-sha1"}, lambda _: None) == {
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "git-sha1": "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    }


def test_a_file_that_is_cut_while_it_is_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(bytes(100))
    monkeypatch.setattr("csf_tool.disk.reader.CHUNK_BYTES", 10)

    def cut(_: int) -> None:
        os.truncate(tmp_path / "x", 50)

    with pytest.raises(CheckpointError, match="x: ends at byte 50"):
        hash_file(tmp_path / "x", "x", {"sha256"}, cut)


def test_files_that_are_gone_are_still_known_of(tmp_path: Path) -> None:
    """A note of `hf download`, or a link into the Hub cache, outlives its file; so does one in a folder below."""
    root = mini_hf(tmp_path / "noted")
    (root / "assets").mkdir()
    for name in ("tokenizer.json", "assets/chat.json"):
        note = root / NOTES / f"{name}.metadata"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{'1' * 40}\n{'a' * 40}\n1.0\n")
    (root / "assets" / "chat.json").write_text("{}")
    assert [h.file for h in found(root)] == ["assets/chat.json", "tokenizer.json"]
    snapshot = hub_cache(mini_hf(tmp_path / "plain"), tmp_path)
    (snapshot / "config.json").resolve().unlink()
    assert "config.json" in [h.file for h in found(snapshot)]


def test_the_index_hash_of_a_container_whose_metadata_hashes_leave_it_out(tmp_path: Path) -> None:
    root = mini_container(tmp_path)
    change_json(root / "manifest.json", lambda m: m["metadata_sha256"].pop("model.safetensors.index.json"))
    [entry] = [h for h in found(root) if h.evidence == "source_index_sha256"]
    assert entry.digest == sha256((root / entry.file).read_bytes())
    (root / entry.file).unlink()
    assert "source_index_sha256" not in [h.evidence for h in found(root)]


@pytest.mark.parametrize(
    ("line", "is_damaged"),
    [
        (f"{'a' * 64}  {ONE}", False),
        (f"{'a' * 63}g  {ONE}", True),
        (f"{'a' * 64}! {ONE}", True),
        ("a" * 40, True),
        ("\0" * 40, True),
        (f"{'a' * 64}  model-\0\0\0", True),
        ("# written by hand", False),
        (f"SHA256 ({ONE}) = {'a' * 64}", False),
        ("iQIzBAEBCAAdFiEEyHYsbJvF4uRLrJqZ3Wm1hQ7bT0sFAmXYZQkACgkQ3Wm1hQ7b", False),
        ("bed", False),
    ],
)
def test_a_line_of_a_sums_file_that_was_a_hash_once(tmp_path: Path, line: str, is_damaged: bool) -> None:
    (mini_hf(tmp_path) / "SHA256SUMS").write_text(f"# sums\n{line}\n")
    problems = damaged_evidence(open_checkpoint(tmp_path))
    wanted = ["SHA256SUMS: line 2 is damaged: it is not a hash and a file name"] if is_damaged else []
    assert [str(problem) for problem in problems] == wanted


@pytest.mark.parametrize("note", ["", "1" * 40, f"{'1' * 40}\n{'a' * 39}g\n1.0\n"])
def test_a_note_of_a_download_without_a_hash_is_a_warning(tmp_path: Path, note: str) -> None:
    path = mini_hf(tmp_path) / NOTES / f"{ONE}.metadata"
    path.parent.mkdir(parents=True)
    path.write_text(note)
    [problem] = damaged_evidence(open_checkpoint(tmp_path))
    assert (problem.file, problem.severity.value) == (ONE, "warning")


def test_links_to_the_files_of_a_snapshot_lead_to_its_blobs(tmp_path: Path) -> None:
    """As people gather a checkpoint from a cache, or keep the blobs on another disk."""
    snapshot = hub_cache(mini_hf(tmp_path / "in"), tmp_path / "cache")
    elsewhere, gathered = tmp_path / "disk", tmp_path / "gathered"
    gathered.mkdir()
    elsewhere.mkdir()
    for blob in sorted((snapshot.parent.parent / "blobs").iterdir()):
        blob.rename(elsewhere / blob.name[:9])
        blob.symlink_to(elsewhere / blob.name[:9])
    for path in snapshot.iterdir():
        (gathered / path.name).symlink_to(path)
    expected = {(path.name, path.readlink().name) for path in snapshot.iterdir()}
    for root in (snapshot, gathered):
        assert {(e.file, e.digest) for e in published_hashes(open_checkpoint(root))} == expected


@pytest.mark.parametrize("spelling", ["{}", '"{}"', 'W/"{}"'])
@pytest.mark.parametrize("spell", [str.lower, str.upper])
def test_a_note_spells_its_hash_as_a_server_did(tmp_path: Path, spelling: str, spell: Callable[[str], str]) -> None:
    root, digest = mini_hf(tmp_path), "ab" * 32
    note = root / NOTES / "config.json.metadata"
    note.parent.mkdir(parents=True)
    note.write_text(f"{'c' * 40}\n{spelling.format(spell(digest))}\n1.0\n")
    assert [(e.file, e.digest) for e in published_hashes(open_checkpoint(root))] == [("config.json", digest)]
    assert damaged_evidence(open_checkpoint(root)) == []
