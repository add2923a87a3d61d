"""The verdict covers every file that a reader of the folder may take: compared, hashed, or named as neither."""

import errno
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.building import (
    CODECS,
    MXFP4,
    Tensor,
    change_json,
    home_made,
    layer,
    mini_container,
    mini_dense,
    mini_hf,
    shard_bytes,
    write_shard,
)
from tests.commands import run, says

Build = Callable[[Path], Path]

TAKEN = {
    "tokenizer.json": b'{"a": 1}',
    "chat_template.jinja": b"{{ a1 }}",
    "modeling_mini.py": b"a = 1",
    "code/deep/modeling_mini.py": b"a = 1",
    "additional_chat_templates/tool.jinja": b"{{ a1 }}",
    "onnx/tokenizer.json": b'{"a": 1}',
    "pytorch_model.bin": b"PK\3\4a1",
    "optimizer.pt": b"PK\3\4a1",
    "model.gguf": b"GGUFa1",
    "adapter_config.json": b'{"a": 1}',
    "spiece.model": b"a1",
    "merges.txt": b"a 1",
    "license_check.py": b"a = 1",
    "dspark/model.safetensors.index.json": b'{"a": 1}',
    "consolidated.safetensors.index.json": b'{"a": 1}',
    "dspark/config.json": b'{"a": 1}',
    "dspark/model-00001-of-00001.safetensors": shard_bytes([Tensor("d.weight", "BF16", (1,), b"a1")]),
}
"""What a runtime may take: each with a 1 that a test makes a 2."""

PAPERS = {
    "README.md": b"1",
    "dspark/README.md": b"1",
    "LICENSE": b"1",
    "LICENSE.txt": b"1",
    "LICENSE-2.0": b"1",
    "LICENSES/MIT.txt": b"1",
    ".gitattributes": b"1",
    "assets/picture.PNG": b"1",
    "._tokenizer.json": b"1",
    "SHA256SUMS.txt": b"",
}
"""What may differ."""


def put(root: Path, files: dict[str, bytes]) -> Path:
    """Write files into a folder."""
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def names_or_fails(result: Result, name: str) -> bool:
    return name in result.output and (result.exit_code == 1 or name in result.output.partition("Not proved")[2])


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    return put(mini_hf(tmp_path / "csf"), TAKEN | PAPERS), put(mini_dense(tmp_path / "dense"), TAKEN | PAPERS)


def test_everything_equal_is_verified(pair: tuple[Path, Path]) -> None:
    result = run("verify", pair[0], "--against", pair[1])
    says(result, "VERIFIED.\nProved", "every tensor equals", f"and {len(TAKEN) + 1} files beside the shards")


@pytest.mark.parametrize("name", TAKEN)
def test_what_a_runtime_may_take_is_compared(pair: tuple[Path, Path], name: str) -> None:
    for one, other in (pair, pair[::-1]):
        path = one / name
        path.write_bytes(TAKEN[name].replace(b"1", b"2"))
        differs = run("verify", one, "--against", other)
        path.unlink()
        lacks, has = run("verify", one, "--against", other), run("verify", other, "--against", one)
        path.write_bytes(TAKEN[name])
        assert [r.exit_code for r in (differs, lacks, has)] == [1, 1, 1]
        says(differs, f"{name}: differs from the reference")
        says(lacks, f"{name}: missing; the reference has it")
        says(has, f"{name}: the reference does not have it")


@pytest.mark.parametrize("target", [".", "..", "/", None])
@pytest.mark.parametrize("name", TAKEN)
def test_a_folder_in_the_place_of_a_file_is_no_file(pair: tuple[Path, Path], name: str, target: str | None) -> None:
    """The folder itself, or a link to one: in a circle, or out of the checkpoint."""
    for one, other in (pair, pair[::-1]):
        path = one / name
        path.unlink()
        path.symlink_to(target) if target else path.mkdir()
        lacks, has = run("verify", one, "--against", other), run("verify", other, "--against", one)
        path.unlink() if target else path.rmdir()
        path.write_bytes(TAKEN[name])
        assert [r.exit_code for r in (lacks, has)] == [1, 1]
        says(lacks, f"{name}: missing; the reference has it")
        says(has, f"{name}: the reference does not have it")


