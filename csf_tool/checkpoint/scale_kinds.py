"""The kind of a scale that is no plane, by its dtype and shape against those of its weight."""

from collections.abc import Iterator
from enum import StrEnum
from math import prod
from typing import NamedTuple

from csf_tool.codec.formats import FORMATS
from csf_tool.dtypes import FP4_DTYPES

Shape = tuple[int, ...]


class Reason(StrEnum):
    """The reason why a scale is no plane, as JSON documents have it."""

    STACKED = "stacked"
    MLX = "mlx"
    STORED_AS_U8 = "stored-as-u8"
    LABEL = "label"
    TRANSPOSED = "transposed"
    NAME = "name"
    SHAPE = "shape"
    NO_WEIGHT = "no-weight"
    NOT_FP4 = "not-fp4"
    SECOND_LEVEL = "second-level"


class Looks(NamedTuple):
    """The dtype and the shape of a tensor."""

    dtype: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class ScaleKind(NamedTuple):
    """The kind of a scale: the format of its weights, what one number scales, how many matrices are in one tensor."""

    weights: str
    scope: str
    reason: Reason
    why: str
    group_size: int | None = None
    matrices: int = 1

    @property
    def is_fp4(self) -> bool:
        """Whether it is a block scale of an FP4 format, or may be one."""
        return self.weights in (*_TITLES, _FP4, _FLAT, UNKNOWN) and self.reason is not Reason.SECOND_LEVEL

    def __str__(self) -> str:
        stacked = f", {self.matrices} matrices per tensor" if self.matrices > 1 else ""
        scope = f"one scale per {self.scope.removeprefix('a ')}{stacked}" if self.scope else "block scales"
        return f"{self.weights}: {scope}"


UNKNOWN = "unknown weights"
_FP4 = "FP4"
_FLAT = "FP4 or NF4"
_TITLES = tuple(fmt.title for fmt in FORMATS)

BYTE_DTYPES = ("U8", *(dtype for fmt in FORMATS for dtype in fmt.dense_dtypes if dtype != "U8"))
_FLOATS = ("F16", "BF16", "F32", "F64")
_BLOCKS = (1, 16, 32, 64, 128, 256, 512)
"""Sizes of blocks that are tried first, for a last block may be cut short."""

_WHY = {
    Reason.STACKED: "a CSF plane holds the scales of one matrix, and no reader looks for planes of a part of a tensor",
    Reason.MLX: "MLX's layout packs the weights in U32, and no reader looks for CSF planes there",
    Reason.TRANSPOSED: "its groups run along the columns, but those of a plane run along the rows",
    Reason.NAME: "readers of CSF look for other names",
    Reason.NO_WEIGHT: "there is no quantised weight beside it",
    Reason.NOT_FP4: "its weights are not FP4",
    Reason.SECOND_LEVEL: "it is a scale of scales",
}

_MLX_KINDS = {2: ("NVFP4", 16), 4: ("MXFP4", 32), 8: ("MXFP8", 32)}
"""The formats of MLX's modes by scales in 32-bit words, each with its group size."""


def kind_of(scale: Looks, weight: Looks | None, *, has_biases: bool) -> ScaleKind | None:
    """The kind of a scale beside its weight, or None where it is not a scale of a quantised weight.

    Its name, and so whether it would be a plane under another, is for the caller to judge.
    """
    if weight is None or weight.dtype in _FLOATS:
        return _without_weight(scale, weight)
    if weight.dtype == "U32":
        return _mlx(scale, weight, has_biases)
    if weight.dtype == "I32":
        return _words(scale, weight) or _integers(scale, weight, "INT4 (or INT8)", 8)
    if weight.dtype.startswith("F8_"):
        return _fp8(scale, weight)
    if weight.dtype in FP4_DTYPES:
        return _fp4(scale, weight) or _integers(scale, weight, "INT8" if weight.dtype == "I8" else "INT4 (or INT8)", 2)
    if weight.dtype.startswith("F6_"):
        return _integers(scale, weight, "FP6", 1)
    return None


def second_level(scale: Looks, of: ScaleKind) -> ScaleKind:
    """The kind of a scale of scales of this kind."""
    scope = "matrix" if prod(scale.shape) > 1 else "tensor"
    return ScaleKind(of.weights, f"a {scope}", Reason.SECOND_LEVEL, _WHY[Reason.SECOND_LEVEL])


def _without_weight(scale: Looks, weight: Looks | None) -> ScaleKind | None:
    if scale.dtype not in BYTE_DTYPES or min(prod(scale.shape[:-1]), *scale.shape[-1:]) < 2:
        return None
    why = f"the tensor beside it is {weight.dtype}, not FP4 codes" if weight else _WHY[Reason.NO_WEIGHT]
    return _kind(UNKNOWN, "", Reason.NO_WEIGHT, scale, None, why)


