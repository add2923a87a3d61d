"""The dense checkpoint that a CSF checkpoint stands for, against real dense bytes."""

import base64
import json
from pathlib import Path

import pytest

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import (
    Range,
    logical_shards,
    logical_tensors,
    merge_ranges,
    original_shard,
    own_shards,
)
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec import reference
from csf_tool.errors import CheckpointError
from tests import building
from tests.building import (
    CODECS,
    MXFP4,
    NVFP4,
    Codec,
    Tensor,
    change_json,
    compressed,
    header_of,
    home_made,
    layer,
    mini_container,
    mini_dense,
    mini_hf,
    model,
    shard_name,
    streams,
    write_shard,
)

SAMPLES = Path(__file__).parent.parent / "data" / "samples"


def logical_files(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Every dense shard's bytes, planes decoded."""
    files = {}
    with Readers() as readers:
        for shard in logical_shards(checkpoint):
            pieces = [shard.header]
            for part in shard.parts:
                if isinstance(part, Range):
                    pieces.append(bytes(readers[part.shard].read(part.begin, part.end)))
                    continue
                streams = readers.streams(part)
                rows, cols = part.rows, part.cols
                scales = reference.decode(part.fmt, streams.fixed, streams.exceptions, rows=rows, cols=cols)
                pieces.append(scales.tobytes())
            files[shard.name] = b"".join(pieces)
            assert len(files[shard.name]) == shard.size
    return files


def originals(codec: Codec) -> dict[str, bytes]:
    """The bytes of the dense model's shards."""
    return {name: building.shard_bytes(tensors, {"format": "pt"}) for name, tensors in model(codec).items()}


def test_dense_tensors_stand_where_the_fixed_streams_are(tmp_path: Path) -> None:
    tensors = logical_tensors(open_checkpoint(mini_hf(tmp_path)))
    expected = {t.name: (t.dtype, t.shape, len(t.data)) for dense in model(NVFP4).values() for t in dense}
    assert {name: (t.dtype, t.shape, t.nbytes) for name, t in tensors.items()} == expected
    assert list(tensors) == list(expected)
    assert tensors["model.layers.1.norm.weight"].stored_in == shard_name(2, 2)
    assert isinstance(tensors["model.layers.1.mlp.experts.0.up_proj.weight_scale"].source, Plane)


def test_a_dense_checkpoint_stands_for_itself(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(mini_dense(tmp_path))
    assert logical_files(checkpoint) == originals(NVFP4)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_a_container_gives_the_original_shards(tmp_path: Path, codec: Codec) -> None:
    checkpoint = open_checkpoint(mini_container(tmp_path, codec))
    assert logical_files(checkpoint) == originals(codec)
    assert all(shard.sha256 for shard in logical_shards(checkpoint))


def test_the_original_order_padding_and_metadata_come_from_the_source_header(tmp_path: Path) -> None:
    tensors = [Tensor("z", "U8", (2,), b"ab"), Tensor("a", "F32", (), b"1234"), *layer(0, NVFP4)]
    root = mini_container(tmp_path, content={"model.safetensors": tensors})
    stored = [tensors[1], *compressed(tensors[2:], NVFP4), tensors[0]]  # the publisher stored them in another order
    write_shard(root / "tensors" / "model.safetensors", stored)
    checkpoint = open_checkpoint(root)
    [file] = logical_files(checkpoint).values()
    assert file == building.shard_bytes(tensors, {"format": "pt"})


@pytest.mark.parametrize("sample", ["nvfp4-csf-container", "mxfp4-csf-container"])
def test_a_sample_container_gives_the_dense_samples_shards(sample: str) -> None:
    dense = SAMPLES / sample.replace("csf-container", "dense")
    files = logical_files(open_checkpoint(SAMPLES / sample))
    assert files == {path.name: path.read_bytes() for path in dense.glob("*.safetensors")}


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
def test_without_receipts_the_shards_are_in_the_stored_order(tmp_path: Path, codec: Codec) -> None:
    assert logical_files(open_checkpoint(home_made(tmp_path, codec))) == originals(codec)


def test_the_hf_sample_gives_the_dense_samples_tensors(tmp_path: Path) -> None:
    for name, data in logical_files(open_checkpoint(SAMPLES / "nvfp4-csf-hf")).items():
        (tmp_path / name).write_bytes(data)
        ours, theirs = open_checkpoint(tmp_path / name), open_checkpoint(SAMPLES / "nvfp4-dense" / name)
        assert ours.problems == []

        def contents(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
            raw = checkpoint.shards[0].path.read_bytes()
            return {
                loc.tensor.name: (loc.tensor.dtype, loc.tensor.shape, raw[loc.tensor.begin : loc.tensor.end])
                for loc in checkpoint.tensors()
            }

        assert contents(ours) == contents(theirs)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"format": "pt", "schema": NVFP4.schema, "codec": NVFP4.codec}, {"format": "pt"}),
        ({"format": "np", "author": "é"}, {"format": "np", "author": "é"}),
        (None, {"format": "pt"}),
    ],
)
def test_own_headers_keep_metadata_but_for_the_codec(
    tmp_path: Path, metadata: dict[str, str] | None, expected: dict[str, str]
) -> None:
    path = write_shard(tmp_path / "model.safetensors", streams(layer(0, NVFP4)[3], NVFP4), metadata)
    [shard] = logical_shards(open_checkpoint(path))
    assert json.loads(shard.header[8:])["__metadata__"] == expected


