"""Every file of a source is in the result byte for byte, or rewritten by a known rule, or named in what is said."""

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.building import (
    INDEX,
    NVFP4,
    Tensor,
    change_json,
    home_made,
    layer,
    mini_container,
    mini_dense,
    model,
    sha256,
    tree,
    write_json,
    write_shard,
)
from tests.commands import run, says

REWRITTEN = {"config.json", INDEX}
SECOND = "consolidated.safetensors.index.json"
BIT_FOR_BIT = "restored bit for bit"


def nested(root: Path, folder: str = "dspark") -> None:
    """A checkpoint in a folder of its own, with its index."""
    name, tensors = "model-00001-of-00001.safetensors", layer(7, NVFP4)
    write_shard(root / folder / name, tensors)
    write_json(root / folder / INDEX, {"metadata": {}, "weight_map": {t.name: name for t in tensors}})
    write_json(root / folder / "config.json", {"model_type": "draft"})


def second(root: Path, name: str = SECOND) -> None:
    """A second set at the top, with its index."""
    write_shard(root / "consolidated.safetensors", [Tensor("tok.weight", "F32", (1,), b"abcd")], {"format": "pt"})
    write_json(root / name, {"metadata": {}, "weight_map": {"tok.weight": "consolidated.safetensors"}})


def second_of_the_same_shards(root: Path) -> None:
    """An index of the shards that are compressed."""
    (root / "model.fp8.safetensors.index.json").write_bytes((root / INDEX).read_bytes())


def of_a_variant(root: Path) -> None:
    """The index of a variant, of the shards that are compressed."""
    (root / "model.safetensors.index.fp8.json").write_bytes((root / INDEX).read_bytes())


def hidden(root: Path) -> None:
    """Indexes and other files in hidden folders, and hidden files."""
    for folder in (".cache/huggingface/download", ".git", "sub/.hidden"):
        write_json(root / folder / "model.safetensors.index.json", {"weight_map": {}})
    for name in (".gitattributes", "sub/.keep"):
        (root / name).write_text(name)


def links(root: Path) -> None:
    """Links to folders: inside, outside, in a circle, twice to one folder; to files inside and outside."""
    outside = root.parent / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "x.json").write_text("{}")
    (root / "real").mkdir()
    (root / "real" / "tokenizer.json").write_text("{}")
    links = {"inside": "real", "again": "real", "real/round": "..", "far": "../outside", "file": "real/tokenizer.json"}
    for name, target in {**links, "farther.json": "../outside/deep/x.json"}.items():
        (root / name).symlink_to(target)


def sums(root: Path) -> None:
    """Hashes of the shards, and of those in a folder."""
    lines = [f"{sha256(path.read_bytes())}  {path.name}\n" for path in sorted(root.glob("*.safetensors"))]
    (root / "SHA256SUMS").write_text("".join(lines))
    (root / "sub").mkdir()
    (root / "sub" / "SHA256SUMS").write_text(f"{'0' * 64}  x\n")


def own(root: Path) -> None:
    """What an interrupted run of csf-tool leaves."""
    (root / ".tokenizer.json.host-1-0123abcd.partial").write_text("{")


FOLDERS: list[Callable[[Path], None]] = [
    nested,
    second,
    second_of_the_same_shards,
    of_a_variant,
    hidden,
    links,
    sums,
    own,
]


def spoken_of(name: str, output: str) -> bool:
    """Whether what is said names a file, or a folder that it lies in."""
    words = output.replace(",", " ").split()
    parts = name.split("/")
    return any("/".join(parts[:n]) in (word.rstrip(".") for word in words) for n in range(1, len(parts) + 1))


def require_nothing_lost(source: Path, result: Path, output: str, rewritten: set[str]) -> None:
    """Check that every file of a source is in the result as it was, or is to be rewritten, or is named."""
    have = tree(result)
    for name, data in tree(source).items():
        if name in rewritten:
            assert name in have, name
        else:
            assert have.get(name) == data or spoken_of(name, output), f"{name} is lost: {output}"


