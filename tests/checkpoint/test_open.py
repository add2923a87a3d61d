"""open_checkpoint: what a path is, and every name held against every other list of names."""

import json
import os
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import Severity, errors
from csf_tool.errors import CheckpointError, UsageError
from tests.building import (
    LFS_POINTER,
    MXFP4,
    NVFP4,
    Tensor,
    change_json,
    compressed,
    home_made,
    index_of,
    layer,
    make_scales,
    mini_container,
    mini_dense,
    mini_hf,
    model,
    raw_file,
    recipes_config,
    shard_name,
    streams,
    write_hf,
    write_json,
    write_shard,
)
from tests.checkpoint.opening import problems, refused

SAMPLES = Path(__file__).parent.parent / "data" / "samples"
INDEX = "model.safetensors.index.json"
ONE, TWO, THREE = (shard_name(i, 3) for i in (1, 2, 3))


# What a path is


@pytest.mark.parametrize(
    ("sample", "layout", "kind", "planes", "dense_planes"),
    [
        ("nvfp4-csf-hf", "hf", "Hugging Face layout, NVFP4 CSF", 36, 0),
        ("nvfp4-csf-container", "container", "CSF container, NVFP4 CSF", 36, 0),
        ("nvfp4-dense", "hf", "Hugging Face layout, dense NVFP4", 0, 36),
        ("nvfp4-ct-dense", "hf", "Hugging Face layout, dense NVFP4", 0, 12),
        ("mxfp4-csf-container", "container", "CSF container, MXFP4 CSF", 24, 0),
        ("mxfp4-dense", "hf", "Hugging Face layout, dense MXFP4", 0, 24),
    ],
)
def test_the_samples(sample: str, layout: str, kind: str, planes: int, dense_planes: int) -> None:
    checkpoint = open_checkpoint(SAMPLES / sample)
    assert checkpoint.problems == []
    assert (checkpoint.layout.name, checkpoint.kind) == (layout, kind)
    assert (len(checkpoint.planes), len(checkpoint.dense_planes)) == (planes, dense_planes)


def test_the_geometry_of_the_samples_is_that_of_the_dense_ones() -> None:
    for csf, dense in (("nvfp4-csf-hf", "nvfp4-dense"), ("mxfp4-csf-container", "mxfp4-dense")):
        ours = {p.name: (p.rows, p.cols, p.fmt) for p in open_checkpoint(SAMPLES / csf).planes}
        assert ours == {p.name: (p.rows, p.cols, p.fmt) for p in open_checkpoint(SAMPLES / dense).dense_planes}


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(mini_hf(tmp_path, 3))
    assert checkpoint.problems == []
    assert (checkpoint.layout.name, checkpoint.path, checkpoint.root) == ("hf", tmp_path, tmp_path)
    assert [shard.name for shard in checkpoint.shards] == [ONE, TWO, THREE]
    assert checkpoint.kind == "Hugging Face layout, NVFP4 CSF"