@pytest.mark.parametrize("name", PAPERS)
def test_what_no_runtime_takes_may_differ(pair: tuple[Path, Path], name: str) -> None:
    (pair[0] / name).write_bytes(b"" if "SUMS" in name else b"2")
    assert run("verify", pair[0], "--against", pair[1]).exit_code == 0
    (pair[0] / name).unlink()
    assert run("verify", pair[0], "--against", pair[1]).exit_code == 0
    assert run("verify", pair[1], "--against", pair[0]).exit_code == 0


@pytest.mark.parametrize("other", [b'{"a": 1.0}', b'{"a": true}', b'{"a": "1"}', b'{"a": 2, "a": 1}'])
@pytest.mark.parametrize("name", ["tokenizer.json", "onnx/tokenizer.json", "dspark/config.json"])
def test_json_is_compared_by_value_and_type(pair: tuple[Path, Path], name: str, other: bytes) -> None:
    (pair[0] / name).write_bytes(other)
    assert names_or_fails(run("verify", pair[0], "--against", pair[1]), name)
    assert names_or_fails(run("verify", pair[1], "--against", pair[0]), name)


def test_of_repeated_keys_is_said_which_and_where(pair: tuple[Path, Path]) -> None:
    text = b'{"a": [{"b": 1, "b": 1}]}'
    (pair[0] / "tokenizer.json").write_bytes(text)
    (pair[1] / "tokenizer.json").write_bytes(b'{"a": [{"b": 1}]}')
    said = "key 'b' appears twice in one object, at 'a[0]'"
    says(run("verify", pair[0], "--against", pair[1]), f"tokenizer.json: {said}")
    says(run("verify", pair[1], "--against", pair[0]), f"tokenizer.json: in the reference: {said}")
    alone = run("verify", pair[0])
    assert alone.exit_code == 0
    says(alone, f"tokenizer.json: {said}: some readers use the first, some the last, and some refuse it")


def test_configs_of_any_numbers_are_compared_without_the_marks(tmp_path: Path) -> None:
    csf, dense = mini_hf(tmp_path / "csf"), mini_dense(tmp_path / "dense")
    for root in (csf, dense):
        path = root / "hf_quant_config.json"
        path.write_text((root / "config.json").read_text().replace('"mini"', "[1e5, 384]", 1))
    assert run("verify", csf, "--against", dense).exit_code == 0
    path = csf / "hf_quant_config.json"
    path.write_text(path.read_text().replace("384", "384.0"))
    assert run("verify", csf, "--against", dense).exit_code == 1


def test_a_nested_shard_is_a_tensor_that_tensors_only_compares(pair: tuple[Path, Path]) -> None:
    good = run("verify", pair[0], "--against", pair[1], "--tensors-only")
    assert good.exit_code == 0
    says(good, "VERIFIED IN PART.", "additional_chat_templates/tool.jinja, ", "(--tensors-only leaves them out)")
    name = "dspark/model-00001-of-00001.safetensors"
    (pair[0] / name).write_bytes(TAKEN[name].replace(b"1", b"2"))
    bad = run("verify", pair[0], "--against", pair[1], "--tensors-only")
    assert bad.exit_code == 1
    says(bad, f"{name}: differs")


def test_shards_that_are_not_read_are_not_said_to_be_equal(pair: tuple[Path, Path]) -> None:
    result = run("verify", pair[0], "--against", pair[1], "--only", "model-00001-*")
    assert "every tensor equals" not in result.output
    says(result, "VERIFIED IN PART. Only 1 of 2 shards", "dspark/model-00001-of-00001.safetensors", "(--only reads")


def test_a_linked_folder_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.move(pair[0] / "dspark", tmp_path / "elsewhere")
    (pair[0] / "dspark").symlink_to(tmp_path / "elsewhere")
    assert names_or_fails(run("verify", pair[0], "--against", pair[1]), "dspark")


# Dtypes