@pytest.mark.parametrize("fill", FOLDERS)
@pytest.mark.parametrize("way", ["hf", "container", "hf by container", "container by hf"])
def test_no_file_is_lost_without_a_word(tmp_path: Path, fill: Callable[[Path], None], way: str) -> None:
    dense, csf, other, out = (tmp_path / name for name in ("dense", "csf", "other", "out"))
    mini_dense(dense)
    fill(dense)
    shards = {path.name for path in dense.glob("*.safetensors")}
    first, _, last = way.rpartition(" by ")
    said = run("compress", dense, csf, "--to", last, "--keep-larger")
    assert said.exit_code == 0, said.output
    spoken = said.output
    if last == "hf":
        require_nothing_lost(dense, csf, spoken, REWRITTEN | shards)
    else:
        require_nothing_lost(dense, csf / "metadata", spoken + " ".join(shards), set())
    if first:
        said = run("convert", csf, other, "--to", first)
        assert said.exit_code == 0, said.output
        spoken += said.output
        csf = other
    said = run("expand", csf, out)
    assert said.exit_code == 0, said.output
    require_nothing_lost(dense, out, spoken + said.output, set() if way == "container" else REWRITTEN | shards)
    if way == "container":
        assert BIT_FOR_BIT in said.output


@pytest.mark.parametrize("way", ["hf", "container"])
def test_second_indexes_and_nested_checkpoints_come_back(tmp_path: Path, way: str) -> None:
    dense = mini_dense(tmp_path / "dense")
    nested(dense)
    second(dense)
    assert run("compress", dense, tmp_path / "csf", "--to", way, "--keep-larger").exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    assert tree(tmp_path / "out").keys() == tree(dense).keys()


def test_an_index_of_what_has_other_names_is_left_out_and_named(tmp_path: Path) -> None:
    dense = mini_dense(tmp_path / "dense")
    second_of_the_same_shards(dense)
    name = "model.fp8.safetensors.index.json"
    result = run("compress", dense, tmp_path / "csf", "--to", "hf", "--keep-larger")
    says(result, f"Not copied (an index whose tensors have other names now): {name}.")
    assert not (tmp_path / "csf" / name).exists()
    run("compress", dense, tmp_path / "container", "--to", "container", "--keep-larger")
    result = run("convert", tmp_path / "container", tmp_path / "hf", "--to", "hf", "--json")
    assert [entry["file"] for entry in json.loads(result.stdout)["not_carried"]] == [name]
    run("expand", tmp_path / "container", tmp_path / "out")
    assert tree(tmp_path / "out") == tree(dense)


def test_an_index_in_a_folder_that_speaks_of_shards_above_is_looked_at(tmp_path: Path) -> None:
    dense = mini_dense(tmp_path / "dense")
    shards = {f"sub/{name}": tensors for name, tensors in model(NVFP4, 2).items()}
    for name in model(NVFP4, 2):
        (dense / name).unlink()
    for name, tensors in shards.items():
        write_shard(dense / name, tensors, {"format": "pt"})
    change_json(
        dense / INDEX, lambda index: index.update(weight_map={t.name: n for n, ts in shards.items() for t in ts})
    )
    inner = {t.name: name.removeprefix("sub/") for name, tensors in shards.items() for t in tensors}
    write_json(dense / "sub" / INDEX, {"weight_map": inner})
    result = run("compress", dense, tmp_path / "csf", "--to", "hf", "--keep-larger")
    says(result, f"other names now): sub/{INDEX}.")