def test_a_home_made_container_with_the_sources_index_at_the_root(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(home_made(tmp_path))
    assert checkpoint.layout.name == "container"
    assert len(checkpoint.planes) == 6
    assert errors(checkpoint.problems) == []


def test_a_home_made_mxfp4_container_takes_its_geometry_from_the_weights(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(home_made(tmp_path, MXFP4))
    assert {(plane.rows, plane.cols) for plane in checkpoint.planes} == {(16, 3)}


def test_a_dense_checkpoint(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(mini_dense(tmp_path))
    assert (len(checkpoint.planes), len(checkpoint.dense_planes), checkpoint.problems) == (0, 6, [])


def test_a_checkpoint_without_fp4(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", [Tensor("a", "BF16", (2,), bytes(4))])
    assert open_checkpoint(tmp_path).kind == "single file, no FP4 scales"


def test_a_single_file_by_its_path_and_by_its_folder(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "model.safetensors", compressed(layer(0, NVFP4), NVFP4))
    for given in (path, tmp_path):
        checkpoint = open_checkpoint(given)
        assert (checkpoint.layout.name, checkpoint.root, checkpoint.path) == ("file", tmp_path, given)
        assert checkpoint.kind == "single file, NVFP4 CSF"
        assert [shard.name for shard in checkpoint.shards] == ["model.safetensors"]
        assert (len(checkpoint.planes), checkpoint.problems) == (3, [])


def test_one_shard_of_many_by_its_path_is_not_blamed_for_the_others(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(mini_hf(tmp_path, 3) / TWO)
    assert (checkpoint.layout.name, len(checkpoint.planes), checkpoint.problems) == ("file", 3, [])


def test_one_shard_of_a_container_by_its_path(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(mini_container(tmp_path, shards=3) / "tensors" / TWO)
    assert (checkpoint.layout.name, len(checkpoint.planes), checkpoint.problems) == ("file", 3, [])


def test_paths_may_be_strings(tmp_path: Path) -> None:
    assert open_checkpoint(str(mini_hf(tmp_path))).path == tmp_path


def test_an_empty_shard_beside_good_ones(tmp_path: Path) -> None:
    mini_hf(tmp_path, 2)
    (tmp_path / "empty.safetensors").write_bytes(raw_file({}))
    (tmp_path / "nothing.safetensors").write_bytes(b"")
    assert problems(tmp_path) == []
    unreadable = "and it cannot be read: has 0 bytes, too few for a safetensors file: left out"
    assert problems(tmp_path, Severity.WARNING) == [
        f"nothing.safetensors: {INDEX} does not list this shard, {unreadable}",
        f"empty.safetensors: {INDEX} does not list this shard",
    ]


# What a path is not


def test_nothing_there(tmp_path: Path) -> None:
    assert refused(tmp_path / "x", UsageError) == f"{tmp_path / 'x'}: no such file or folder"


def test_an_empty_folder(tmp_path: Path) -> None:
    assert refused(tmp_path, UsageError) == f"{tmp_path}: is empty"


def test_a_json_file(tmp_path: Path) -> None:
    path = mini_container(tmp_path) / "manifest.json"
    assert refused(path, UsageError) == f"{path}: is a JSON file; give its folder, {tmp_path}"


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert refused(tmp_path, UsageError) == (
        f"{tmp_path}: not a checkpoint: no manifest.json, no *.safetensors.index.json and no .safetensors file"
    )


@pytest.mark.parametrize("inner", ["hf", "container"])
def test_the_folder_around_a_checkpoint(tmp_path: Path, inner: str) -> None:
    (mini_hf if inner == "hf" else mini_container)(tmp_path / inner)
    (tmp_path / "a.txt").write_text("")
    assert refused(tmp_path, UsageError).endswith(f"; did you mean {tmp_path / inner}?")


def test_the_metadata_folder_of_a_container(tmp_path: Path) -> None:
    mini_container(tmp_path)
    assert "none of 2 shards can be read" in refused(tmp_path / "metadata", CheckpointError)


def test_a_manifest_of_another_tool(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"name": "an app", "icons": []})
    assert "has schema None, which csf-tool cannot read" in refused(tmp_path, CheckpointError)


def test_a_manifest_of_another_tool_in_a_good_checkpoint(tmp_path: Path) -> None:
    write_json(mini_hf(tmp_path) / "manifest.json", {"name": "an app"})
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.layout.name, checkpoint.problems) == ("hf", [])


@pytest.mark.parametrize("content", [LFS_POINTER, b"<html>"])
def test_a_config_that_is_a_pointer_or_a_page_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    message = refused(tmp_path, CheckpointError)
    assert message.startswith(f"{tmp_path}: config.json is a ")


@pytest.mark.parametrize("folder", [".", "blobs", ".cache/huggingface/download", "snapshots/0"])
def test_a_download_that_has_only_begun(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "abc.incomplete").write_bytes(b"x")
    if folder == "snapshots/0":  # not searched: a path given by mistake may be a whole disk
        assert "not a checkpoint" in refused(tmp_path, UsageError)
    else:
        assert "an incomplete download (1 unfinished file, abc.incomplete): download it again" in refused(
            tmp_path, CheckpointError
        )


# Two layouts in one folder


MIXED = "a container and a Hugging Face checkpoint seem to be in one folder. Download each into its own folder"


def test_a_container_and_shards_in_one_folder(tmp_path: Path) -> None:
    mini_hf(mini_container(tmp_path))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.layout.name == "container"
    assert problems(tmp_path) == [
        f"{INDEX}: lists CSF streams beside manifest.json: {MIXED}",
        f"{shard_name(1, 2)}: a shard beside manifest.json: {MIXED}",
        f"{shard_name(2, 2)}: a shard beside manifest.json: {MIXED}",
    ]


def test_a_container_under_an_index_of_its_folder_of_shards(tmp_path: Path) -> None:
    """A repository that moved from one layout to the other, downloaded over itself."""
    stored = {f"tensors/{name}": compressed(tensors, NVFP4) for name, tensors in model(NVFP4).items()}
    write_json(mini_container(tmp_path) / INDEX, index_of(stored))
    assert problems(tmp_path) == [f"{INDEX}: lists CSF streams beside manifest.json: {MIXED}"]


def test_the_root_index_of_a_container_that_cannot_be_read(tmp_path: Path) -> None:
    (home_made(tmp_path) / INDEX).write_bytes(LFS_POINTER)
    [problem] = problems(tmp_path)
    assert problem.startswith(f"{INDEX}: is a git-LFS pointer")


# Pointers, pages, missing files


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (LFS_POINTER, "is a git-LFS pointer, not the file itself (it points to sha256:4d7a214614ab2935"),
        (b"<!DOCTYPE html>", "is a web page"),
        (b'{"error":"gated repo"}', "is JSON text, not a safetensors file"),
        (b"", "has 0 bytes, too few"),
        (b"\xff" * 100, "not a safetensors file: it states a header of 18446744073709551615 bytes"),
    ],
)
def test_one_shard_that_is_something_else_does_not_hide_the_others(tmp_path: Path, content: bytes, reason: str) -> None:
    (mini_hf(tmp_path, 3) / TWO).write_bytes(content)
    checkpoint = open_checkpoint(tmp_path)
    assert [shard.name for shard in checkpoint.shards] == [ONE, THREE]
    assert str(checkpoint.problems[0]).startswith(f"{TWO}: {reason}")
    assert len(errors(checkpoint.problems)) == 1


def test_all_shards_are_pointers(tmp_path: Path) -> None:
    mini_hf(tmp_path, 3)
    for name in (ONE, TWO, THREE):
        (tmp_path / name).write_bytes(LFS_POINTER)
    message = refused(tmp_path, CheckpointError)
    assert "none of 3 shards can be read" in message
    assert "git-LFS pointer" in message


@pytest.mark.parametrize("file", [INDEX])
def test_an_index_that_is_a_pointer(tmp_path: Path, file: str) -> None:
    (mini_hf(tmp_path) / file).write_bytes(LFS_POINTER)
    assert refused(tmp_path, CheckpointError).startswith(f"{tmp_path / file}: is a git-LFS pointer")


@pytest.mark.parametrize(
    ("content", "reason"), [(LFS_POINTER, "is a git-LFS pointer"), (b"{", "not valid JSON"), (b"<html>", "web page")]
)
def test_a_config_that_cannot_be_read_is_a_problem_of_its_own(tmp_path: Path, content: bytes, reason: str) -> None:
    (mini_hf(tmp_path) / "config.json").write_bytes(content)
    [problem] = problems(tmp_path)
    assert problem.startswith("config.json: ")
    assert reason in problem


def test_an_indexed_shard_that_is_missing(tmp_path: Path) -> None:
    (mini_hf(tmp_path, 3) / TWO).unlink()
    assert problems(tmp_path) == [f"{TWO}: is missing, or is a link to a missing file: download it again"]
    assert len(open_checkpoint(tmp_path).planes) == 6


def test_shards_of_a_numbered_set_that_are_missing(tmp_path: Path) -> None:
    mini_hf(tmp_path, 3)
    for name in (INDEX, TWO):
        (tmp_path / name).unlink()
    assert problems(tmp_path) == [f"{TWO}: is missing, or is a link to a missing file: download it again"]


def test_one_shard_of_a_numbered_set_alone(tmp_path: Path) -> None:
    write_shard(tmp_path / "model-00003-of-00005.safetensors", layer(0, NVFP4))
    assert [p.partition(":")[0] for p in problems(tmp_path)] == [
        f"model-0000{i}-of-00005.safetensors" for i in (1, 2, 4, 5)
    ]


@pytest.mark.parametrize("cut", [None, 4])
def test_a_shard_that_is_cut_hides_no_other(tmp_path: Path, cut: int | None) -> None:
    names = [shard_name(i, 9) for i in range(1, 10)]
    mini_hf(tmp_path, shards=9)
    if cut:
        os.truncate(tmp_path / names[cut], 100)
    good = [name for name in names if not cut or name != names[cut]]
    checkpoint = open_checkpoint(tmp_path)
    assert [shard.name for shard in checkpoint.shards] == good
    for shard in checkpoint.shards:
        with safe_open(tmp_path / shard.name, "np") as expected:
            assert set(shard.header.names) == set(expected.keys())
    assert {problem.file for problem in errors(checkpoint.problems)} == set(names) - set(good)


def test_a_set_numbered_from_zero_is_complete(tmp_path: Path) -> None:
    for i in range(3):
        write_shard(tmp_path / f"model-0000{i}-of-00003.safetensors", layer(i, NVFP4))
    assert problems(tmp_path) == []


def test_a_name_that_claims_a_million_shards_is_not_believed(tmp_path: Path) -> None:
    write_shard(tmp_path / "model-00001-of-1000000.safetensors", layer(0, NVFP4))
    assert problems(tmp_path) == []


def test_without_an_index_the_shards_are_taken_as_they_are(tmp_path: Path) -> None:
    (mini_hf(tmp_path, 3) / INDEX).unlink()
    checkpoint = open_checkpoint(tmp_path)
    assert (checkpoint.layout.name, len(checkpoint.planes)) == ("hf", 9)
    assert [str(p) for p in checkpoint.problems] == [
        "no index lists the shards, so csf-tool uses all of them; expand and compress write an index"
    ]


def test_an_index_of_nothing(tmp_path: Path) -> None:
    write_json(tmp_path / INDEX, {"weight_map": {}})
    assert "lists no shards, and there are none" in refused(tmp_path, CheckpointError)


def test_a_link_to_a_missing_blob(tmp_path: Path) -> None:
    (mini_hf(tmp_path, 3) / TWO).unlink()
    (tmp_path / TWO).symlink_to("../../blobs/0123")
    assert problems(tmp_path) == [f"{TWO}: is missing, or is a link to a missing file: download it again"]
    (tmp_path / INDEX).unlink()
    assert problems(tmp_path) == [f"{TWO}: is missing, or is a link to a missing file: download it again"]


def test_links_into_a_cache_are_read_through(tmp_path: Path) -> None:
    mini_hf(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(f"../blobs/{path.name}")
    checkpoint = open_checkpoint(tmp_path / "snapshot")
    assert (checkpoint.problems, len(checkpoint.planes)) == ([], 6)


@pytest.mark.parametrize("name", ["n" * 300 + ".safetensors", f"{ONE}/x.safetensors", "folder.safetensors"])
def test_an_indexed_name_that_leads_to_no_file_does_not_hide_the_others(tmp_path: Path, name: str) -> None:
    mini_hf(tmp_path, 3)
    (tmp_path / "folder.safetensors").mkdir()
    change_json(tmp_path / INDEX, lambda index: index["weight_map"].update(extra=name))
    [problem] = open_checkpoint(tmp_path).problems
    assert problem.file == name
    assert problem.problem.startswith("is not a file")


def test_folders_and_hidden_files_with_a_shards_suffix_are_no_shards(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    (tmp_path / "old.safetensors").mkdir()
    (tmp_path / f"._{shard_name(1, 2)}").write_bytes(b"\0\5\x16\7 Mac OS X")
    assert open_checkpoint(tmp_path).problems == []


# Index against shards


def test_shards_in_folders(tmp_path: Path) -> None:
    stored = {name: compressed(tensors, NVFP4) for name, tensors in model(NVFP4).items()}
    write_hf(tmp_path, stored, config=recipes_config(2), folder="tensors")
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.problems == []
    assert [shard.name for shard in checkpoint.shards] == [f"tensors/{shard_name(i, 2)}" for i in (1, 2)]
    assert [shard.file for shard in checkpoint.shards] == [shard_name(1, 2), shard_name(2, 2)]
    write_shard(tmp_path / "tensors" / "extra.safetensors", [])
    assert problems(tmp_path, Severity.WARNING) == [f"tensors/extra.safetensors: {INDEX} does not list this shard"]


def test_a_hostile_path_in_the_index(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    change_json(tmp_path / INDEX, lambda index: index["weight_map"].update(x="../outside.safetensors"))
    assert "leaves the checkpoint's folder" in refused(tmp_path, CheckpointError)


def test_a_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    change_json(tmp_path / INDEX, lambda index: index["weight_map"].pop("model.layers.1.norm.weight"))
    assert problems(tmp_path) == []
    assert problems(tmp_path, Severity.WARNING) == [
        f"{shard_name(2, 2)}: model.layers.1.norm.weight: {INDEX} does not list this tensor"
    ]


def test_a_shard_that_the_index_does_not_list(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    write_shard(tmp_path / "model-mtp.safetensors", [Tensor("mtp.fc.weight", "BF16", (1,), b"xy")])
    assert problems(tmp_path) == []
    assert problems(tmp_path, Severity.WARNING) == [f"model-mtp.safetensors: {INDEX} does not list this shard"]
    assert "mtp.fc.weight" in {located.tensor.name for located in open_checkpoint(tmp_path).tensors()}


def test_an_indexed_tensor_that_its_shard_does_not_hold(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    change_json(tmp_path / INDEX, lambda index: index["weight_map"].update(ghost=shard_name(1, 2)))
    assert problems(tmp_path) == [f"{shard_name(1, 2)}: ghost: {INDEX} places it here, but this shard does not hold it"]


def test_a_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    name = "model.layers.0.norm.weight"
    change_json(tmp_path / INDEX, lambda index: index["weight_map"].update({name: shard_name(2, 2)}))
    assert problems(tmp_path) == [f"{shard_name(1, 2)}: {name}: is here, but {INDEX} places it in {shard_name(2, 2)}"]


def test_a_tensor_that_stands_in_two_shards(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    write_shard(tmp_path / "a.safetensors", [Tensor("model.layers.0.norm.weight", "BF16", (5,), bytes(10))])
    [warning] = problems(tmp_path, Severity.WARNING)
    listed = shard_name(1, 2)
    assert warning.startswith(
        f"a.safetensors: {INDEX} does not list this shard: its only tensor is in {listed} as well: left out"
    )
    found = list(map(str, errors(open_checkpoint(tmp_path, all_shards=True).problems)))
    name = "a.safetensors: model.layers.0.norm.weight"
    assert f"{name}: is also in {listed}: remove one of the two files" in found
    assert f"{name}: is here, but {INDEX} places it in {listed}" in found


def test_a_stale_total_size_is_no_problem(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    change_json(tmp_path / INDEX, lambda index: index["metadata"].update(total_size=1))
    assert open_checkpoint(tmp_path).problems == []


def test_a_cut_shard_is_named_with_the_missing_bytes_and_the_lost_tensors(tmp_path: Path) -> None:
    path = mini_hf(tmp_path, 3) / TWO
    size = path.stat().st_size
    os.truncate(path, size - 5)
    found = problems(tmp_path)
    assert found[0] == f"{TWO}: the file has {size - 5} bytes, but its header needs {size}: 5 bytes are missing"
    lost = "model.layers.1.mlp.experts.0.down_proj.weight_scale"
    past = f"past the end of the file ({size - 5} bytes)"
    assert found[1] == f"{TWO}: {lost}.nvfp4_csf_exceptions: ends at byte {size - 4}, {past}"
    assert found[2] == f"{TWO}: {lost}_2: ends at byte {size}, {past}"
    assert len(found) == 3


def test_names_from_files_are_escaped_in_problems(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", [Tensor("\x1b[2Jevil\n.nvfp4_csf_fixed", "U8", (1,), b"x")])
    [problem] = problems(tmp_path)
    assert problem.startswith("model.safetensors: \\x1b[2Jevil\\n: has no NVFP4 exception list")
    assert "\x1b" not in problem


# Scale


def test_many_names_take_little_time_and_no_quadratic_step(tmp_path: Path) -> None:
    shards = {}
    for s in range(4):
        tensors = [Tensor(f"model.layers.{s}.e.{i}.w", "U8", (0,), b"") for i in range(2500)]
        shards[shard_name(s + 1, 4)] = tensors
    checkpoint = open_checkpoint(write_hf(tmp_path, shards))
    assert sum(1 for _ in checkpoint.tensors()) == 10_000
    assert checkpoint.problems == []


def test_opening_reads_headers_only(tmp_path: Path) -> None:
    """A shard of 4 GiB of holes is opened in its header's time."""
    weight = Tensor("a.weight", "U8", (1 << 32,), b"")
    header = {weight.name: {"dtype": "U8", "shape": [1 << 32], "data_offsets": [0, 1 << 32]}}
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw_file(header))
    try:
        os.truncate(path, len(raw_file(header)) + (1 << 32))
    except OSError:
        pytest.skip("no sparse files here")
    checkpoint = open_checkpoint(path)
    assert (checkpoint.problems, checkpoint.shards[0].size) == ([], path.stat().st_size)


def test_a_copy_of_a_sample_with_a_swapped_shard_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "nvfp4-csf-hf", tmp_path / "c")
    first, second = (tmp_path / "c" / shard_name(i, 3) for i in (1, 2))
    shutil.copy(first, second)
    found = errors(open_checkpoint(tmp_path / "c").problems)
    assert any("is also in model-00001-of-00003.safetensors" in p.problem for p in found)
    listed = json.loads((tmp_path / "c" / INDEX).read_text())["weight_map"]
    lost = {name for name, shard in listed.items() if shard == second.name}
    assert {p.tensor for p in found if "this shard does not hold it" in p.problem} == lost


def test_an_exception_list_in_another_shard_of_a_container(tmp_path: Path) -> None:
    root = home_made(tmp_path)
    tensors = {name: compressed(dense, NVFP4) for name, dense in model(NVFP4).items()}
    first, second = tensors.values()
    moved = next(t for t in first if t.name.endswith("_exceptions"))
    for name, stored in zip(tensors, ([t for t in first if t is not moved], [*second, moved]), strict=True):
        write_shard(root / "tensors" / name, stored, {"format": "pt"})
    change_json(root / "manifest.json", lambda m: [row.pop("target_file_bytes") for row in m["shards"]])
    change_json(root / "manifest.json", lambda m: m.pop("compressed_weight_file_bytes"))
    checkpoint = open_checkpoint(root)
    assert errors(checkpoint.problems) == []
    split = [plane for plane in checkpoint.planes if plane.fixed.shard is not plane.exceptions.shard]
    assert [plane.name + ".nvfp4_csf_exceptions" for plane in split] == [moved.name]


@pytest.mark.parametrize("indent", [None, 2, 3], ids=["as written", "indented", "an index that no text equals"])
def test_streams_and_weights_in_different_shards(tmp_path: Path, indent: int | None) -> None:
    """The same for an index compared as text, after each shard by itself, and name by name."""
    scale = Tensor("m.up_proj.weight_scale", "F8_E4M3", (16, 4), make_scales(16, 4, NVFP4, seed=1))
    weight = Tensor("m.up_proj.weight", "U8", (16, 32), bytes(512))
    held = {
        shard_name(i, 3): [tensor] for i, tensor in enumerate([weight, *streams(scale, NVFP4, two_d=False)], start=1)
    }
    for name, tensors in held.items():
        write_shard(tmp_path / name, tensors)
    placed = {tensor.name: name for name, tensors in held.items() for tensor in tensors}
    order = sorted(placed, reverse=indent == 3)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {name: placed[name] for name in order}}, indent=indent))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.problems == []
    [plane] = checkpoint.planes
    assert (plane.name, plane.rows, plane.cols) == (scale.name, 16, 4)
    assert {plane.fixed.shard.name, plane.exceptions.shard.name} == {shard_name(2, 3), shard_name(3, 3)}


def test_streams_of_the_oracle_are_those_of_the_samples() -> None:
    """The oracle's encoder against the publisher's streams."""
    csf, dense = open_checkpoint(SAMPLES / "mxfp4-csf-container"), open_checkpoint(SAMPLES / "mxfp4-dense")
    plane = csf.planes[0]
    scale = next(p for p in dense.dense_planes if p.name == plane.name).scale
    data = scale.shard.path.read_bytes()[scale.tensor.begin : scale.tensor.end]
    fixed, exceptions = streams(Tensor(plane.name, "F8_E8M0", (plane.rows, plane.cols), data), MXFP4)
    stored = plane.fixed.shard.path.read_bytes()
    assert stored[plane.fixed.tensor.begin : plane.fixed.tensor.end] == fixed.data
    assert stored[plane.exceptions.tensor.begin : plane.exceptions.tensor.end] == exceptions.data


def test_a_dtype_that_nobody_knows_is_a_warning(tmp_path: Path) -> None:
    write_shard(tmp_path / "model.safetensors", [Tensor("x", "BG16", (5,), bytes(10))])
    text = "has dtype 'BG16', which csf-tool does not know: it is newer than csf-tool, or damaged"
    assert problems(tmp_path, Severity.WARNING) == [f"model.safetensors: x: {text}"]


@pytest.mark.parametrize("left", ["build-contract.json", "receipts"])
def test_a_container_without_its_manifest_is_at_fault_and_not_the_user(tmp_path: Path, left: str) -> None:
    root = mini_container(tmp_path)
    for name in {"manifest.json", "build-contract.json"} - {left}:
        (root / name).unlink()
    if left != "receipts":
        shutil.rmtree(root / "receipts")
    assert "without its manifest.json" in refused(root, CheckpointError)
