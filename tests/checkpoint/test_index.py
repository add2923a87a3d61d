"""The index: which shard holds which tensor."""

import json
from pathlib import Path

import pytest

from csf_tool.checkpoint.index import Index, find_index, read_index
from csf_tool.errors import CheckpointError
from tests.building import LFS_POINTER, write_json

NAME = "model.safetensors.index.json"


def test_an_index_with_shards_in_folders(tmp_path: Path) -> None:
    document = {"metadata": {"total_size": 7}, "weight_map": {"a": "tensors/model-00001-of-00002.safetensors"}}
    index = read_index(write_json(tmp_path / NAME, document).parent, NAME)
    assert index.weight_map == {"a": "tensors/model-00001-of-00002.safetensors"}
    assert index.document == document


HOSTILE = [
    "../outside.safetensors",
    "tensors/../../outside.safetensors",
    "/etc/passwd",
    "C:\\x.safetensors",
    "C:x.safetensors",
    "c:/x.safetensors",
    "tensors\\x.safetensors",
    "\\\\server\\share\\x.safetensors",
    "./x.safetensors",
    "a//x.safetensors",
    "tensors/",
    "",
    ".",
    "..",
    "x\0.safetensors",
    "x\n.safetensors",
    "x\x1b[2J.safetensors",
]


@pytest.mark.parametrize("shard", HOSTILE)
def test_a_shard_path_that_leaves_the_folder_is_refused(tmp_path: Path, shard: str) -> None:
    write_json(tmp_path / NAME, {"weight_map": {"a": "ok.safetensors", "b": shard}})
    with pytest.raises(CheckpointError, match="leaves the checkpoint's folder or is not a plain path"):
        read_index(tmp_path, NAME)


@pytest.mark.parametrize("shard", ["x.safetensors", "a/b/c.safetensors", "..x.safetensors", "a..b/x", "é.safetensors"])
def test_plain_paths_are_taken(tmp_path: Path, shard: str) -> None:
    write_json(tmp_path / NAME, {"weight_map": {"a": shard}})
    assert read_index(tmp_path, NAME).weight_map == {"a": shard}


@pytest.mark.parametrize("document", [[], "x", {}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": None}])
def test_what_is_no_index(tmp_path: Path, document: object) -> None:
    write_json(tmp_path / NAME, document)
    with pytest.raises(CheckpointError, match="weight_map is not a map of tensor name to shard file"):
        read_index(tmp_path, NAME)


def test_an_lfs_pointer_instead_of_the_index(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(LFS_POINTER)
    with pytest.raises(CheckpointError, match=r"^model\.safetensors\.index\.json: is a git-LFS pointer"):
        read_index(tmp_path, NAME)


def test_a_name_that_stands_twice_in_the_index(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"weight_map": {"a": "1.safetensors", "a": "2.safetensors"}}')
    with pytest.raises(CheckpointError, match="key 'a' appears twice"):
        read_index(tmp_path, NAME)


def test_the_usual_index_is_preferred(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter.safetensors.index.json", {})
    assert find_index(tmp_path) == "adapter.safetensors.index.json"
    write_json(tmp_path / NAME, {})
    assert find_index(tmp_path) == NAME


def test_what_macos_leaves_beside_an_index_on_a_foreign_disk_is_none(tmp_path: Path) -> None:
    (tmp_path / "._adapter.safetensors.index.json").write_bytes(b"\0\5\x16\7")
    assert find_index(tmp_path) is None
    write_json(tmp_path / "adapter.safetensors.index.json", {})
    assert find_index(tmp_path) == "adapter.safetensors.index.json"


def test_a_dangling_link_is_an_index_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to(tmp_path / "gone")
    assert find_index(tmp_path) == NAME
    with pytest.raises(CheckpointError, match="is missing"):
        read_index(tmp_path, NAME)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_index(tmp_path) is None


# Whether an index lists exactly what shards hold

HELD = {"1.safetensors": ["a", "c.weight"], "2.safetensors": ["b"]}
PLACED = {"a": "1.safetensors", "c.weight": "1.safetensors", "b": "2.safetensors"}


@pytest.mark.parametrize("is_sorted", [True, False])
def test_an_index_that_lists_exactly_this(tmp_path: Path, is_sorted: bool) -> None:
    (tmp_path / NAME).write_text(json.dumps({"weight_map": PLACED}, sort_keys=is_sorted))
    assert Index(tmp_path, NAME).lists_exactly(HELD)


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(
    "held",
    [
        {},
        {"1.safetensors": ["a", "c.weight"]},
        {**HELD, "3.safetensors": []},
        {**HELD, "3.safetensors": ["d"]},
        {**HELD, "2.safetensors": ["a", "b"]},
        {**HELD, "2.safetensors": ["b", "b"]},
        {"1.safetensors": ["a"], "2.safetensors": ["b", "c.weight"]},
    ],
)
def test_an_index_that_says_something_else(tmp_path: Path, held: dict[str, list[str]], is_sorted: bool) -> None:
    (tmp_path / NAME).write_text(json.dumps({"weight_map": PLACED}, sort_keys=is_sorted))
    assert not Index(tmp_path, NAME).lists_exactly(held)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([NAME, "model.safetensors.index.fp8.json"], NAME),
        (["model.safetensors.index.fp8.json", "x.json", "model.index.fp8.json"], "model.safetensors.index.fp8.json"),
        (["model.safetensors.index.fp8.json", "model.safetensors"], None),
        (["a.safetensors.index.nvfp4.json", "b.safetensors.index.json"], "b.safetensors.index.json"),
        (
            ["diffusion_pytorch_model.safetensors.index.fp16.json"],
            "diffusion_pytorch_model.safetensors.index.fp16.json",
        ),
        ([".model.safetensors.index.fp8.json", "model.safetensors.index.json.bak"], None),
    ],
)
def test_the_index_of_a_variant_counts_where_there_is_no_other(
    tmp_path: Path, names: list[str], expected: str | None
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    assert find_index(tmp_path) == expected
