"""What a download recorded is held against what is read for writing: afterwards nobody can any more."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from csf_tool.checkpoint.downloads import NOTES
from tests.building import (
    MXFP4,
    NVFP4,
    change_json,
    etag,
    mini_container,
    mini_dense,
    mini_hf,
    overwrite,
    sha256,
    shard_name,
    span,
    tree,
    without_receipts,
)
from tests.commands import run, says
from tests.downloads import hub_cache

ONE, TWO = shard_name(1, 2), shard_name(2, 2)
NORM = "model.layers.0.norm.weight"


def bare_container(root: Path) -> Path:
    return without_receipts(mini_container(root, NVFP4))


COMMANDS: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "expand": (mini_hf, ("expand",)),
    "compress to hf": (mini_dense, ("compress", "--keep-larger")),
    "compress to container": (mini_dense, ("compress", "--keep-larger", "--to", "container")),
    "convert": (mini_hf, ("convert", "--to", "container")),
    "convert by links": (mini_hf, ("convert", "--to", "container", "--link")),
    "expand a container": (bare_container, ("expand",)),
    "convert a container": (bare_container, ("convert", "--to", "hf")),
}
EVERY = pytest.mark.parametrize("command", COMMANDS)
OF_A_FOLDER = pytest.mark.parametrize("command", [name for name in COMMANDS if "a container" not in name])


def built(command: str, folder: Path) -> Path:
    return COMMANDS[command][0](folder)


def write(command: str, root: Path, *more: str) -> Result:
    word, *options = COMMANDS[command][1]
    return run(word, root, root.parent / "out", *options, *more)


def note(root: Path, name: str, stated: str = "", commit: str = "a" * 40) -> None:
    """What `hf download` notes of a file; its right ETag unless another is given."""
    path = root / NOTES / f"{name}.metadata"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{commit}\n{stated or etag(root / name)}\n1.0\n")


def names_of(root: Path) -> list[str]:
    return [name for name in tree(root) if not name.startswith(".")]


def noted(root: Path) -> Path:
    for name in names_of(root):
        note(root, name)
    return root


def cached(root: Path) -> Path:
    return hub_cache(root, root.parent / "cache")


def with_sums(root: Path) -> Path:
    (root / "SHA256SUMS").write_text("".join(f"{sha256(data)}  {name}\n" for name, data in tree(root).items()))
    return root


def shard_of(root: Path) -> str:
    return next(name for name in sorted(names_of(root)) if name.endswith(ONE))


def change_a_byte(path: Path) -> None:
    """A flipped bit in a tensor that is no plane: nothing but a hash shows it."""
    begin, _ = span(path, NORM)
    overwrite(path.resolve(), begin, bytes([path.read_bytes()[begin] ^ 1]))


@EVERY
def test_a_download_in_order_is_written_from_without_a_word(tmp_path: Path, command: str) -> None:
    plain = write(command, built(command, tmp_path / "plain" / "in"))
    result = write(command, noted(built(command, tmp_path / "noted" / "in")))
    assert (result.exit_code, plain.exit_code) == (0, 0), result.output
    assert result.output.count("warning") == plain.output.count("warning")
    if command in ("expand", "compress to hf"):  # the others state a revision, where one is noted
        assert tree(tmp_path / "noted" / "out") == tree(tmp_path / "plain" / "out")


@OF_A_FOLDER
@pytest.mark.parametrize("evidence", [noted, cached, with_sums])
def test_a_shard_that_changed_since_its_hash_was_recorded(
    tmp_path: Path, command: str, evidence: Callable[[Path], Path]
) -> None:
    root = evidence(built(command, tmp_path / "in"))
    change_a_byte(root / ONE)
    result = run(COMMANDS[command][1][0], root, tmp_path / "out", *COMMANDS[command][1][1:])
    assert result.exit_code == 1, result.output
    says(result, f"{ONE}: not written from: its SHA-256 is ", ", expected ", "download it again")
    assert not [name for name in tree(tmp_path / "out") if name.endswith((ONE, "config.json", "manifest.json"))]


@pytest.mark.parametrize("command", ["expand a container", "convert a container"])
def test_a_shard_that_is_not_what_its_containers_manifest_says(tmp_path: Path, command: str) -> None:
    root = built(command, tmp_path / "in")
    change_a_byte(root / "tensors" / ONE)
    result = write(command, root)
    assert result.exit_code == 1
    says(result, f"tensors/{ONE}: not written from: its SHA-256 is ", ", expected ", "(target_sha256")


@EVERY
def test_a_recorded_hash_of_another_file(tmp_path: Path, command: str) -> None:
    root = noted(built(command, tmp_path / "in"))
    note(root, shard_of(root), "c" * 64)
    result = write(command, root)
    assert result.exit_code == 1
    says(result, ONE, "c" * 64, "the hash that hf download recorded")


@pytest.mark.parametrize("codec", [NVFP4, MXFP4])
def test_a_container_with_receipts_whose_record_contradicts_its_manifest(tmp_path: Path, codec: object) -> None:
    root = mini_container(tmp_path / "in", codec)  # type: ignore[arg-type]
    note(root, f"tensors/{ONE}", "c" * 64)
    result = run("expand", root, tmp_path / "out")
    assert result.exit_code == 1
    says(result, f"tensors/{ONE}: its SHA-256 is ", f" (target_sha256), but also {'c' * 64} (the hash that hf download")


@EVERY
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "nested/added.json"])
def test_a_file_beside_the_shards_that_is_another_than_was_recorded(tmp_path: Path, command: str, name: str) -> None:
    root = built(command, tmp_path / "in")
    folder = root / "metadata" if (root / "metadata").is_dir() else root
    (folder / name).parent.mkdir(exist_ok=True)
    if not (folder / name).exists():
        (folder / name).write_text("{}")
    noted(root)
    note(root, (folder / name).relative_to(root).as_posix(), "d" * 40)
    result = write(command, root)
    assert result.exit_code == 1
    done = {"expand": "expanded", "compress": "compressed", "convert": "converted"}[COMMANDS[command][1][0]]
    says(result, name, f"not {done}: its git-sha1 is ")
    assert not (tmp_path / "out").exists() or not names_of(tmp_path / "out")


def test_convert_holds_a_containers_metadata_against_its_manifest(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in", NVFP4)
    (root / "metadata" / "config.json").write_bytes((root / "metadata" / "config.json").read_bytes() + b" ")
    result = run("convert", root, tmp_path / "out", "--to", "hf")
    assert result.exit_code == 1
    says(result, "metadata/config.json: not converted: its SHA-256 is ", ", expected ", "(metadata_sha256")


@EVERY
def test_what_is_odd_about_the_evidence_is_a_warning(tmp_path: Path, command: str) -> None:
    root = noted(built(command, tmp_path / "in"))
    (root / "README.md").write_text("x")
    note(root, "README.md")
    (root / "README.md").unlink()
    note(root, shard_of(root), commit="b" * 40)
    two = shard_of(root).replace(ONE, TWO)
    (root / NOTES / f"{two}.metadata").write_text("nothing")
    (root / "SHA256SUMS").write_text(f"{'0' * 63}  {two}\n{'1' * 64}  ../x\n")
    result = write(command, root)
    assert result.exit_code == 0, result.output
    says(
        result,
        "warning: the files come from different revisions (aaaaaaaaaaaa: ",
        "bbbbbbbbbbbb: 1 file",
        f"warning: {two}: cannot be checked: hf download recorded no hash for it",
        "warning: SHA256SUMS: line 1 is damaged",
        "warning: SHA256SUMS: line 2: file name '../x' leaves",
        "warning: README.md: is missing, but its hash is known (the hash that hf download recorded)",
    )


def test_a_file_twice_in_sha256sums_cannot_be_right(tmp_path: Path) -> None:
    root = with_sums(mini_hf(tmp_path / "in"))
    with (root / "SHA256SUMS").open("a") as sums:
        sums.write(f"{'0' * 64}  {ONE}\n")
    result = run("expand", root, tmp_path / "out")
    assert result.exit_code == 1
    says(result, f"{ONE}: its SHA-256 is ", " (SHA256SUMS, line 2), but also 000", "(SHA256SUMS, line 5)")


def test_adopted_shards_are_of_a_source_that_is_as_recorded(tmp_path: Path) -> None:
    """What was made of damaged shards elsewhere is the same as what would be made of them here."""
    root = mini_hf(tmp_path / "in")
    good = Path(shutil.copytree(root, tmp_path / "good"))
    change_a_byte(root / ONE)
    assert run("expand", root, tmp_path / "out").exit_code == 0
    for name in names_of(good):
        note(root, name, "" if name != ONE else sha256((good / ONE).read_bytes()))
    result = run("expand", root, tmp_path / "out", "--adopt")
    assert result.exit_code == 1
    says(result, f"{ONE}: not written from: its SHA-256 is ")


def test_a_proven_original_needs_no_other_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = noted(mini_container(tmp_path / "in", NVFP4))
    monkeypatch.setattr("csf_tool.write.shard_job.require_hashes", lambda _, evidence, __: evidence and pytest.fail())
    result = run("expand", root, tmp_path / "out")
    assert result.exit_code == 0
    says(result, "restored bit for bit")


def test_consuming_a_noted_source_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Notes outlive the shards that are gone on purpose."""
    root = noted(mini_hf(tmp_path / "in"))
    assert run("expand", root, tmp_path / "out", "--consume-source", "--yes").exit_code == 0
    assert ONE not in names_of(root)
    says(run("expand", root, tmp_path / "out", "--consume-source", "--yes"), "already complete")


def test_a_list_that_lacks_a_shard_leaves_it_unproved_and_written(tmp_path: Path) -> None:
    root = with_sums(mini_hf(tmp_path / "in"))
    lines = (root / "SHA256SUMS").read_text().splitlines()
    (root / "SHA256SUMS").write_text("\n".join(line for line in lines if not line.endswith(ONE)))
    assert run("expand", root, tmp_path / "out").exit_code == 0
    change_json(root / "config.json", lambda config: config.update(more=1))
    assert run("expand", root, tmp_path / "other").exit_code == 1
