"""Container metadata: one field changed at a time, one bit flipped at a time."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.container import Receipt, ShardRow
from csf_tool.checkpoint.container_layout import Container
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import Problems, Severity, errors
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.errors import CheckpointError
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from tests.building import (
    CODECS,
    LFS_POINTER,
    MXFP4,
    NVFP4,
    Codec,
    change_json,
    home_made,
    layer,
    mini_container,
    shard_name,
    write_json,
)

FIRST, SECOND = shard_name(1, 2), shard_name(2, 2)
RECEIPT = f"receipts/{FIRST}.json"
SCALE = "model.layers.0.mlp.experts.0.gate_proj.weight_scale"


@pytest.fixture
def container(tmp_path: Path) -> Path:
    return mini_container(tmp_path / "c")


def problems(root: Path) -> list[str]:
    """The errors of an opened container, or the one with which it is refused."""
    try:
        return [str(problem) for problem in errors(open_checkpoint(root).problems)]
    except CheckpointError as error:
        return [str(error)]


def warnings(root: Path) -> list[str]:
    """The warnings of an opened container."""
    return [str(p) for p in open_checkpoint(root).problems if p.severity is Severity.WARNING]


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_a_good_container_has_no_problems(tmp_path: Path, codec: Codec) -> None:
    checkpoint = open_checkpoint(mini_container(tmp_path, codec, 3))
    assert checkpoint.problems == []
    assert [shard.name for shard in checkpoint.shards] == [f"tensors/{shard_name(i, 3)}" for i in (1, 2, 3)]
    assert len(checkpoint.planes) == 9
    assert {plane.dtype for plane in checkpoint.planes} == {codec.dtype}


def test_what_is_read(container: Path) -> None:
    manifest = json.loads((container / "manifest.json").read_text())
    found = Problems()
    read = Container.read(container, found)
    assert found == []
    assert read.rows[FIRST] == ShardRow(**manifest["shards"][0])
    assert read.metadata_sha256 == manifest["metadata_sha256"]
    assert read.source_names[SCALE] == FIRST
    assert len(read.scale_receipts) == 6
    assert read.scale_receipts[SCALE].shape == (16, 4)
    assert read.model_root == container / "metadata"
    assert next(iter(read.receipts[FIRST].parse_source_header().tensors)) == "model.layers.0.norm.weight"


Change = Callable[[Any], object]


def put(*path: str | int, to: object) -> Change:
    """A change that sets the value at a path."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return change


def drop(*path: str | int) -> Change:
    """A change that deletes the value at a path."""

    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


ZEROS = "0" * 64

