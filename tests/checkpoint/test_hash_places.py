"""Which files here the paths of a list stand for, and that what may be several is refused by name."""

from pathlib import Path

import pytest

from csf_tool.checkpoint.hash_list import read_entries, read_hash_list
from csf_tool.checkpoint.hash_places import Place
from csf_tool.codes import Code
from csf_tool.errors import UsageError

A, B, C = (digit * 64 for digit in "abc")
HERE = ("config.json", "model.safetensors", "sub/config.json", "tensors/one.safetensors")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in HERE:
        path = tmp_path / "mini" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "mini"


def read(root: Path, *lines: tuple[str, str]) -> dict[str, str]:
    (root.parent / "list").write_text("".join(f"{digest}  {name}\n" for name, digest in lines))
    found = read_hash_list(root.parent / "list", Place(root))
    assert not found.faults, found.faults
    return found.digests


BEFORE = [
    "",
    "./",
    "mini/",
    "./mini/",
    "/data/mini/",
    "/elsewhere/other/",
    "../other/",
    "a/b/c/d/",
    "/",
    "C:/Models/x/",
]


@pytest.mark.parametrize("before", BEFORE)
def test_the_folder_there_is_what_all_paths_begin_with(root: Path, before: str) -> None:
    """A nested file of the same name is not taken for the one above it, nor a missing file for one elsewhere."""
    lines = [(before + name, digest) for name, digest in zip(HERE, (A, B, C, A), strict=True)]
    assert read(root, *lines) == dict(zip(HERE, (A, B, C, A), strict=True))
    assert read(root, *lines, (f"{before}gone.json", B))["gone.json"] == B
    assert read(root, *lines, (f"{before}gone/config.json", B))["gone/config.json"] == B


def test_a_list_of_the_shards_folder_alone(root: Path) -> None:
    assert read(root, ("one.safetensors", A)) == {"tensors/one.safetensors": A}
    assert read(root, ("/x/tensors/one.safetensors", A)) == {"tensors/one.safetensors": A}


def test_a_folder_that_lies_on_two_disks(root: Path) -> None:
    lines = ("/disk1/x/config.json", A), ("/disk2/y/model.safetensors", B)
    assert read(root, *lines) == {"config.json": A, "model.safetensors": B}


def test_a_list_of_many_checkpoints_is_read_by_the_name_of_the_folder(root: Path) -> None:
    lines = [(f"/models/{m}/{n}", d) for m, d in (("big", A), ("mini", B)) for n in HERE]
    (root.parent / "list").write_text("".join(f"{digest}  {name}\n" for name, digest in lines))
    found = read_hash_list(root.parent / "list", Place(root))
    assert found.digests == dict.fromkeys(HERE, B)
    [warning] = found.faults
    assert (warning.code, warning.severity) == (Code.OTHER_LIST, "warning")
    assert (
        warning.problem == "not compared: 4 entries, for example '/models/big/config.json' (line 1), of other folders"
    )


def test_a_file_that_two_paths_may_mean_is_refused_by_name(root: Path) -> None:
    lines = [(f"/models/{m}/{n}", d) for m, d in (("one", A), ("two", B)) for n in HERE]
    with pytest.raises(UsageError) as error:
        read(root, *lines)
    assert (
        "both '/models/one/config.json' (line 1) and '/models/two/config.json' (line 5) may mean config.json, and"
        in str(error.value)
    )
    same = [(f"/models/{m}/{n}", A) for m in ("one", "two") for n in HERE]
    assert read(root, *same) == dict.fromkeys(HERE, A)


def test_a_path_that_may_be_two_files_is_refused_by_name(root: Path) -> None:
    with pytest.raises(
        UsageError, match=r"'/x/sub/config\.json' \(line 1\) may mean config\.json or sub/config\.json: "
    ):
        read(root, ("/x/sub/config.json", A))
    assert read(root, ("/x/mini/sub/config.json", A)) == {"sub/config.json": A}
    assert read(root, ("sub/config.json", A)) == {"sub/config.json": A}


def test_names_as_they_are_come_first(root: Path) -> None:
    assert read(root, ("config.json", A), ("other/config.json", B)) == {"config.json": A, "other/config.json": B}


def test_a_list_of_none_of_the_files_is_another_list(root: Path) -> None:
    for name in ("x.safetensors", "/data/mini/x.safetensors"):
        with pytest.raises(UsageError, match="none of the 1 files that it lists is in") as error:
            read(root, (name, A))
        assert error.value.code is Code.OTHER_LIST


@pytest.mark.parametrize("name", ["config.json", "/data/mini/config.json"])
def test_two_hashes_of_one_name_are_a_fault_as_before(root: Path, name: str) -> None:
    raw = f"{A}  {name}\n{B}  {name}\n".encode()
    _, [fault] = read_entries(raw, "SHA256SUMS", Place(root))
    assert fault.problem == "line 2 has another SHA-256 for 'config.json' than line 1"


def test_the_hash_of_the_list_itself_says_nothing(root: Path) -> None:
    """As `sha256sum * > SHA256SUMS` has it: of the file before it was written."""
    found, faults = read_entries(f"{A}  ./config.json\n{B}  ./SHA256SUMS\n".encode(), "SHA256SUMS", Place(root))
    assert ([(f.name, f.digest) for f in found], faults) == ([("config.json", A)], [])


def test_a_path_that_leads_out_is_a_fault_where_names_are_as_they_are(root: Path) -> None:
    raw = f"{A}  config.json\n{B}  /etc/passwd\n{C}  ../x\n".encode()
    found, faults = read_entries(raw, "SHA256SUMS", Place(root))
    assert [f.name for f in found] == ["config.json"]
    assert [f.code for f in faults] == [Code.UNSAFE_NAME] * 2


@pytest.mark.slow
def test_a_list_of_a_whole_disk_is_read_in_proportion(root: Path) -> None:
    lines = [f"{A}  /m/{'/'.join(str(i))}/x{i}/config.json" for i in range(2000)]
    raw = "\n".join([*lines, *(f"{B}  /m/mini/{name}" for name in HERE)]).encode()
    found, [warning] = read_entries(raw, "SHA256SUMS", Place(root))
    assert {f.name: f.digest for f in found} == dict.fromkeys(HERE, B)
    assert warning.problem.startswith("not compared: 2,000 entries, for example ")