def test_consuming_the_source_decides_about_indexes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dense = mini_dense(tmp_path / "dense")
    second_of_the_same_shards(dense)
    second(dense)
    true_bytes = (dense / SECOND).read_bytes()
    from csf_tool.write import engine

    monkeypatch.setattr(engine._Run, "_finish_when_all_are_there", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    words = ["compress", dense, tmp_path / "csf", "--to", "hf", "--keep-larger", "--consume-source", "--yes"]
    assert run(*words).exit_code == 130
    monkeypatch.undo()
    assert len(list(dense.glob("*.safetensors"))) < 3
    assert run(*words).exit_code == 0
    assert not (tmp_path / "csf" / "model.fp8.safetensors.index.json").exists()
    assert (tmp_path / "csf" / SECOND).read_bytes() == true_bytes


def covered(root: Path, *more: str) -> None:
    """Let a container's manifest list everything in metadata/, links to folders left out, and `more`."""
    files = tree(root / "metadata") | {name: (root / "metadata" / name).read_bytes() for name in more}
    change_json(root / "manifest.json", lambda d: d.update(metadata_sha256={n: sha256(b) for n, b in files.items()}))


def test_bit_for_bit_is_said_of_what_a_hash_covers(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "c")
    (root / "metadata" / "tokenizer.json").write_text("{}")
    result = run("expand", root, tmp_path / "1")
    says(result, "and 2 other files have that of the manifest; not covered by a hash: tokenizer.json.")
    assert BIT_FOR_BIT not in result.output
    covered(root)
    assert BIT_FOR_BIT in run("expand", root, tmp_path / "2").output
    change_json(root / "manifest.json", lambda d: d["metadata_sha256"].pop("config.json"))
    says(run("expand", root, tmp_path / "3"), "not covered by a hash: config.json.")
    change_json(root / "manifest.json", lambda d: d.pop("metadata_sha256"))
    says(run("expand", root, tmp_path / "4"), "not covered by a hash: config.json, tokenizer.json.")


@pytest.mark.parametrize("where", ["model-00009.safetensors", "sub/x.safetensors"])
@pytest.mark.parametrize("command", ["expand", "convert"])
def test_weights_that_no_hash_covers_are_left_aside_by_name(tmp_path: Path, where: str, command: str) -> None:
    root = mini_container(tmp_path / "c")
    write_shard(root / "metadata" / where, [Tensor("x", "F32", (1,), b"abcd")])
    words = [command, root, tmp_path / "out", *(["--to", "hf"] if command == "convert" else [])]
    result = run(*words)
    assert result.exit_code == 0
    says(result, f"weights without a hash in manifest.json): metadata/{where}.")
    assert BIT_FOR_BIT not in result.output
    assert not (tmp_path / "out" / where).exists()
    covered(root)
    assert run(words[0], root, tmp_path / "again", *words[3:]).exit_code == 0
    assert (tmp_path / "again" / where).is_file()


def test_a_shards_name_is_not_taken_by_another_file(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "c")
    name = next(iter(model(NVFP4, 2)))
    write_shard(root / "metadata" / name, [Tensor("x", "F32", (1,), b"abcd")])
    covered(root)
    result = run("expand", root, tmp_path / "out")
    says(result, f"the output has a shard of that name): {name}.")
    assert BIT_FOR_BIT not in result.output


def test_a_listed_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "c")
    change_json(root / "manifest.json", lambda d: d["metadata_sha256"].update({"generation_config.json": "0" * 64}))
    for words in (["expand", root, tmp_path / "1"], ["convert", root, tmp_path / "2", "--to", "hf"]):
        result = run(*words)
        assert result.exit_code == 1
        says(result, "generation_config.json: is missing")


def test_a_listed_file_in_a_hidden_folder_or_behind_a_link_is_carried(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "c")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "x.py").write_text("x")
    (root / "metadata" / "far").symlink_to(tmp_path / "far")
    (root / "metadata" / ".h").mkdir()
    (root / "metadata" / ".h" / "y.py").write_text("y")
    covered(root, "far/x.py")
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "far" / "x.py").read_text() + (tmp_path / "out" / ".h" / "y.py").read_text() == "xy"


def test_a_file_that_changes_after_it_was_hashed_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from csf_tool.write import engine

    root, real = mini_container(tmp_path / "c"), engine._Run._finish_when_all_are_there
    config = root / "metadata" / "config.json"

    def change_first(self: engine._Run) -> None:
        config.write_bytes(config.read_bytes().replace(b"mini", b"maxi"))
        real(self)

    monkeypatch.setattr(engine._Run, "_finish_when_all_are_there", change_first)
    result = run("expand", root, tmp_path / "out")
    assert result.exit_code == 1
    says(result, "config.json: its SHA-256 changed to")
    assert not (tmp_path / "out" / "config.json").exists()


