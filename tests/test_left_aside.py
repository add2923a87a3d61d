"""The index decides: every command works on what it lists, and says in one line a file what was left out."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import errors
from csf_tool.loading.safe_open import safe_open
from tests.building import (
    INDEX,
    NVFP4,
    Tensor,
    change_json,
    compressed,
    layer,
    mini_dense,
    mini_hf,
    model,
    sha256,
    shard_name,
    tree,
    write_json,
    write_shard,
)
from tests.commands import run, says

ONE, TWO = shard_name(1, 2), shard_name(2, 2)
COPY, SINGLE = "model-00001-of-00002 (1).safetensors", "model.safetensors"
MTP = [Tensor("mtp.fc.weight", "BF16", (1,), b"xy")]
Stray = Callable[[Path], list[str]]


def stored(root: Path) -> list[Tensor]:
    """All tensors of the model as the folder stores them."""
    tensors = [tensor for tensors in model(NVFP4).values() for tensor in tensors]
    return compressed(tensors, NVFP4) if "_csf_" in (root / INDEX).read_text() else tensors


def copy(root: Path) -> list[str]:
    """A browser's second copy."""
    shutil.copy(root / ONE, root / COPY)
    return [COPY]


def split(root: Path) -> list[str]:
    """A second split, as a repository that was written over has it."""
    names = [shard_name(i, 3) for i in (1, 2, 3)]
    for i, name in enumerate(names):
        write_shard(root / name, stored(root)[i::3])
    return names


def single(root: Path) -> list[str]:
    """All in one file, of the name that has no index."""
    return [write_shard(root / SINGLE, stored(root)).name]


def consolidated(root: Path) -> list[str]:
    """All in one file of another name."""
    return [write_shard(root / "consolidated.safetensors", stored(root)).name]