def _kind(weights: str, scope: str, reason: Reason, scale: Looks, group: int | None = None, why: str = "") -> ScaleKind:
    """A kind; that a tensor holds many matrices is the first reason of any FP4 scale."""
    matrices = prod(scale.shape[:-2])
    if matrices > 1 and weights in (*_TITLES, _FP4, UNKNOWN) and reason is not Reason.MLX:
        reason, why = Reason.STACKED, ""
    return ScaleKind(weights, scope, reason, why or _WHY[reason], group, matrices)


def _words(scale: Looks, weight: Looks) -> ScaleKind | None:
    """The kind of an FP4 format's scale beside words of 32 bits; None where it is not of one."""
    for axis, dims in _unpacked(weight, 8):
        group = _only_group(_block(dims, scale.shape), axis)
        for fmt in FORMATS:
            if fmt.group_size == group and scale.dtype == fmt.dense_dtype:
                why = f"its weight is {weight}, words that may hold FP4 codes: no reader looks for CSF planes there"
                return _kind(fmt.title, f"{group} values", Reason.SHAPE, scale, group, why)
    return None


def _flattened(scale: Looks, weight: Looks) -> ScaleKind | None:
    """The kind of a scale of an FP4 matrix that is no matrix itself, for it is a list, or has axes of length 1."""
    rows, packed = weight.shape
    k = packed if weight.dtype == "F4" else 2 * packed
    axes = [length for length in scale.shape if length > 1]
    for fmt in FORMATS:
        cols = k // fmt.group_size
        if scale.dtype in fmt.dense_dtypes and not k % fmt.group_size and axes in ([rows, cols], [rows * cols]):
            why = f"it is {scale}, not a matrix"
            return ScaleKind(fmt.title, f"{fmt.group_size} values", Reason.SHAPE, why, fmt.group_size)
    return None


def _fp4(scale: Looks, weight: Looks) -> ScaleKind | None:
    """The kind of a scale beside what may be FP4 codes; None where the scale has a dtype of no FP4 format."""
    if len(scale.shape) == 1 and weight.shape[1:] == (1,) and scale.shape[0] and prod(weight.shape):
        scope = f"{2 * weight.shape[0] // scale.shape[0]} values"
        return _kind(_FLAT, scope, Reason.SHAPE, scale, None, "it is a flat list (bitsandbytes), not a matrix")
    if len(weight.shape) == 2 != len(scale.shape) and (found := _flattened(scale, weight)):
        return found
    if scale.dtype not in BYTE_DTYPES or len(scale.shape) < 2:
        return None
    groups = {fmt.group_size for fmt in FORMATS}
    for axis, dims in _unpacked(weight, 1 if weight.dtype == "F4" else 2):
        group = _only_group(_block(dims, scale.shape), axis)
        if group in groups:
            return _of_group(scale, weight, group, axis)
    turned = scale._replace(shape=scale.shape[::-1]) if len(scale.shape) == 2 else scale
    for _, dims in _unpacked(weight, 1 if weight.dtype == "F4" else 2):
        if (group := _only_group(_block(dims, turned.shape), -1)) in groups:
            return _of_group(scale, weight, group, -2)
    if _is_mxfp6(scale, weight):
        return _kind("MXFP6", "32 values", Reason.NOT_FP4, scale, 32)
    fits = f"{scale} does not fit its weight, {weight}"
    return _kind(_FP4, "", Reason.SHAPE, scale, None, fits)