MANIFEST_CHANGES: list[tuple[str, Change, str]] = [
    ("schema of another tool", put("schema", to="other/1"), "has schema 'other/1', which csf-tool cannot read"),
    ("newer schema", put("schema", to="lil-nvfp4-csf-checkpoint/2"), "which csf-tool cannot read"),
    ("schema no string", put("schema", to=1), "has schema 1, which csf-tool cannot read"),
    ("no schema", drop("schema"), "has schema None, which csf-tool cannot read"),
    ("schema of the other codec", put("schema", to=MXFP4.schema), f"codec is '{NVFP4.codec}', but its schema needs"),
    ("codec", put("codec", to=MXFP4.codec), f"codec is '{MXFP4.codec}', but its schema needs '{NVFP4.codec}'"),
    ("no codec", drop("codec"), "codec is None, but its schema needs"),
    ("family", put("family", to="other"), "build-contract.json: family is 'mini', but the manifest has 'other'"),
    ("no family", drop("family"), "family is None, not a string"),
    ("family no string", put("family", to=[]), "family is [], not a string"),
    (
        "source_model_id",
        put("source_model_id", to="x/y"),
        "source_model_id is 'example/mini', but the manifest has 'x/y'",
    ),
    ("source_revision", put("source_revision", to="f" * 40), "source_revision is"),
    ("status by one letter", put("status", to="compleue"), "status is 'compleue', not 'complete'"),
    ("shards no list", put("shards", to={}), "shards is not a list"),
    ("no shards", drop("shards"), "shards is not a list"),
    ("empty shards", put("shards", to=[]), "lists no shard"),
    ("a row no object", put("shards", 0, to=[]), "the entry of a shard is not an object"),
    ("a row fewer", drop("shards", 1), f"tensors/{SECOND}: is not listed in the manifest"),
    ("a row twice", lambda m: m["shards"].append(m["shards"][0]), f"lists shard {FIRST} twice"),
    ("file of another shard", put("shards", 1, "file", to="x.safetensors"), "tensors/x.safetensors: is missing"),
    ("file with a folder", put("shards", 0, "file", to="a/x.safetensors"), "is not a plain file name"),
    ("file above", put("shards", 0, "file", to="../x.safetensors"), "is not a plain file name"),
    ("file with backslash", put("shards", 0, "file", to="..\\x.safetensors"), "leaves the checkpoint's folder"),
    ("file on a drive", put("shards", 0, "file", to="C:x.safetensors"), "leaves the checkpoint's folder"),
    ("file of another kind", put("shards", 0, "file", to="x.bin"), "is not a plain file name ending in .safetensors"),
    ("file no string", put("shards", 0, "file", to=7), "shard name 7 is not a plain file name"),
    ("target size", put("shards", 0, "target_file_bytes", to=1), "bytes long, but the manifest has 1"),
    ("target size negative", put("shards", 0, "target_file_bytes", to=-1), "target_file_bytes is -1, not a number"),
    ("target size a float", put("shards", 0, "target_file_bytes", to=1.5), "target_file_bytes is 1.5, not a number"),
    ("target size true", put("shards", 0, "target_file_bytes", to=True), "target_file_bytes is True, not a number"),
    ("target size huge", put("shards", 0, "target_file_bytes", to=1 << 63), "not a number of bytes"),
    ("source size", put("shards", 0, "source_file_bytes", to=1), f"{RECEIPT}: source_file_bytes is"),
    ("source size gone", drop("shards", 0, "source_file_bytes"), "the manifest has None"),
    ("target hash", put("shards", 0, "target_sha256", to=ZEROS), f"{RECEIPT}: target_sha256 is"),
    ("target hash short", put("shards", 0, "target_sha256", to="ab"), "'ab', not 64 lowercase hex digits"),
    ("source hash", put("shards", 0, "source_sha256", to=ZEROS), f"{RECEIPT}: source_sha256 is"),
    ("source hash upper case", put("shards", 0, "source_sha256", to="A" * 64), "not 64 lowercase hex digits"),
    ("source hash null", put("shards", 0, "source_sha256", to=None), "source_sha256 is None, not 64"),
    ("metadata hashes no object", put("metadata_sha256", to=[]), "metadata_sha256 is not an object"),
    ("metadata hash no hash", put("metadata_sha256", "config.json", to="x"), "not 64 lowercase hex digits"),
    ("metadata name above", put("metadata_sha256", "../x", to=ZEROS), "'../x' leaves the checkpoint's folder"),
    (
        "index hash",
        put("metadata_sha256", "model.safetensors.index.json", to=ZEROS),
        f"but metadata_sha256 has '{ZEROS}'",
    ),
    ("source_index_sha256", put("source_index_sha256", to=ZEROS), f"source_index_sha256 is '{ZEROS}'"),
    (
        "scale count",
        put("compressed_scale_count", to=7),
        "compressed_scale_count is 7, but the shards and their entries give 6",
    ),
    ("scale count as text", put("compressed_scale_count", to="6"), "compressed_scale_count is '6'"),
    (
        "original bytes",
        put("original_scale_bytes", to=1),
        "original_scale_bytes is 1, but the shards and their entries give 384",
    ),
    (
        "compressed bytes",
        put("compressed_scale_bytes", to=1),
        "compressed_scale_bytes is 1, but the shards and their entries give",
    ),
    (
        "source total",
        put("source_weight_file_bytes", to=1),
        "source_weight_file_bytes is 1, but the shards and their entries",
    ),
    ("target total", put("compressed_weight_file_bytes", to=1), "compressed_weight_file_bytes is 1, but the shards"),
    (
        "saved total",
        put("saved_weight_file_bytes", to=1),
        "saved_weight_file_bytes is 1, but the shards and their entries give",
    ),
    ("no index hash", drop("source_index_sha256"), "source_index_sha256 is"),
]