def with_index(root: Path) -> list[str]:
    """A second set with an index of its own."""
    names = [f"consolidated-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        write_shard(root / name, stored(root)[i::2])
    placed = {tensor.name: names[i % 2] for i, tensor in enumerate(stored(root))}
    write_json(root / "consolidated.safetensors.index.json", {"metadata": {}, "weight_map": placed})
    return [*names, "consolidated.safetensors.index.json"]


def other_form(root: Path) -> list[str]:
    """The same layer dense beside streams, or in streams beside dense scales."""
    tensors = layer(0, NVFP4)
    is_csf = "_csf_" in (root / INDEX).read_text()
    return [write_shard(root / "old.safetensors", tensors if is_csf else compressed(tensors, NVFP4)).name]


def in_names_of_another_scheme(root: Path) -> list[Tensor]:
    """The model's tensors, called as Mistral calls them."""
    new = {"model.": "", "mlp.experts": "experts", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    found = []
    for tensor in stored(root):
        name = tensor.name.replace(".norm.", ".attention_norm.")
        for word, instead in new.items():
            name = name.replace(word, instead)
        found.append(Tensor(name, tensor.dtype, tensor.shape, tensor.data))
    return found


def renamed(root: Path) -> list[str]:
    """All in one file, under the names of another scheme."""
    return [write_shard(root / "consolidated.safetensors", in_names_of_another_scheme(root)).name]


def renamed_with_index(root: Path) -> list[str]:
    """A set under the names of another scheme, with an index of its own."""
    names = [f"consolidated-0000{i}-of-00002.safetensors" for i in (1, 2)]
    tensors = in_names_of_another_scheme(root)
    for i, name in enumerate(names):
        write_shard(root / name, tensors[i::2])
    placed = {tensor.name: names[i % 2] for i, tensor in enumerate(tensors)}
    write_json(root / "consolidated.safetensors.index.json", {"metadata": {}, "weight_map": placed})
    return [*names, "consolidated.safetensors.index.json"]


def older_prefix(root: Path) -> list[str]:
    """A set that a repository had before its modules were called otherwise."""
    names = [shard_name(i, 4) for i in (1, 2, 3, 4)]
    for i, name in enumerate(names):
        moved = [Tensor(f"language_model.{t.name}", t.dtype, t.shape, t.data) for t in stored(root)[i::4]]
        write_shard(root / name, moved)
    return names


def cut(root: Path) -> list[str]:
    """A copy that ends early."""
    copy(root)
    os.truncate(root / COPY, (root / COPY).stat().st_size - 7)
    return [COPY]


def no_header(root: Path) -> list[str]:
    """A copy whose header is damaged."""
    (root / COPY).write_bytes(b"\xff" * 3000)
    return [COPY]


def empty(root: Path) -> list[str]:
    """A copy that never began."""
    (root / COPY).write_bytes(b"")
    return [COPY]


def dangling(root: Path) -> list[str]:
    """A link whose file is gone."""
    (root / COPY).symlink_to("gone")
    return [COPY]


RENAMED: list[Stray] = [renamed, renamed_with_index, older_prefix]
STRAYS: list[Stray] = [
    *(copy, split, single, consolidated, with_index, other_form, cut, no_header, empty, dangling),
    *RENAMED,
]
ONLY_HEADERS: list[tuple[str, ...]] = [("stats",), ("plan",), ("inspect",), ("identity", "--by", "sizes")]


def lines_of(output: str, name: str) -> list[str]:
    """The lines of warnings and errors that begin with a file."""
    return [line for line in output.splitlines() if line.split(": ", 1)[-1].startswith(f"{name}: ")]


def left_aside(output: str, names: list[str]) -> None:
    """Check that each file is named in one line, as left out."""
    for name in names:
        [line] = lines_of(output, name)
        assert line.startswith("warning: "), line
        assert "left out" in line


def without_place(document: dict[str, object]) -> dict[str, object]:
    """A JSON report without what differs between two folders."""
    return {key: value for key, value in document.items() if key not in ("checkpoint", "path", "problems")}


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("words", ONLY_HEADERS, ids=lambda words: words[0])
def test_commands_that_look_work_on_what_the_index_lists(tmp_path: Path, stray: Stray, words: tuple[str, ...]) -> None:
    plain, root = mini_hf(tmp_path / "plain"), mini_hf(tmp_path / "root")
    names = stray(root)
    wanted, found = run(*words[:1], plain, *words[1:]), run(*words[:1], root, *words[1:])
    assert (wanted.exit_code, found.exit_code) == (0, 0), found.output
    left_aside(found.stderr, names)
    as_json = [json.loads(run(*words[:1], folder, *words[1:], "--json").stdout) for folder in (plain, root)]
    assert without_place(as_json[0]) == without_place(as_json[1])


@pytest.mark.parametrize("stray", STRAYS)
def test_verify_names_what_it_could_not_vouch_for(tmp_path: Path, stray: Stray) -> None:
    dense, root = mini_dense(tmp_path / "dense"), mini_hf(tmp_path / "root")
    names = stray(root)
    for words in ((), ("--against", dense, "--tensors-only")):
        result = run("verify", root, *words)
        assert result.exit_code == 0, result.output
        text = "\n".join(line.strip() for line in result.stdout.splitlines())
        for name in names:
            [line] = [line for line in text.splitlines() if line.startswith(f"{name}: ")]
            assert "left out" in line
    assert "VERIFIED IN PART" in text
    assert "VERIFIED." not in text
    [unproved] = [line for line in text.splitlines() if line.startswith("Not proved: ") and "--tensors-only" in line]
    assert all(name in unproved for name in names if (root / name).exists() and name.endswith("rs"))


def test_a_recorded_hash_vouches_for_what_was_left_aside(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    copy(root)
    files = [path for path in sorted(root.iterdir()) if path.is_file()]
    (root / "SHA256SUMS").write_text("".join(f"{sha256(path.read_bytes())}  {path.name}\n" for path in files))
    result = run("verify", root)
    assert result.exit_code == 0
    says(result, "VERIFIED AS PUBLISHED;")
    (root / COPY).write_bytes(b"other")
    says(run("verify", root), "FAILED: stored.")
    assert run("expand", root, tmp_path.parent / f"{tmp_path.name}-out").exit_code == 0


@pytest.mark.parametrize("stray", STRAYS)
def test_what_the_reference_leaves_aside_is_not_missed(tmp_path: Path, stray: Stray) -> None:
    dense, root = mini_dense(tmp_path / "dense"), mini_hf(tmp_path / "root")
    names = {name for name in stray(dense) if name.endswith(".safetensors")}
    result = run("verify", root, "--against", dense, "--json")
    failed = json.loads(result.stdout)["failed_files"]
    assert not names & set(failed)


@pytest.mark.parametrize("stray", [with_index, renamed_with_index])
@pytest.mark.parametrize("way", ["hf", "container"])
def test_an_index_of_what_was_left_aside_is_not_missed(tmp_path: Path, stray: Stray, way: str) -> None:
    root = mini_dense(tmp_path / "root")
    stray(root)
    (root / "model.fp8.safetensors.index.json").write_bytes((root / INDEX).read_bytes())
    assert run("compress", root, tmp_path / "csf", "--keep-larger", "--to", way).exit_code == 0
    result = run("verify", tmp_path / "csf", "--against", root)
    assert result.exit_code == 0, result.output
    says(result, "VERIFIED")
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    assert run("verify", tmp_path / "out", "--against", root).exit_code == 0


@pytest.mark.parametrize("stray", STRAYS)
@pytest.mark.parametrize("way", ["expand", "compress hf", "compress container", "convert container"])
def test_commands_that_write_carry_what_the_index_lists(tmp_path: Path, stray: Stray, way: str) -> None:
    make = mini_dense if way.startswith("compress") else mini_hf
    plain, root = make(tmp_path / "plain"), make(tmp_path / "root")
    names = stray(root)
    command, _, to = way.partition(" ")
    words = [*(["--to", to] if to else []), *(["--keep-larger"] if command == "compress" else [])]
    if to == "container":
        words += ["--source-model-id", "m", "--source-revision", "r"]
    assert run(command, plain, tmp_path / "wanted", *words).exit_code == 0
    result = run(command, root, tmp_path / "found", *words)
    assert result.exit_code == 0, result.output
    left_aside(result.output, names)
    [closing] = [line for line in result.stdout.splitlines() if line.startswith("Not copied (shards that were")]
    assert all(name in closing for name in names if name.endswith(".safetensors"))
    assert ": restored bit for bit" not in result.output
    wanted, found = tree(tmp_path / "wanted"), tree(tmp_path / "found")
    assert wanted == found
    assert run(command, root, tmp_path / "found", *words).exit_code == 0


@pytest.mark.parametrize("stray", STRAYS)
def test_the_loading_api_takes_what_the_index_lists(tmp_path: Path, stray: Stray) -> None:
    plain, root = mini_hf(tmp_path / "plain"), mini_hf(tmp_path / "root")
    names = stray(root)
    with safe_open(plain, "np") as wanted, safe_open(root, "np") as found:
        assert wanted.keys() == found.keys()
        name = "model.layers.0.mlp.experts.0.gate_proj.weight"
        assert wanted.get_tensor(name).tolist() == found.get_tensor(name).tolist()
    assert open_checkpoint(root).aside == sorted(name for name in names if name.endswith(".safetensors"))


@pytest.mark.parametrize("stray", [copy, split, single, consolidated, with_index, cut])
def test_all_shards_takes_everything_as_it_is(tmp_path: Path, stray: Stray) -> None:
    root = mini_hf(tmp_path)
    stray(root)
    opened = open_checkpoint(root, all_shards=True)
    assert (opened.aside, {shard.name for shard in opened.shards}) == ([], {p.name for p in root.glob("*.safetensors")})
    for command in ("stats", "verify"):
        result = run(command, root, "--all-shards")
        assert result.exit_code == 1
        says(result, "also in")
    assert run("expand", root, tmp_path / "out", "--all-shards").exit_code in (1, 2)


def test_shards_of_other_tensors_are_carried(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "root")
    copy(root)
    write_shard(root / "model-mtp.safetensors", MTP, {"format": "pt"})
    result = run("expand", root, tmp_path / "out")
    assert result.exit_code == 0
    says(result, f"model-mtp.safetensors: {INDEX} does not list this shard\n", f"{COPY}: {INDEX} does not list")
    assert (tmp_path / "out" / "model-mtp.safetensors").exists()
    assert not (tmp_path / "out" / COPY).exists()


def draft(root: Path) -> list[Tensor]:
    """A draft layer, whose tensors look like a layer's."""
    return [Tensor(t.name.replace("model.", "mtp."), t.dtype, t.shape, t.data) for t in layer(0, NVFP4)]


def further_layers(root: Path) -> list[Tensor]:
    """As many layers as the index lists, and others."""
    return [t for i in (2, 3) for t in layer(i, NVFP4)]


def adapter(root: Path) -> list[Tensor]:
    """An adapter with as many tensors as the model."""
    names = [t.name.removesuffix(".weight") for t in stored(root)]
    return [Tensor(f"base_model.{name}.lora_A.weight", "F32", (1,), b"lora") for name in names]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("make", [draft, further_layers, adapter])
def test_what_is_no_copy_of_the_model_is_carried(
    tmp_path: Path, make: Callable[[Path], list[Tensor]], shards: int
) -> None:
    root = mini_dense(tmp_path / "root", shards=shards)
    write_shard(root / "other.safetensors", make(root), {"format": "pt"})
    result = run("compress", root, tmp_path / "out", "--keep-larger")
    assert result.exit_code == 0, result.output
    says(result, f"other.safetensors: {INDEX} does not list this shard\n")
    assert (tmp_path / "out" / "other.safetensors").exists()


@pytest.mark.parametrize("has_index", [True, False])
def test_a_shard_that_mixes_both_is_neither_carried_nor_left_aside(tmp_path: Path, has_index: bool) -> None:
    """Neither may its new tensors be lost, nor may those of the index stand in the result twice."""
    root = mini_dense(tmp_path / "root")
    if not has_index:
        single(root)
        for name in (INDEX, ONE, TWO):
            (root / name).unlink()
    norm = Tensor("model.layers.0.norm.weight", "BF16", (5,), bytes(10))
    write_shard(root / "mixed.safetensors", [norm, *MTP])
    for words in (["stats", root], ["verify", root], ["compress", root, tmp_path / "out", "--keep-larger"]):
        result = run(*words)
        assert result.exit_code == 1
        home = ONE if has_index else SINGLE
        says(result, f"1 of its 2 tensors is in {home} as well, but 1 tensor, mtp.fc.weight, is only here")
        assert result.output.count("mixed.safetensors") == 1


def test_options_that_differ_are_another_run(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "root")
    write_shard(root / "model-mtp.safetensors", MTP, {"format": "pt"})
    assert run("expand", root, tmp_path / "out", "--shards", "1/2").exit_code == 0
    for words in (["--shards", "2/2"], []):
        result = run("expand", root, tmp_path / "out", *words, "--all-shards")
        assert result.exit_code == 2
        says(result, "all_shards")
    result = run("finish", root, tmp_path / "out", "--all-shards")
    assert result.exit_code == 2
    says(result, "all_shards")
    assert run("expand", root, tmp_path / "out", "--shards", "2/2").exit_code == 0
    assert run("expand", root, tmp_path / "out").exit_code == 0
    result = run("expand", root, tmp_path / "out", "--all-shards")
    assert result.exit_code == 2


def test_finish_knows_that_all_shards_were_wanted(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "root")
    for part in ("1/2", "2/2"):
        assert run("expand", root, tmp_path / "out", "--all-shards", "--shards", part).exit_code == 0
    assert run("finish", root, tmp_path / "out", "--all-shards").exit_code == 0


@pytest.mark.parametrize("stray", STRAYS)
def test_consuming_the_source_leaves_alone_what_was_left_aside(
    tmp_path: Path, stray: Stray, monkeypatch: pytest.MonkeyPatch
) -> None:
    from csf_tool.write import engine

    root = mini_dense(tmp_path / "root")
    names = stray(root)
    before = {name: (root / name).read_bytes() for name in names if (root / name).exists()}
    words = ["compress", root, tmp_path / "out", "--keep-larger", "--consume-source", "--yes", "--jobs", 1]

    monkeypatch.setattr(engine._Run, "_finish_when_all_are_there", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    assert run(*words).exit_code == 130
    monkeypatch.undo()
    assert {ONE, TWO} - {path.name for path in root.iterdir()}
    assert run(*words).exit_code == 0
    assert {name: (root / name).read_bytes() for name in before} == before
    assert not {ONE, TWO} & {path.name for path in root.iterdir()}
    again = run(*words)
    assert again.exit_code == 0, again.output
    says(again, "is already complete")
    assert errors(open_checkpoint(tmp_path / "out").problems) == []


def test_a_stale_index_says_that_others_are_here(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    split(root)
    for name in (ONE, TWO):
        (root / name).unlink()
    for command in ("stats", "verify"):
        result = run(command, root)
        assert result.exit_code == 1
        says(
            result,
            f"all shards that {INDEX} lists are missing, such as {ONE} "
            f"(found 3 other shards, for example {shard_name(1, 3)})",
        )


def test_a_stale_index_beside_everything_in_one_file(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    single(root)
    for name in (ONE, TWO):
        (root / name).unlink()
    result = run("stats", root)
    assert result.exit_code == 1
    says(result, "none of 2 shards can be read", f"{SINGLE} will be used if you move {INDEX} away")
    (root / INDEX).unlink()
    assert run("stats", root).exit_code == 0


def test_a_copy_of_a_shard_that_is_not_there(tmp_path: Path) -> None:
    root = mini_hf(tmp_path)
    (root / ONE).rename(root / COPY)
    result = run("stats", root)
    assert result.exit_code == 1
    says(result, f"{ONE}: is missing", f"all of its 16 tensors belong in {ONE}, by the index: left out")


# Without an index


def no_index(root: Path) -> Path:
    (root / INDEX).unlink()
    return root


def test_a_single_file_counts_where_there_is_no_index(tmp_path: Path) -> None:
    """As transformers takes it, which looks for `model.safetensors` before it looks for an index."""
    root = mini_dense(tmp_path / "root")
    single(root)
    no_index(root)
    for words in (["stats", root], ["verify", root], ["compress", root, tmp_path / "out", "--keep-larger"]):
        result = run(*words)
        assert result.exit_code == 0, result.output
        for name in (ONE, TWO):
            says(result, f"{name}: no index lists this shard: all of its 13 tensors are in {SINGLE} as well")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {SINGLE, "config.json"}


def test_a_lone_single_file_beside_an_index_is_what_transformers_takes(tmp_path: Path) -> None:
    root = mini_dense(tmp_path / "root")
    single(root)
    says(run("stats", root), "left out (--all-shards uses it); transformers loads a file of this name first")


@pytest.mark.parametrize("stray", [copy, split, consolidated])
def test_where_nothing_decides_one_line_says_so(tmp_path: Path, stray: Stray) -> None:
    root = mini_dense(tmp_path / "root")
    stray(root)
    no_index(root)
    for words in (["stats", root], ["verify", root], ["compress", root, tmp_path / "out", "--keep-larger"]):
        result = run(*words)
        assert result.exit_code == 1
        [line] = [line for line in result.output.splitlines() if "also in" in line]
        assert "remove one set of shards, or add the index of the other" in line


def test_a_source_without_an_index_is_not_consumed_beside_what_was_left_aside(tmp_path: Path) -> None:
    root = mini_dense(tmp_path / "root")
    single(root)
    no_index(root)
    result = run("compress", root, tmp_path / "out", "--keep-larger", "--consume-source", "--yes")
    assert result.exit_code == 2
    says(result, f"no index tells whether {ONE} counts: move it away first")


def test_the_index_decides_on_the_hub_too(tmp_path: Path, hub: "object") -> None:
    root = mini_hf(tmp_path / "root")
    names = split(root)
    hub.add("org/strays", root)  # type: ignore[attr-defined]
    result = run("stats", "org/strays")
    assert result.exit_code == 0, result.output
    left_aside(result.stderr, names)
    result = run("expand", "org/strays", tmp_path / "out")
    assert result.exit_code == 0, result.output
    cached = {path.name for path in (tmp_path / "hub-cache").rglob("*.safetensors")}
    assert not cached & set(names)


def test_an_index_that_says_less_than_its_shards_hold(tmp_path: Path) -> None:
    """A tensor of a listed shard that the index forgot stays a warning, and its copy is no new tensor."""
    root = mini_hf(tmp_path)
    copy(root)
    change_json(root / INDEX, lambda index: index["weight_map"].pop("model.layers.0.norm.weight"))
    assert open_checkpoint(root).aside == [COPY]