def test_exceptions_before_fixed_and_a_pair_split_over_shards(tmp_path: Path) -> None:
    scale = next(t for t in layer(0, NVFP4) if t.name.endswith("weight_scale"))
    fixed, exceptions = streams(scale, NVFP4)
    other = Tensor("other", "U8", (3,), b"abc")
    write_shard(tmp_path / "a.safetensors", [exceptions, other])
    write_shard(tmp_path / "b.safetensors", [fixed])
    files = logical_files(open_checkpoint(tmp_path))
    assert files == {
        "a.safetensors": building.shard_bytes([other], {"format": "pt"}),
        "b.safetensors": building.shard_bytes([scale], {"format": "pt"}),
    }


def test_a_contract_says_which_shard_a_split_plane_belongs_to(tmp_path: Path) -> None:
    root = mini_container(tmp_path)
    for path in (root / "receipts").iterdir():
        path.unlink()
    (root / "receipts").rmdir()
    stored = {name: compressed(tensors, NVFP4) for name, tensors in model(NVFP4).items()}
    first, second = (stored[shard_name(i, 2)] for i in (1, 2))
    moved = next(t for t in first if t.name.endswith("_fixed"))
    write_shard(root / "tensors" / shard_name(1, 2), [t for t in first if t is not moved])
    write_shard(root / "tensors" / shard_name(2, 2), [*second, moved])
    one, two = logical_shards(open_checkpoint(root))
    name = moved.name.removesuffix(".nvfp4_csf_fixed")
    assert name in {t.name for t in one.tensors}
    assert name not in {t.name for t in two.tensors}


def test_own_shards_hold_only_the_tensors_that_are_asked_for(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(mini_hf(tmp_path))
    wanted = logical_tensors(checkpoint)["model.layers.1.norm.weight"]
    shards = own_shards(checkpoint, [wanted])
    assert {name: [t.name for t in shard.tensors] for name, shard in shards.items()} == {
        shard_name(1, 2): [],
        shard_name(2, 2): [wanted.name],
    }


def test_zero_size_tensors_are_kept_at_the_start_in_the_middle_and_at_the_end(tmp_path: Path) -> None:
    empty = [Tensor(name, "F32", (0, 3), b"") for name in ("first", "middle", "last")]
    tensors = [empty[0], Tensor("a", "U8", (3,), b"abc"), empty[1], Tensor("b", "U8", (1,), b"d"), empty[2]]
    write_shard(tmp_path / "model.safetensors", tensors)
    [file] = logical_files(open_checkpoint(tmp_path)).values()
    assert file == building.shard_bytes(tensors, {"format": "pt"})


def test_every_tensor_of_every_shard_is_carried_indexed_or_not(tmp_path: Path) -> None:
    mini_hf(tmp_path)
    write_shard(tmp_path / "mtp.safetensors", [Tensor("mtp.fc.weight", "BF16", (1,), b"xy")])
    change_json(tmp_path / "model.safetensors.index.json", lambda i: i["weight_map"].pop("model.layers.0.norm.weight"))
    names = {t.name for shard in logical_shards(open_checkpoint(tmp_path)) for t in shard.tensors}
    assert {"mtp.fc.weight", "model.layers.0.norm.weight"} <= names


# Source headers that ask for what is not there


def changed(tmp_path: Path, change: dict[str, Tensor | None]) -> Checkpoint:
    """A container of one shard whose source header lists other tensors than are stored."""
    root = mini_container(tmp_path, content={"model.safetensors": layer(0, NVFP4)})
    tensors = [change.get(t.name, t) for t in layer(0, NVFP4)] + [t for n, t in change.items() if n == "new"]
    raw = json.dumps(header_of([t for t in tensors if t])).encode()
    header = len(raw).to_bytes(8, "little") + raw
    size = len(header) + sum(len(t.data) for t in tensors if t)
    receipt = root / "receipts" / "model.safetensors.json"
    change_json(receipt, lambda r: r.update(source_header_base64=base64.b64encode(header).decode()))
    change_json(receipt, lambda r: r.update(source_file_bytes=size))
    change_json(root / "manifest.json", lambda m: m["shards"][0].update(source_file_bytes=size))
    return open_checkpoint(root)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"new": Tensor("new", "U8", (1,), b"x")}, "source header lists new, which is not stored"),
        (
            {"model.layers.0.norm.weight": Tensor("model.layers.0.norm.weight", "F16", (5,), bytes(10))},
            "source header lists model.layers.0.norm.weight as F16 [5], but it is stored as BF16 [5]",
        ),
        (
            {"model.layers.0.norm.weight": Tensor("model.layers.0.norm.weight", "BF16", (5, 1), bytes(10))},
            "source header lists model.layers.0.norm.weight as BF16 [5, 1], but it is stored as BF16 [5]",
        ),
        (
            {"model.layers.0.norm.weight": Tensor("model.layers.0.norm.weight", "BF16", (5,), bytes(9))},
            "source header: model.layers.0.norm.weight: BF16 [5] takes 10 bytes, but its offsets span 9",
        ),
    ],
    ids=["unknown", "dtype", "shape", "faulty"],
)
def test_a_source_header_that_does_not_fit_is_refused(
    tmp_path: Path, change: dict[str, Tensor | None], expected: str
) -> None:
    checkpoint = changed(tmp_path, change)
    with pytest.raises(CheckpointError) as caught:
        logical_shards(checkpoint)
    assert str(caught.value) == f"receipts/model.safetensors.json: {expected}"


