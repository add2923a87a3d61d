"""The index: which shard holds which tensor."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    with pytest.raises(CheckpointError, match="key 'a' stands twice"):
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
    with pytest.raises(CheckpointError, match="not there"):
        read_index(tmp_path, NAME)


def test_a_folder_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_index(tmp_path) is None


# Comparing text instead of reading every name

HELD = {"1.safetensors": ["a", "c.weight"], "2.safetensors": ["b"]}
PLACED = {"a": "1.safetensors", "b": "2.safetensors", "c.weight": "1.safetensors"}
DOCUMENT = {"metadata": {"total_size": 7}, "weight_map": PLACED}


def spelled(tmp_path: Path, text: str | bytes) -> Index:
    (tmp_path / NAME).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return Index(tmp_path, NAME)


@pytest.mark.parametrize("indent", [None, 1, 2, 4])
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_sorted_index_as_json_writes_it_is_compared_as_text(tmp_path: Path, indent: int | None, end: str) -> None:
    index = spelled(tmp_path, json.dumps(DOCUMENT, indent=indent) + end)
    assert index.spells_out(HELD)
    assert (index.weight_map, index.document) == (PLACED, DOCUMENT)


@pytest.mark.parametrize(
    "held",
    [
        {},
        {"1.safetensors": ["a", "c.weight"]},
        {**HELD, "3.safetensors": []},
        {**HELD, "3.safetensors": ["d"]},
        {**HELD, "2.safetensors": ["a", "b"]},
        {"1.safetensors": ["a"], "2.safetensors": ["b", "c.weight"]},
    ],
)
def test_an_index_that_says_something_else_does_not_spell_it_out(tmp_path: Path, held: dict[str, list[str]]) -> None:
    assert not spelled(tmp_path, json.dumps(DOCUMENT)).spells_out(held)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ('{"weight_map": {"a": "1", "b": "1"}}', {"1": ['a": "1", "b']}),
        ('{"weight_map": {"a\nb": "1"}}', {"1": ["a\nb"]}),
        ('{"weight_map": {\n "a": "1",\n "b,\n c": "1"\n}}', {"1": ["a", "b,\n c"]}),
        ('{"weight_map": {"a\\u0062": "1"}}', {"1": ["a\\u0062"]}),
        ('{"weight_map": {"a": "1", "a": "2"}}', {"1": ["a"], "2": ["a"]}),
        ('{"x": {"weight_map": {"a": "1"}}, "\\u0077eight_map": {}}', {"1": ["a"]}),
        ('{"x": {"weight_map": {"a": "1"}}, "weight_map": {}}', {"1": ["a"]}),
        ('{"weight_map": {"a": "../1"}}', {"../1": ["a"]}),
        ('{"weight_map": {"\ud800": "1"}}', {"1": ["\ud800"]}),
        ('{"weight_map": {"a": "1"}} x', {"1": ["a"]}),
    ],
)
def test_names_that_need_escapes_and_hidden_maps_are_not_compared_as_text(
    tmp_path: Path, text: str, held: dict[str, list[str]]
) -> None:
    assert not spelled(tmp_path, text).spells_out(held)


@settings(deadline=None, max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([None, 2]), st.data())
def test_what_is_spelled_out_is_what_a_strict_reader_reads(
    tmp_path: Path, indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(DOCUMENT, indent=indent)
    for _ in range(data.draw(st.integers(0, 2))):
        begin, length = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 2))
        piece = data.draw(st.sampled_from(["", '"', "\\", "\n", ",", "}", "{", " ", "b", '"b": "2.safetensors", ']))
        text = text[:begin] + piece + text[begin + length :]
    if spelled(tmp_path, text).spells_out(HELD):
        assert read_index(tmp_path, NAME).weight_map == PLACED
