"""Finding planes: pairs of streams, every source of their geometry, and dense scales of every dialect."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.container import ScaleReceipt
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.plane_tables import DensePlane, Plane
from csf_tool.checkpoint.planes import find_planes
from csf_tool.checkpoint.problems import errors
from csf_tool.checkpoint.stored import Stored
from csf_tool.checkpoint.streams import Readers
from csf_tool.codec.formats import MXFP4 as MXFP4_FORMAT
from csf_tool.codec.formats import NVFP4 as NVFP4_FORMAT
from tests.building import (
    CODECS,
    MXFP4,
    NVFP4,
    Codec,
    Tensor,
    compressed,
    encode,
    home_made,
    is_scale,
    make_scales,
    matrix,
    mini_container,
    streams,
    write_hf,
    write_shard,
)

NAME = "m.experts.0.up_proj.weight_scale"


def opened(tmp_path: Path, *shards: Iterable[Tensor]) -> Checkpoint:
    """A folder with these shards, no index and no config."""
    for number, tensors in enumerate(shards):
        write_shard(tmp_path / f"{number}.safetensors", list(tensors))
    return open_checkpoint(tmp_path)


def scale_of(codec: Codec, rows: int = 16, cols: int = 4, name: str = NAME) -> Tensor:
    return Tensor(name, codec.dtype, (rows, cols), make_scales(rows, cols, codec, seed=1))


def weight_of(codec: Codec, rows: int = 16, cols: int = 4, name: str = "m.experts.0.up_proj.weight") -> Tensor:
    packed = cols * codec.group // 2
    return Tensor(name, "U8", (rows, packed), bytes([7]) * (rows * packed))


def only(checkpoint: Checkpoint) -> Plane:
    """The one plane of a checkpoint without errors."""
    assert errors(checkpoint.problems) == []
    [plane] = checkpoint.planes
    return plane


def faults(checkpoint: Checkpoint) -> list[str]:
    """The errors of a checkpoint, all about the one plane, which is not found."""
    assert checkpoint.planes == []
    found = errors(checkpoint.problems)
    assert {problem.tensor for problem in found} == {NAME}
    return [problem.problem for problem in found]


# Pairs


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.name)
@pytest.mark.parametrize("two_d", [True, False], ids=["2-D", "1-D"])
def test_fixed_streams_of_both_ranks(tmp_path: Path, codec: Codec, two_d: bool) -> None:
    plane = only(opened(tmp_path, [*streams(scale_of(codec), codec, two_d=two_d), weight_of(codec)]))
    assert (plane.name, plane.fmt.name, plane.rows, plane.cols) == (NAME, codec.name, 16, 4)
    assert plane.dtype == codec.dtype
    assert plane.dense_bytes == 64
    assert plane.fixed_bytes == {"nvfp4": 16 * 3, "mxfp4": 16 * 2}[codec.name]
    assert plane.exception_bytes == 4 * plane.exception_count
    assert plane.csf_bytes == plane.fixed_bytes + plane.exception_bytes


def test_the_exception_list_may_come_first(tmp_path: Path) -> None:
    fixed, exceptions = streams(scale_of(NVFP4), NVFP4)
    plane = only(opened(tmp_path, [exceptions, Tensor("between", "U8", (3,), b"abc"), fixed]))
    with Readers() as readers:
        read = readers.streams(plane)
    assert read.fixed.tobytes() == fixed.data
    assert read.exceptions.astype("<u4").tobytes() == exceptions.data


def test_streams_side_by_side_at_an_odd_offset_are_read_right(tmp_path: Path) -> None:
    fixed, exceptions = streams(scale_of(MXFP4, cols=9), MXFP4)
    tensors = [Tensor("odd", "U8", (5,), b"12345"), fixed, exceptions, weight_of(MXFP4, cols=9)]
    plane = only(opened(tmp_path, tensors))
    assert plane.fixed.tensor.end == plane.exceptions.tensor.begin
    with Readers() as readers:
        read = readers.streams(plane)
    assert (read.fixed.tobytes(), read.exceptions.tobytes()) == (fixed.data, exceptions.data)
    assert read.faults() == []


def test_a_pair_split_over_two_shards(tmp_path: Path) -> None:
    fixed, exceptions = streams(scale_of(NVFP4), NVFP4)
    plane = only(opened(tmp_path, [exceptions], [fixed]))
    assert (plane.fixed.shard.name, plane.exceptions.shard.name) == ("1.safetensors", "0.safetensors")
    with Readers() as readers:
        read = readers.streams(plane)
    assert (read.fixed.tobytes(), read.exceptions.tobytes()) == (fixed.data, exceptions.data)


@pytest.mark.parametrize("between", [0, 2, 3, 4, 40])
@pytest.mark.parametrize("last", ["weight", "streams"])
def test_the_weight_may_lie_anywhere(tmp_path: Path, between: int, last: str) -> None:
    others = [Tensor(f"between.{i}", "U8", (1,), b"x") for i in range(between)]
    groups = [[weight_of(NVFP4)], streams(scale_of(NVFP4), NVFP4, two_d=False)]  # 1-D: the weight alone says the shape
    first, second = groups if last == "streams" else groups[::-1]
    plane = only(opened(tmp_path, [*first, *others, *second]))
    assert (plane.rows, plane.cols) == (16, 4)


def test_an_empty_exception_list(tmp_path: Path) -> None:
    scale = Tensor(NAME, "F8_E4M3", (16, 4), bytes([0x30]) * 64)
    plane = only(opened(tmp_path, streams(scale, NVFP4)))
    assert (plane.exception_count, plane.csf_bytes) == (0, 48)
    with Readers() as readers:
        assert len(readers.streams(plane).require_decodable().exceptions) == 0


def test_a_plane_that_is_larger_compressed_than_dense(tmp_path: Path) -> None:
    scale = Tensor(NAME, "F8_E4M3", (16, 16), bytes(range(256)))
    plane = only(opened(tmp_path, streams(scale, NVFP4)))
    assert plane.csf_bytes <= 16 * 9 + 4 * 256
    turned = Tensor(NAME, "F8_E4M3", (16, 16), bytes(i % 16 * 16 + i // 16 for i in range(256)))
    plane = only(opened(tmp_path / "b", streams(turned, NVFP4)))
    assert plane.csf_bytes > plane.dense_bytes


def test_a_fixed_stream_alone(tmp_path: Path) -> None:
    [fixed, _] = streams(scale_of(NVFP4), NVFP4)
    assert faults(opened(tmp_path, [fixed])) == [f"has no NVFP4 exception list beside '{fixed.name}'"]


def test_an_exception_list_alone(tmp_path: Path) -> None:
    [_, exceptions] = streams(scale_of(MXFP4), MXFP4)
    assert faults(opened(tmp_path, [exceptions])) == [f"has no MXFP4 fixed stream beside '{exceptions.name}'"]


def test_streams_of_different_formats_are_no_pair(tmp_path: Path) -> None:
    fixed, exceptions = streams(scale_of(NVFP4), NVFP4)[0], streams(scale_of(MXFP4), MXFP4)[1]
    assert (
        faults(opened(tmp_path, [fixed, exceptions]))
        == [
            f"has no NVFP4 exception list beside '{fixed.name}'",
            f"has no MXFP4 fixed stream beside '{exceptions.name}'",
        ]
        or len(errors(open_checkpoint(tmp_path).problems)) == 2
    )


def test_a_scale_that_is_stored_dense_as_well(tmp_path: Path) -> None:
    scale = scale_of(NVFP4)
    checkpoint = opened(tmp_path, [scale, *streams(scale, NVFP4)])
    [problem] = errors(checkpoint.problems)
    assert (problem.tensor, problem.file) == (NAME, "0.safetensors")
    assert problem.problem == "is stored both dense and in CSF streams, and nothing tells which of them is right"


def test_a_scale_with_streams_of_both_formats(tmp_path: Path) -> None:
    both = [*streams(scale_of(NVFP4, cols=4), NVFP4), *streams(scale_of(MXFP4, cols=2), MXFP4), weight_of(NVFP4)]
    [problem] = errors(opened(tmp_path, both).problems)
    assert problem.problem == "has streams of two formats, NVFP4 and MXFP4"


def test_weight_scale_2_has_nothing_to_do_with_weight_scale(tmp_path: Path) -> None:
    second = Tensor(NAME + "_2", "F32", (), bytes(4))
    checkpoint = opened(tmp_path, [second, *streams(scale_of(NVFP4), NVFP4), weight_of(NVFP4)])
    assert only(checkpoint).name == NAME


def test_planes_come_in_the_order_of_their_fixed_streams(tmp_path: Path) -> None:
    b, a = (streams(scale_of(NVFP4, name=f"{n}.weight_scale"), NVFP4) for n in "ba")
    checkpoint = opened(tmp_path, [a[1], *b, a[0]])
    assert [plane.name for plane in checkpoint.planes] == ["b.weight_scale", "a.weight_scale"]
    assert checkpoint.plane_table.stream_names == {t.name for t in (*a, *b)}


@pytest.mark.parametrize("prefix", ["", "model.", "model.language_model.", "mtp.0.ffn."])
def test_any_prefix_of_names(tmp_path: Path, prefix: str) -> None:
    tensors: list[Tensor] = []
    for tensor in matrix(f"{prefix}experts.0.up", NVFP4, 1):
        tensors += streams(tensor, NVFP4) if tensor.name.endswith("weight_scale") else [tensor]
    assert only(opened(tmp_path, tensors)).name == f"{prefix}experts.0.up.weight_scale"


# The streams' own dtype and shape


@pytest.mark.parametrize(
    ("dtype", "shape"), [("I8", (1, 48)), ("U8", (1, 1, 48)), ("F8_E4M3", (48,)), ("U32", (12,)), ("U8", (2, 24))]
)
def test_a_fixed_stream_of_the_wrong_kind(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    fixed, exceptions = streams(scale_of(NVFP4), NVFP4)
    found = faults(opened(tmp_path, [Tensor(fixed.name, dtype, shape, fixed.data), exceptions, weight_of(NVFP4)]))
    wanted = f"fixed stream is {dtype} {list(shape)}, not U8 in one or two dimensions"
    assert found[0] == (
        wanted if shape != (2, 24) else "fixed stream is [2, 24], not [slabs, slab bytes] of a 16x4 plane"
    )


@pytest.mark.parametrize(
    ("dtype", "shape"), [("I32", (4,)), ("U8", (4, 4)), ("U8", (16,)), ("U32", (2, 2)), ("F32", (4,))]
)
def test_an_exception_list_of_the_wrong_kind(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    fixed, exceptions = streams(scale_of(NVFP4), NVFP4)
    assert len(exceptions.data) == 16
    found = faults(opened(tmp_path, [fixed, Tensor(exceptions.name, dtype, shape, exceptions.data)]))
    assert found == [f"exception list is {dtype} {list(shape)}, not U32 in one dimension"]


def test_more_exceptions_than_scales(tmp_path: Path) -> None:
    fixed, exceptions = streams(scale_of(NVFP4), NVFP4)
    too_many = Tensor(exceptions.name, "U32", (65,), bytes(260))
    assert faults(opened(tmp_path, [fixed, too_many])) == [
        "exception list has 65 words, but the plane has only 64 scales"
    ]


def test_a_fixed_stream_of_another_size_than_the_weight_says(tmp_path: Path) -> None:
    fixed, exceptions = streams(scale_of(MXFP4), MXFP4)
    short = Tensor(fixed.name, "U8", (31,), fixed.data[:31])
    assert faults(opened(tmp_path, [short, exceptions, weight_of(MXFP4)])) == [
        "fixed stream has 31 bytes, but a 16x4 plane needs 32"
    ]


# Geometry


def test_a_one_dimensional_stream_with_nothing_beside_it_has_no_geometry(tmp_path: Path) -> None:
    for codec in CODECS:
        folder = tmp_path / codec.name
        assert faults(opened(folder, streams(scale_of(codec), codec, two_d=False))) == [
            "its rows and columns are unknown: the fixed stream is 1-D, and there is no weight and no receipt"
        ]


def test_a_two_dimensional_mxfp4_stream_does_not_tell_its_columns(tmp_path: Path) -> None:
    found = faults(opened(tmp_path, streams(scale_of(MXFP4), MXFP4, two_d=True)))
    assert len(found) == 1
    assert found[0].startswith("its rows and columns are unknown")


@pytest.mark.parametrize("cols", [1, 7, 8, 9, 16, 17])
def test_mxfp4_columns_come_from_the_weight(tmp_path: Path, cols: int) -> None:
    scale = Tensor(NAME, "F8_E8M0", (32, cols), bytes([0x7F]) * (32 * cols))
    plane = only(opened(tmp_path, [*streams(scale, MXFP4), weight_of(MXFP4, 32, cols)]))
    assert (plane.rows, plane.cols) == (32, cols)


def test_nvfp4_geometry_comes_from_a_two_dimensional_stream_alone(tmp_path: Path) -> None:
    plane = only(opened(tmp_path, streams(scale_of(NVFP4, 48, 6), NVFP4)))
    assert (plane.rows, plane.cols) == (48, 6)


def test_the_weight_contradicts_the_stream(tmp_path: Path) -> None:
    tensors = [*streams(scale_of(NVFP4, 32, 4), NVFP4), weight_of(NVFP4, 16, 8)]
    assert faults(opened(tmp_path, tensors)) == [
        "its rows and columns are contradictory: fixed stream: 32x4; weight: 16x8"
    ]


def test_a_geometry_that_no_plane_has(tmp_path: Path) -> None:
    fixed = Tensor(f"{NAME}.mxfp4_csf_fixed", "U8", (40,), bytes(40))
    exceptions = Tensor(f"{NAME}.mxfp4_csf_exceptions", "U32", (0,), b"")
    assert faults(opened(tmp_path, [fixed, exceptions, weight_of(MXFP4, 20, 4)])) == [
        "MXFP4 CSF cannot store it: 20 rows are not a positive multiple of 16"
    ]


def receipt(**changes: object) -> ScaleReceipt:
    values: dict[str, object] = {
        "name": NAME,
        "dtype": "F8_E4M3",
        "shape": (16, 4),
        "fixed_bytes": 48,
        "exception_bytes": 16,
        "source_bytes": 64,
        "source_sha256": "0" * 64,
    }
    return ScaleReceipt(**{**values, **changes})  # type: ignore[arg-type]


def with_receipt(tmp_path: Path, tensors: list[Tensor], entry: ScaleReceipt) -> tuple[list[Plane], list[str]]:
    stored = Stored(opened(tmp_path, tensors).shards)
    planes, problems = find_planes(stored, {NAME: entry})
    return list(planes), [problem.problem for problem in problems]


def test_a_receipt_gives_the_geometry_of_a_one_dimensional_stream(tmp_path: Path) -> None:
    planes, problems = with_receipt(tmp_path, streams(scale_of(NVFP4), NVFP4, two_d=False), receipt())
    assert problems == []
    assert [(plane.rows, plane.cols) for plane in planes] == [(16, 4)]


def test_a_receipt_that_contradicts_the_stream_and_the_weight(tmp_path: Path) -> None:
    tensors = [*streams(scale_of(NVFP4), NVFP4), weight_of(NVFP4)]
    planes, problems = with_receipt(tmp_path, tensors, receipt(shape=(32, 2)))
    assert planes == []
    assert problems == ["its rows and columns are contradictory: receipt: 32x2; fixed stream: 16x4; weight: 16x4"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fixed_bytes": 40}, "the receipt has fixed_bytes 40, but the plane has 48"),
        ({"exception_bytes": 0}, "the receipt has exception_bytes 0, but the plane has 16"),
        ({"source_bytes": 63}, "the receipt has source_bytes 63, but the plane has 64"),
        ({"dtype": "F8_E8M0"}, "the receipt has dtype F8_E8M0, but NVFP4 scales are F8_E4M3"),
    ],
)
def test_a_receipt_that_differs_in_one_field(tmp_path: Path, changes: dict[str, object], expected: str) -> None:
    planes, problems = with_receipt(tmp_path, streams(scale_of(NVFP4), NVFP4), receipt(**changes))
    assert (planes, problems) == ([], [expected])


def test_the_receipt_decides_the_dtype_of_mxfp4_scales(tmp_path: Path) -> None:
    tensors = streams(scale_of(MXFP4), MXFP4)
    entry = receipt(dtype="U8", fixed_bytes=32, exception_bytes=len(tensors[1].data))
    [plane], problems = with_receipt(tmp_path, tensors, entry)
    assert (plane.dtype, problems) == ("U8", [])


# The weight's dialects


@pytest.mark.parametrize(
    ("scale", "weight", "dtype", "shape"),
    [
        ("x.weight_scale", "x.weight", "U8", (16, 32)),
        ("x.weight_scale", "x.weight_packed", "U8", (16, 32)),
        ("x.scale", "x.weight", "I8", (16, 32)),
        ("x.weight_scale", "x.weight", "F4", (16, 64)),
    ],
    ids=["ModelOpt", "compressed-tensors", "DeepSeek", "F4"],
)
@pytest.mark.parametrize("compressed", [True, False], ids=["CSF", "dense"])
def test_every_dialect_of_weight(
    tmp_path: Path, scale: str, weight: str, dtype: str, shape: tuple[int, int], compressed: bool
) -> None:
    dense = scale_of(NVFP4, name=scale)
    beside = Tensor(weight, dtype, shape, bytes(512))
    stored = streams(dense, NVFP4, two_d=False) if compressed else [dense]
    checkpoint = opened(tmp_path, [*stored, beside])
    assert checkpoint.problems == []
    found: list[Plane] | list[DensePlane] = checkpoint.planes if compressed else checkpoint.dense_planes
    assert [(p.name, p.fmt, p.rows, p.cols) for p in found] == [(scale, NVFP4_FORMAT, 16, 4)]


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"), [("F8_E4M3", (16, 64), 1024), ("BF16", (16, 32), 1024), ("U8", (1, 16, 32), 512)]
)
def test_streams_beside_a_weight_that_is_not_fp4(
    tmp_path: Path, dtype: str, shape: tuple[int, ...], nbytes: int
) -> None:
    weight = Tensor("m.experts.0.up_proj.weight", dtype, shape, bytes(nbytes))
    found = faults(opened(tmp_path, [*streams(scale_of(NVFP4), NVFP4), weight]))
    assert found == [f"the weight beside it, '{weight.name}', is {dtype} {list(shape)}, not FP4 codes"]


def test_a_weight_whose_columns_are_no_whole_groups(tmp_path: Path) -> None:
    weight = Tensor("m.experts.0.up_proj.weight", "U8", (16, 33), bytes(528))
    found = faults(opened(tmp_path, [*streams(scale_of(NVFP4), NVFP4), weight]))
    assert found == ["the weight beside it has 66 columns, not a multiple of the group size 16"]


# Dense scales


def test_dense_mxfp4_scales_of_both_dtypes(tmp_path: Path) -> None:
    scales = [Tensor(f"{n}.scale", dtype, (16, 2), bytes(32)) for n, dtype in (("a", "F8_E8M0"), ("b", "U8"))]
    weights = [Tensor(f"{n}.weight", "I8", (16, 32), bytes(512)) for n in "ab"]
    found = opened(tmp_path, scales + weights).dense_planes
    assert [(p.name, p.fmt, p.cols, p.dense_bytes) for p in found] == [
        ("a.scale", MXFP4_FORMAT, 2, 32),
        ("b.scale", MXFP4_FORMAT, 2, 32),
    ]


@pytest.mark.parametrize(
    ("scale_dtype", "scale_shape", "weight_dtype", "weight_shape"),
    [
        ("F8_E8M0", (16, 2), "F8_E4M3", (16, 64)),  # MXFP8
        ("F32", (16, 4), "U8", (16, 32)),
        ("BF16", (1, 1), "F8_E4M3", (128, 128)),  # 128x128 blocks
        ("F8_E4M3", (112, 4), "U8", (100, 32)),  # padded, to no tiles
        ("F8_E4M3", (4, 16, 4), "U8", (4, 16, 32)),  # stacked experts
        ("F8_E4M3", (16, 2), "U8", (16, 32)),  # neither group size
        ("F8_E4M3", (), "U8", (16, 32)),
    ],
)
def test_scales_that_are_no_fp4_planes(
    tmp_path: Path,
    scale_dtype: str,
    scale_shape: tuple[int, ...],
    weight_dtype: str,
    weight_shape: tuple[int, ...],
) -> None:
    tensors = []
    for name, dtype, shape in (("weight_scale", scale_dtype, scale_shape), ("weight", weight_dtype, weight_shape)):
        nbytes = {"F32": 4, "BF16": 2}.get(dtype, 1)
        for n in shape:
            nbytes *= n
        tensors.append(Tensor(f"x.{name}", dtype, shape, bytes(nbytes)))
    checkpoint = opened(tmp_path, tensors)
    assert (checkpoint.planes, checkpoint.dense_planes, errors(checkpoint.problems)) == ([], [], [])


def test_a_dense_scale_whose_rows_no_csf_plane_has_is_still_a_dense_plane(tmp_path: Path) -> None:
    tensors = [
        Tensor("x.weight_scale", "F8_E4M3", (20, 9), bytes(180)),
        Tensor("x.weight", "U8", (20, 72), bytes(1440)),
    ]
    assert [(p.rows, p.cols) for p in opened(tmp_path, tensors).dense_planes] == [(20, 9)]


# The oracle itself


def test_the_oracle_encodes_by_the_rule() -> None:
    row = bytes([0x30, 0x3F, 0x40, 0xFF])
    fixed, exceptions = encode(row * 16, 4, NVFP4)
    assert fixed[:16] == b"\x30" * 16
    assert fixed[16:18] == b"\xf0\x00"
    assert exceptions[:8] == b"\x02\0\0\x40\x03\0\0\xff"


@pytest.mark.parametrize(
    ("codec", "weight", "dtype"),
    [
        (NVFP4, "weight", "F8_E4M3"),
        (NVFP4, "weight_packed", "F8_E4M3"),
        (MXFP4, "weight", "F8_E8M0"),
        (MXFP4, "weight_packed", "U8"),
    ],
)
@pytest.mark.parametrize("make", ["folder", "container", "home-made"])
def test_the_dtype_that_no_receipt_says_is_that_of_its_family(
    tmp_path: Path, make: str, codec: Codec, weight: str, dtype: str
) -> None:
    """compressed-tensors has UE8M0 scales as plain bytes, DeepSeek labels them: engines go by the label."""
    (scale,) = (t for t in matrix("m", codec, 0) if is_scale(t))
    scale = Tensor("m.weight_scale", dtype, scale.shape, scale.data)
    packed = next(t for t in matrix("m", codec, 0) if t.name == "m.weight")
    content = {"model.safetensors": [Tensor(f"m.{weight}", "U8", packed.shape, packed.data), scale]}
    if make == "folder":
        write_hf(tmp_path, {name: compressed(tensors, codec) for name, tensors in content.items()})
    else:
        {"container": mini_container, "home-made": home_made}[make](tmp_path, codec, content=content)
    (plane,) = open_checkpoint(tmp_path).planes
    assert plane.dtype == dtype