@pytest.mark.parametrize(
    ("name", "dtypes", "code"),
    [
        ("layers.0.ffn.experts.0.w1.scale", ("F8_E8M0", "U8"), 0),
        ("layers.0.ffn.experts.0.w1.weight", ("I8", "U8"), 1),
        ("other.weight", ("F8_E8M0", "U8"), 1),
        ("other.bias", ("U8", "F8_E8M0"), 1),
        ("other.scale", ("U8", "F8_E8M0"), 1),
        ("layers.0.ffn.experts.0.w1.scale", ("F8_E8M0", "F8_E4M3"), 1),
    ],
)
def test_dtypes_may_differ_in_block_scales_alone(tmp_path: Path, name: str, dtypes: tuple[str, str], code: int) -> None:
    others = [Tensor(n, "U8", (16,), bytes(range(16))) for n in ("other.weight", "other.bias", "other.scale")]
    paths = []
    for dtype in dtypes:
        root = mini_dense(tmp_path / dtype, MXFP4, 1)
        [shard] = root.glob("*.safetensors")
        tensors = [*layer(0, MXFP4), *others]
        changed = [Tensor(t.name, dtype, t.shape, t.data) if t.name == name else t for t in tensors]
        write_shard(shard, changed, {"format": "pt"})
        (root / "model.safetensors.index.json").unlink()
        paths.append(root)
    result = run("verify", paths[0], "--against", paths[1])
    assert result.exit_code == code
    says(result, f"{name}: dtype is {dtypes[0]}, but the reference has {dtypes[1]}")


# What a hash covers


def drop_hashes(root: Path) -> None:
    change_json(root / "manifest.json", lambda document: document.pop("metadata_sha256"))


def drop_hash(root: Path) -> None:
    change_json(root / "manifest.json", lambda document: document["metadata_sha256"].pop("config.json"))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
@pytest.mark.parametrize("drop", [drop_hashes, drop_hash])
def test_a_config_without_a_hash_is_named(tmp_path: Path, codec: object, drop: Callable[[Path], None]) -> None:
    root = mini_container(tmp_path / "in", codec)  # type: ignore[arg-type]
    good = run("verify", root)
    assert "VERIFIED.\nProved" in good.output
    drop(root)
    result = run("verify", root)
    assert result.exit_code == 0
    says(result, "VERIFIED IN PART.", ": metadata/config.json")
    assert "VERIFIED." not in result.output


@pytest.mark.parametrize(
    "name", ["metadata/x.py", "metadata/a/x.jinja", "metadata/draft/m.safetensors", "x.py", "a/b.bin"]
)
def test_a_file_of_a_container_that_no_hash_lists_is_named(tmp_path: Path, name: str) -> None:
    root = put(mini_container(tmp_path / "in"), {name: b"x"})
    says(run("verify", root), "VERIFIED IN PART.", f"the content of 1 file beside the shards: {name} (no hash)")


@pytest.mark.parametrize("name", ["metadata/README.md", "README.md", "LICENSE", "metadata/.gitattributes"])
def test_a_card_without_a_hash_takes_nothing_away(tmp_path: Path, name: str) -> None:
    root = put(mini_container(tmp_path / "in"), {name: b"x"})
    says(run("verify", root), "VERIFIED.\nProved")


def test_a_shard_among_the_metadata_is_a_fault(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    name = "metadata/model-00009-of-00009.safetensors"
    write_shard(root / name, [Tensor("x", "U8", (1,), b"x")])
    result = run("verify", root)
    assert result.exit_code == 1
    says(result, f"{name}: is a shard without a hash")
    change_json(
        root / "manifest.json",
        lambda m: m["metadata_sha256"].update({name[9:]: hashlib.sha256((root / name).read_bytes()).hexdigest()}),
    )
    assert run("verify", root).exit_code == 0


def test_a_home_made_containers_files_lie_at_its_root(tmp_path: Path) -> None:
    root = put(home_made(tmp_path / "in"), {"x.py": b"x"})
    says(run("verify", root), "VERIFIED AS PUBLISHED IN PART;", "Not proved: that the decoded", ": x.py (no hash)")


def test_a_list_of_shards_alone_leaves_the_config_out(tmp_path: Path) -> None:
    root = put(mini_hf(tmp_path / "in"), {"x.py": b"x"})
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in sorted(root.glob("*.safetensors"))]
    (tmp_path / "list").write_text("".join(lines))
    result = run("verify", root, "--manifest", tmp_path / "list")
    says(result, "VERIFIED AS LISTED in list IN PART;", ": config.json, x.py (no hash)")