def _is_mxfp6(scale: Looks, weight: Looks) -> bool:
    """Whether a weight may hold four codes in three bytes, with a scale for 32 of them."""
    *rows, packed = weight.shape
    is_of_mx = scale.dtype in ("U8", "F8_E8M0") and weight.dtype == "U8"
    return is_of_mx and not packed % 24 and scale.shape == (*rows, packed // 24)


def _of_group(scale: Looks, weight: Looks, group: int, axis: int) -> ScaleKind:
    fmt = next(fmt for fmt in FORMATS if fmt.group_size == group)
    scope = f"{group} values"
    if scale.dtype not in fmt.dense_dtypes:
        if scale.dtype == "U8":
            return _kind(fmt.title, scope, Reason.STORED_AS_U8, scale, group, wrong_label("U8", group))
        return _kind(_FP4, scope, Reason.LABEL, scale, group, wrong_label(scale.dtype, group))
    if axis != -1:
        return _kind(fmt.title, scope, Reason.TRANSPOSED, scale, group)
    if len(weight.shape) != 2:
        return _kind(
            fmt.title, scope, Reason.SHAPE, scale, group, f"its weight is {weight}, not a matrix of packed codes"
        )
    return _kind(fmt.title, scope, Reason.NAME, scale, group)


def wrong_label(dtype: str, group: int) -> str:
    """The fault of scales whose dtype and group size are not those of one format, and why they stay so."""
    text = f"is {dtype} with one scale per {group} values, but NVFP4 has F8_E4M3 per 16, and MXFP4 F8_E8M0 per 32"
    fmt = next(fmt for fmt in FORMATS if fmt.group_size == group)
    u8 = f"; it is {fmt.title} stored as U8, left dense because expand would give {fmt.dense_dtype}"
    return text + u8 if dtype == "U8" else text


def _mlx(scale: Looks, weight: Looks, has_biases: bool) -> ScaleKind | None:
    words = _only_group(_block(weight.shape, scale.shape), -1)
    if has_biases:
        return ScaleKind(
            "integers with biases (MLX, affine)", "", Reason.NOT_FP4, _WHY[Reason.NOT_FP4], None, prod(scale.shape[:-2])
        )
    if scale.dtype in BYTE_DTYPES and words in _MLX_KINDS:
        weights, group = _MLX_KINDS[words]
        reason = Reason.MLX if weights in _TITLES else Reason.NOT_FP4
        return _kind(weights, f"{group} values", reason, scale, group)
    return _integers(scale, weight, "INT4 (or INT8)", 8)


def _fp8(scale: Looks, weight: Looks) -> ScaleKind | None:
    block = _block(weight.shape, scale.shape)
    is_mx = scale.dtype in ("U8", "F8_E8M0") and _only_group(block, -1) == 32
    if is_mx:
        return _kind("MXFP8", "32 values", Reason.NOT_FP4, scale, 32)
    if not block:
        return _kind("FP8", "", Reason.NOT_FP4, scale)
    return _kind("FP8", _scope(block, weight.shape), Reason.NOT_FP4, scale)


def _integers(scale: Looks, weight: Looks, weights: str, codes: int) -> ScaleKind | None:
    """The kind of a scale beside integers, or other codes, of which there are that many in an element or one."""
    factors = (codes, 1) if weights == "INT4 (or INT8)" else (1,)
    logical = [dims for factor in factors for _, dims in _unpacked(weight, factor)]
    blocks = [(block, dims) for dims in logical if (block := _block(dims, scale.shape))]
    if not blocks:
        return None
    likeliest = min(blocks, key=lambda found: sum(size > 1 for size in found[0]))  # groups in one axis, mostly
    return _kind(weights, _scope(*likeliest), Reason.NOT_FP4, scale)


def _unpacked(weight: Looks, codes: int) -> Iterator[tuple[int, Shape]]:
    """The logical shapes that a weight may have, with the axis that is packed; the last axis is the likelier."""
    shape = weight.shape
    for axis in (-1, -2)[: len(shape)]:
        dims = list(shape)
        dims[axis] *= codes
        yield axis, tuple(dims)


def _block(dims: Shape, shape: Shape) -> Shape | None:
    """The block of values that one number scales, in each dimension; None where the shapes do not fit."""
    if prod(shape) == 1:
        return dims
    if len(shape) < len(dims) and shape == dims[: len(shape)]:  # a row, or a matrix of a stack, has one number
        shape += (1,) * (len(dims) - len(shape))
    if len(shape) != len(dims) or 0 in shape or 0 in dims:
        return None
    block = tuple(map(_size, dims, shape))
    return block if all(block) else None


def _size(length: int, parts: int) -> int:
    """The size of each of so many parts of a length; 0 where it cannot be cut so."""
    for size in (*_BLOCKS, length):
        if -(-length // size) == parts:
            return size
    return 0 if length % parts else length // parts


def _only_group(block: Shape | None, axis: int) -> int:
    """The group size of blocks that are longer than 1 in one axis alone; 0 for others."""
    if not block or len(block) < -axis:
        return 0
    rest = list(block)
    group = rest.pop(axis)
    return group if set(rest) <= {1} else 0


def _scope(block: Shape, dims: Shape) -> str:
    """The block in words."""
    if block == dims:
        return "a tensor"
    if block[-2:] == dims[-2:]:
        return "a matrix"
    rows, cols = (1, *block)[-2:]
    if rows == 1:
        return "a row" if cols == dims[-1] else f"{cols} values"
    if cols == 1:
        return "a column" if rows == dims[-2] else f"{rows} values"
    return f"{rows}x{cols} values"