def test_what_lies_beside_a_containers_metadata_is_named(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "c")
    for name in ("README.md", "LICENSE", "tensors/notes.txt", ".cache/x", "inference/model.py"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    result = run("expand", root, tmp_path / "out")
    says(
        result,
        BIT_FOR_BIT,
        "the container's own files, not the model's): .cache, README.md, inference/model.py, tensors/notes.txt.",
        "LICENSE",
    )


def test_folders_of_a_home_made_container_are_carried(tmp_path: Path) -> None:
    root = home_made(tmp_path / "c")
    (root / "code").mkdir()
    (root / "code" / "model.py").write_text("x")
    assert run("expand", root, tmp_path / "out").exit_code == 0
    assert (tmp_path / "out" / "code" / "model.py").read_text() == "x"


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "sub/x", "LICENSE", INDEX, SECOND])
@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "folder of no one"])
@pytest.mark.parametrize("layout", ["dense", "container"])
def test_special_files_are_refused_by_name(tmp_path: Path, name: str, kind: str, layout: str) -> None:
    if layout == "dense":
        root = folder = mini_dense(tmp_path / "in")
    else:
        root = mini_container(tmp_path / "in")
        folder = root if name == "LICENSE" else root / "metadata"
        change_json(root / "manifest.json", lambda d: d.update(metadata_sha256={}))
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.chdir(path.parent)  # such a path is short
        socket.socket(socket.AF_UNIX).bind(path.name)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")
    command, options = ("compress", ["--keep-larger"]) if layout == "dense" else ("expand", [])
    result = run(command, root, tmp_path / "out", *options)
    assert result.exit_code == 1, result.output
    says(result, name)
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("place", ["", "sub"])
@pytest.mark.parametrize("command", ["stats", "verify", "verify --quick", "compress", "expand", "convert"])
def test_a_folder_that_cannot_be_listed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str, code: int
) -> None:
    is_dense, out = command == "compress", tmp_path / "out"
    root = mini_dense(tmp_path / "in") if is_dense else mini_container(tmp_path / "in")
    folder = (root if is_dense else root / "metadata") / place
    folder.mkdir(exist_ok=True)
    real = os.scandir

    def scandir(path: str | Path = ".") -> object:
        if Path(path) == folder:
            raise OSError(code, os.strerror(code), str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    hf: list[object] = [out, "--to", "hf"]
    words: dict[str, list[object]] = {"convert": hf, "compress": [out, "--keep-larger"], "expand": [out]}
    verb, *options = command.split()
    result = run(verb, root, *options, *words.get(command, []))
    if command in ("stats", "verify --quick"):  # they read nothing there
        assert result.exit_code in (0, 3)
        return
    assert result.exit_code == 3, result.output
    says(result, f"{folder}: cannot be listed: {os.strerror(code)}")
    assert not out.exists() or not tree(out)


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ["config.json", INDEX, "tokenizer.json"])
def test_what_cannot_be_asked_for_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    root, real = mini_dense(tmp_path / "in"), os.stat
    (root / "tokenizer.json").write_text("{}")

    def stat(path: str | Path, **more: object) -> os.stat_result:
        if path == root / name or path == str(root / name):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat)
    result = run("compress", root, tmp_path / "out", "--keep-larger")
    assert result.exit_code == 3, result.output
    says(result, f"{name}: cannot be read: {os.strerror(code)}")


def test_names_that_differ_in_case_only_are_spoken_of(tmp_path: Path) -> None:
    dense = mini_dense(tmp_path / "in")
    for name in ("Vocab.txt", "vocab.txt"):
        (dense / name).write_text(name)
    result = run("compress", dense, tmp_path / "out", "--keep-larger")
    says(result, "Vocab.txt and vocab.txt: these names differ only in case")


@pytest.mark.parametrize("way", ["hf", "container"])
def test_the_index_of_a_variant_decides_and_comes_back(tmp_path: Path, way: str) -> None:
    dense = mini_dense(tmp_path / "dense")
    (dense / INDEX).rename(dense / "model.safetensors.index.fp4.json")
    assert "no index lists" not in run("stats", dense).output
    assert run("compress", dense, tmp_path / "csf", "--to", way, "--keep-larger").exit_code == 0
    assert run("verify", tmp_path / "csf", "--against", dense).exit_code == 0
    assert run("expand", tmp_path / "csf", tmp_path / "out").exit_code == 0
    assert tree(tmp_path / "out").keys() == tree(dense).keys()
    read = [json.loads((root / "model.safetensors.index.fp4.json").read_text()) for root in (dense, tmp_path / "out")]
    assert read[0]["weight_map"] == read[1]["weight_map"]


@pytest.mark.parametrize("name", ["model.fp8.safetensors.index.json", "model.safetensors.index.fp8.json"])
def test_no_index_of_tensors_that_are_gone_is_carried(tmp_path: Path, name: str) -> None:
    dense = mini_dense(tmp_path / "dense")
    (dense / name).write_bytes((dense / INDEX).read_bytes())
    result = run("compress", dense, tmp_path / "csf", "--to", "hf", "--keep-larger")
    says(result, name, "an index whose tensors have other names now")
    assert not (tmp_path / "csf" / name).exists()