CONTRACT_CHANGES: list[tuple[str, Change, str]] = [
    ("schema", put("schema", to=MXFP4.schema), f"schema is '{MXFP4.schema}', but the manifest has '{NVFP4.schema}'"),
    ("codec", put("codec", to="x"), "codec is 'x', but the manifest has"),
    ("family", put("family", to="x"), "family is 'x', but the manifest has 'mini'"),
    ("no family", drop("family"), "family is None, but the manifest has 'mini'"),
    ("model", put("source_model_id", to="x"), "source_model_id is 'x', but the manifest has"),
    ("revision", put("source_revision", to="x"), "source_revision is 'x', but the manifest has"),
    ("scale count", put("compressed_scale_count", to=5), "compressed_scale_count is 5, but the manifest has 6"),
    ("index hash", put("source_index_sha256", to=ZEROS), f"source_index_sha256 is '{ZEROS}', but the manifest has"),
    ("names no map", put("source_names", to=[]), "source_names is not a map of tensor name to shard file"),
    ("names of no string", put("source_names", SCALE, to=1), "source_names is not a map"),
    ("no names", drop("source_names"), "source_names is not a map"),
    ("a name fewer", drop("source_names", SCALE), f"{SCALE}: the contract does not list it"),
    (
        "a name more",
        put("source_names", "x.weight", to=FIRST),
        "x.weight: the contract lists it, but no shard holds it",
    ),
    ("another shard for a scale", put("source_names", SCALE, to=SECOND), f"the contract places it in {SECOND}"),
    (
        "another shard for a weight",
        put("source_names", "model.layers.0.norm.weight", to=SECOND),
        f"model.layers.0.norm.weight: the contract places it in {SECOND}",
    ),
    ("a shard of no row", put("source_names", SCALE, to="z.safetensors"), "which the manifest does not list"),
    (
        "a shard without a name",
        lambda c: c["source_names"].update(dict.fromkeys(c["source_names"], FIRST)),
        f"source_names has no tensor of shard '{SECOND}'",
    ),
]