def test_only_some_shards_leave_the_config_out(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    says(run("verify", root, "--only", "*"), "VERIFIED IN PART.", ": metadata/config.json")


# The checkpoint itself


@pytest.mark.slow
def test_a_checkpoint_is_no_reference_for_itself(tmp_path: Path) -> None:
    builds: list[Build] = [mini_hf, mini_dense, mini_container, home_made]
    for i, build in enumerate(builds):
        root = build(tmp_path / str(i) / "x")
        (tmp_path / str(i) / "link").symlink_to(root)
        inside = next(root.rglob("*.safetensors"))
        others = [root, f"{root}/", f"{root}/../x", f"{root}/.", tmp_path / str(i) / "link", inside]
        os.link(inside, tmp_path / str(i) / "hard.safetensors")
        for other in others:
            for one, two in ((root, other), (other, root)):
                result = run("verify", one, "--against", two)
                assert result.exit_code == 2, (one, two)
                says(result, "is the checkpoint itself")
        for other in (inside, tmp_path / str(i) / "hard.safetensors"):
            assert run("verify", inside, "--against", other).exit_code == 2
        copy = shutil.copytree(root, tmp_path / str(i) / "copy")
        assert run("verify", root, "--against", copy).exit_code == 0


def test_two_files_of_one_folder_are_not_the_same(tmp_path: Path) -> None:
    tensors = [Tensor("x", "U8", (1,), b"x")]
    one, two = (write_shard(tmp_path / f"{name}.safetensors", tensors) for name in "ab")
    assert run("verify", one, "--against", two).exit_code == 0


# What is no file


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))


def a_link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nothing")


@pytest.mark.parametrize("make", [a_pipe, a_socket, a_link_to_a_device, a_link_to_nothing, Path.mkdir])
@pytest.mark.parametrize("name", ["tokenizer.json", "README.md", "SHA256SUMS", "config.json", "x.py", "a/x.jinja"])
@pytest.mark.parametrize("build", [mini_hf, mini_container])
def test_special_files_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Build, name: str, make: Callable[[Path], None]
) -> None:
    root = build(tmp_path / "in")
    monkeypatch.chdir(root)
    for folder in ("", "metadata/") if build is mini_container else ("",):
        path = root / folder / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)
        alone = run("verify", root)
        says(alone, f"{folder}{name}")
        assert alone.exit_code == (1 if make is not Path.mkdir else alone.exit_code)
        against = run("verify", root, "--against", put(mini_dense(tmp_path / f"dense {len(folder)}"), TAKEN))
        says(against, f"{folder}{name}")
        back = run("verify", mini_dense(tmp_path / f"bare {len(folder)}"), "--against", root)
        assert back.exit_code == 1 or make is Path.mkdir or not name.endswith((".json", ".py", ".jinja"))


# Folders without planes


def test_of_streams_is_spoken_where_there_are_some(tmp_path: Path) -> None:
    dense, csf = run("verify", mini_dense(tmp_path / "dense")), run("verify", mini_hf(tmp_path / "csf"))
    says(csf, "NO FAULT FOUND, but nothing to compare with: well-formed streams can be wrong.")
    says(dense, "NO FAULT FOUND, but nothing to compare with: other bytes would also pass.")
    assert "stream is" not in dense.output
    one = put(mini_hf(tmp_path / "some"), {})
    write_shard(one / "plain.safetensors", [Tensor("x", "U8", (1,), b"x")])
    change_json(one / "model.safetensors.index.json", lambda d: d["weight_map"].update(x="plain.safetensors"))
    only = run("verify", one, "--only", "plain*", "--json")
    assert "zeroed" not in json.loads(only.stdout)["verdict"]
    assert not any("0 planes" in said for said in json.loads(only.stdout)["proved"])


# What the system does not let us read


@pytest.mark.parametrize("build", [mini_hf, mini_container])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Build, what: str
) -> None:
    root = put(build(tmp_path / "in"), {"code/tokenizer.json": b"{}", "metadata/code/tokenizer.json": b"{}"})
    other = shutil.copytree(root, tmp_path / "other")
    scandir, read_bytes = os.scandir, Path.read_bytes

    def unlistable(path: object = ".") -> object:
        if Path(str(path)).name == "code" and root in Path(str(path)).parents:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return scandir(path)  # type: ignore[call-overload]

    def unreadable(path: Path) -> bytes:
        if path.name == "tokenizer.json" and root in path.parents:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_bytes(path)

    if what == "folder":
        monkeypatch.setattr(os, "scandir", unlistable)
    else:
        monkeypatch.setattr(Path, "read_bytes", unreadable)
    for words in ((root,), (root, "--against", other), (other, "--against", root)):
        if what == "folder" or words[0] == root:  # equal bytes are compared through a reader of its own
            assert run("verify", *words).exit_code == 3, words