def test_a_source_header_that_leaves_out_a_stored_tensor_rebuilds_without_it(tmp_path: Path) -> None:
    checkpoint = changed(tmp_path, {"model.layers.0.norm.weight": None})
    shard = original_shard(checkpoint.layout.receipts["model.safetensors"], logical_tensors(checkpoint))
    assert "model.layers.0.norm.weight" not in {t.name for t in shard.tensors}


# Ranges


def test_neighbours_are_read_together_and_planes_stand_between(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(mini_hf(tmp_path, 1))
    [shard] = logical_shards(checkpoint)
    parts = list(merge_ranges(t.source for t in shard.tensors))
    assert [isinstance(part, Plane) for part in parts] == [False, True, False, True, False, True, False]
    stored = checkpoint.shards[0].header.tensors
    first = parts[0]
    assert isinstance(first, Range)
    expert = "model.layers.0.mlp.experts.0.gate_proj"
    assert (first.begin, first.end) == (stored["model.layers.0.norm.weight"].begin, stored[f"{expert}.weight"].end)


def test_ranges_of_two_files_and_ranges_apart_are_not_joined(tmp_path: Path) -> None:
    for name in "ab":
        tensors = [Tensor(f"{name}{i}", "U8", (2,), b"xy") for i in range(3)]
        write_shard(tmp_path / f"{name}.safetensors", tensors)
    checkpoint = open_checkpoint(tmp_path)
    at = {located.tensor.name: located for located in checkpoint.tensors()}

    def spans(*names: str) -> list[tuple[str, int]]:
        parts = list(merge_ranges(at[name] for name in names))
        assert not any(isinstance(part, Plane) for part in parts)
        return [(part.shard.name[0], part.end - part.begin) for part in parts if isinstance(part, Range)]

    assert spans("a0", "a1", "a2") == [("a", 6)]
    assert spans("a0", "a2") == [("a", 2), ("a", 2)]
    assert spans("a1", "a0") == [("a", 2), ("a", 2)]
    assert spans("a0", "b1", "b2") == [("a", 2), ("b", 4)]
    assert spans() == []


def test_mxfp4_scales_of_dtype_u8_keep_it_through_the_receipt(tmp_path: Path) -> None:
    tensors = [Tensor(t.name, "U8", t.shape, t.data) if t.name.endswith(".scale") else t for t in layer(0, MXFP4)]
    checkpoint = open_checkpoint(mini_container(tmp_path, MXFP4, content={"model.safetensors": tensors}))
    assert checkpoint.problems == []
    assert logical_files(checkpoint) == {"model.safetensors": building.shard_bytes(tensors, {"format": "pt"})}