RECEIPT_CHANGES: list[tuple[str, Change, str]] = [
    ("file", put("file", to=SECOND), f"file is '{SECOND}', but the manifest has '{FIRST}'"),
    ("no file", drop("file"), "shard name None is not a plain file name"),
    ("target size", put("target_file_bytes", to=1), "target_file_bytes is 1, but the manifest has"),
    ("target hash", put("target_sha256", to=ZEROS), f"target_sha256 is '{ZEROS}', but the manifest has"),
    ("source size", put("source_file_bytes", to=1), "source_file_bytes is 1, but the manifest has"),
    ("source hash", put("source_sha256", to=ZEROS), f"source_sha256 is '{ZEROS}', but the manifest has"),
    ("no source hash", drop("source_sha256"), "source_sha256 is None, but the manifest has"),
    ("no header", drop("source_header_base64"), "source_header_base64 is missing"),
    ("header no base64", put("source_header_base64", to="!!!!"), "source_header_base64 is not base64"),
    ("header with a line end", lambda r: put("source_header_base64", to=r["source_header_base64"] + "\n")(r), "base64"),
    (
        "loose bits",
        put("source_header_base64", to="AB=="),
        "source_header_base64 is damaged: encoding its bytes in base64",
    ),
    ("no scales", drop("scales"), "scales is not an object"),
    ("scales a list", put("scales", to=[]), "scales is not an object"),
    ("a scale no object", put("scales", SCALE, to=1), f"{SCALE}: not an object"),
    ("a scale fewer", drop("scales", SCALE), f"{SCALE}: no receipt lists it: its original bytes are unknown"),
    ("dtype", put("scales", SCALE, "dtype", to="U8"), "the receipt has dtype U8, but NVFP4 scales are F8_E4M3"),
    ("dtype no string", put("scales", SCALE, "dtype", to=1), f"{SCALE}: dtype is 1"),
    ("shape", put("scales", SCALE, "shape", to=[32, 2]), "its rows and columns are contradictory"),
    ("shape of one size", put("scales", SCALE, "shape", to=[64]), "shape is [64], not [rows, columns]"),
    ("shape with zero", put("scales", SCALE, "shape", to=[0, 4]), "shape is [0, 4], not [rows, columns]"),
    ("shape of floats", put("scales", SCALE, "shape", to=[16.0, 4]), "shape is [16.0, 4], not [rows, columns]"),
    ("fixed bytes", put("scales", SCALE, "fixed_bytes", to=1), "the receipt has fixed_bytes 1, but the plane has 48"),
    (
        "exception bytes",
        put("scales", SCALE, "exception_bytes", to=4),
        "the receipt has exception_bytes 4, but the plane has 16",
    ),
    (
        "source bytes",
        put("scales", SCALE, "source_bytes", to=65),
        "the receipt has source_bytes 65, but the plane has 64",
    ),
    ("source bytes text", put("scales", SCALE, "source_bytes", to="64"), "source_bytes is '64', not a number of bytes"),
    ("scale hash", put("scales", SCALE, "source_sha256", to="x"), "source_sha256 is 'x', not 64 lowercase hex digits"),
]

VERIFICATION_CHANGES: list[tuple[str, Change, str]] = [
    ("schema", put("schema", to="x"), "schema is 'x', but this container gives"),
    ("not passed", put("passed", to=False), "passed is False, but this container gives True"),
    ("shards", put("shards", to=3), "shards is 3, but this container gives 2"),
    ("scales", put("scale_matrices", to=3), "scale_matrices is 3, but this container gives 6"),
    ("a damaged key", lambda v: v.update(pasted=v.pop("passed")), "'pasted' is probably 'passed'"),
]


def _cases() -> Iterator[Any]:
    for file, changes in (
        ("manifest.json", MANIFEST_CHANGES),
        ("build-contract.json", CONTRACT_CHANGES),
        (RECEIPT, RECEIPT_CHANGES),
        ("verification.json", VERIFICATION_CHANGES),
    ):
        for name, change, expected in changes:
            yield pytest.param(file, change, expected, id=f"{file.partition('/')[0]}: {name}")


@pytest.mark.parametrize(("file", "change", "expected"), list(_cases()))
def test_one_changed_field_is_reported(container: Path, file: str, change: Change, expected: str) -> None:
    change_json(container / file, change)
    found = problems(container)
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize("file", ["manifest.json", "build-contract.json", RECEIPT, "verification.json"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[]", "not a JSON object"),
        (b"", "not valid JSON"),
        (b'{"a": 1, "a": 1}', "key 'a' appears twice"),
        (LFS_POINTER, "is a git-LFS pointer"),
        (b"<html>", "is a web page"),
    ],
)
def test_a_file_that_is_something_else_is_reported(container: Path, file: str, content: bytes, expected: str) -> None:
    (container / file).write_bytes(content)
    found = [problem.removeprefix(f"{container}/") for problem in problems(container)]
    assert any(problem.startswith(file) and expected in problem for problem in found)


# What is odd and no fault


@pytest.mark.parametrize("family", ["something_new", "", "日本"])
def test_any_family_is_taken(container: Path, family: str) -> None:
    for file in ("manifest.json", "build-contract.json"):
        change_json(container / file, put("family", to=family))
    assert open_checkpoint(container).problems == []


def test_an_unknown_status_is_a_warning(container: Path) -> None:
    change_json(container / "manifest.json", put("status", to="converted"))
    assert problems(container) == []
    assert warnings(container) == ["manifest.json: status is 'converted', not 'complete'"]


def test_unknown_keys_are_somebodys_additions(container: Path) -> None:
    for file in ("manifest.json", "build-contract.json", RECEIPT, "verification.json"):
        change_json(container / file, put("note_of_the_author", to={"a": [1]}))
    assert open_checkpoint(container).problems == []


def test_totals_that_are_absent_are_not_missed(container: Path) -> None:
    for key in ("original_scale_bytes", "compressed_scale_bytes", "saved_weight_file_bytes", "status"):
        change_json(container / "manifest.json", drop(key))
    assert open_checkpoint(container).problems == []


def test_without_a_contract_the_rest_is_checked(container: Path) -> None:
    (container / "build-contract.json").unlink()
    assert problems(container) == []
    assert warnings(container) == [
        "build-contract.json: missing: it is unknown which shard of the original held which tensor"
    ]


def test_without_receipts_it_is_said_that_the_source_cannot_be_proved(tmp_path: Path) -> None:
    root = home_made(tmp_path)
    assert problems(root) == []
    assert warnings(root) == [
        "build-contract.json: missing: it is unknown which shard of the original held which tensor",
        "receipts: missing: the original's bytes cannot be proved, and its shards cannot be rebuilt bit for bit",
    ]


def test_a_row_without_hashes_is_a_warning(tmp_path: Path) -> None:
    root = home_made(tmp_path)
    change_json(root / "manifest.json", lambda m: [row.pop("source_sha256") for row in m["shards"]])
    assert problems(root) == []
    found = [f"manifest.json: does not give source_sha256 of {shard_name(i, 2)}" for i in (1, 2)]
    assert warnings(root)[: len(found)] == found


def test_one_receipt_that_is_missing_is_an_error(container: Path) -> None:
    (container / RECEIPT).unlink()
    assert f"{RECEIPT}: is missing, or is a link to a missing file" in problems(container)


def test_a_receipt_of_no_shard_is_a_warning(container: Path) -> None:
    write_json(container / "receipts" / "x.json", {})
    assert problems(container) == []
    assert warnings(container) == ["receipts/x.json: is a receipt of a shard that the manifest does not list"]


def test_without_a_verification_record_nothing_is_missed(container: Path) -> None:
    (container / "verification.json").unlink()
    assert open_checkpoint(container).problems == []


def test_a_shard_whose_metadata_name_another_codec(container: Path) -> None:
    path = container / "tensors" / FIRST
    path.write_bytes(path.read_bytes().replace(NVFP4.codec.encode(), b"x" * len(NVFP4.codec)))
    assert f"tensors/{FIRST}: its metadata names another codec, '{'x' * len(NVFP4.codec)}'" in problems(container)


def test_a_shard_on_disk_that_no_row_lists(container: Path) -> None:
    (container / "tensors" / "extra.safetensors").write_bytes((container / "tensors" / FIRST).read_bytes())
    assert "tensors/extra.safetensors: is not listed in the manifest" in problems(container)


def test_a_missing_shard_is_named_and_the_others_are_read(container: Path) -> None:
    (container / "tensors" / FIRST).unlink()
    checkpoint = open_checkpoint(container)
    assert [shard.file for shard in checkpoint.shards] == [SECOND]
    assert str(checkpoint.problems[0]) == (
        f"tensors/{FIRST}: is missing, or is a link to a missing file: download it again"
    )


def test_a_container_without_any_shard_is_refused(container: Path) -> None:
    for path in (container / "tensors").iterdir():
        path.unlink()
    with pytest.raises(CheckpointError, match="none of 2 shards can be read"):
        open_checkpoint(container)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (b"", "states a header of 0 bytes, but has 0"),
        (b"\x02\0\0\0", "states a header of 2 bytes, but has 0"),
        (b"\x03" + bytes(7) + b"{}", "states a header of 3 bytes, but has 2"),
        (b"\x01" + bytes(7) + b"{}", "states a header of 1 bytes, but has 2"),
        (b"\x02" + bytes(7) + b"[]", "does not start with '{'"),
    ],
)
def test_a_source_header_that_is_none(header: bytes, expected: str) -> None:
    receipt = Receipt(ShardRow("x.safetensors"), header, {})
    with pytest.raises(CheckpointError, match=r"^receipts/x\.safetensors\.json: source_header_base64") as caught:
        receipt.parse_source_header()
    assert expected in str(caught.value)


# One bit at a time

ONLY_VERIFY_SEES: dict[str, set[tuple[str, ...]]] = {
    "manifest.json": {("metadata_sha256",)},
    "build-contract.json": set(),
    "receipt": {("source_header_base64",), ("scales", "source_sha256")},
    "verification.json": set(),
}
"""Where a flipped bit shows only in bytes that opening does not read: hashes of metadata files (their names as
well, for a file of that name is then missing), of planes, and the original's header. Verify reads them."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A container of two planes in two shards whose names are one bit apart."""
    tensors = {shard_name(n, 3): layer(n, MXFP4)[1:3] for n in (1, 3)}
    metadata = {"config.json": b"{}", "model.safetensors.index.json": b'{"weight_map": {}}'}
    root = mini_container(tmp_path_factory.mktemp("tiny"), MXFP4, content=tensors, metadata=metadata)
    assert open_checkpoint(root).problems == []
    return root


def places(raw: bytes) -> list[tuple[str, ...]]:
    """For every byte of a pretty-printed JSON file the keys of the object it stands in, by indentation."""
    found: list[tuple[str, ...]] = []
    stack: list[str] = []
    for line in raw.decode().splitlines(keepends=True):
        depth = len(line) - len(line.lstrip(" "))
        key = line.strip().partition('"')[2].partition('"')[0] if line.strip().startswith('"') else ""
        stack = [*stack[: max(depth - 1, 0)], key]
        found += [tuple(stack)] * len(line.encode())
    return found


def may_pass(file: str, place: tuple[str, ...]) -> bool:
    allowed = ONLY_VERIFY_SEES[file]
    return any(place[:1] == path[:1] and (len(path) == 1 or place[-1] == path[-1]) for path in allowed)


@pytest.mark.slow
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("file", sorted(ONLY_VERIFY_SEES))
def test_every_flipped_bit_is_an_error(tiny: Path, tmp_path: Path, file: str, bit: int) -> None:
    root = tmp_path / "c"
    root.mkdir()
    for path in tiny.rglob("*"):
        copy = root / path.relative_to(tiny)
        if path.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    target = root / (f"receipts/{shard_name(1, 3)}.json" if file == "receipt" else file)
    good = target.read_bytes()
    where = places(good)
    unseen = []
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1 << bit
        target.write_bytes(bad)
        if not problems(root):
            unseen.append(at)
            assert may_pass(file, where[at]), (at, where[at], bytes(bad[max(at - 30, 0) : at + 30]))
            checkpoint = open_checkpoint(root)
            assert not verify(checkpoint, None, NumpyDecoder(), Silent()).ok, (at, where[at])
    assert bool(unseen) == (bool(ONLY_VERIFY_SEES[file]) and bit < 7)


def test_a_misspelt_key_of_a_row_is_damage(tmp_path: Path) -> None:
    """Without receipts nothing else says that a shard had a hash."""
    root = home_made(tmp_path)
    change_json(
        root / "manifest.json", lambda m: m["shards"][0].update(tarfet_sha256=m["shards"][0].pop("target_sha256"))
    )
    said = [str(p) for p in open_checkpoint(root).problems if p.severity is Severity.ERROR]
    assert said == ["manifest.json: shards: key 'tarfet_sha256' is probably 'target_sha256', damaged"]
