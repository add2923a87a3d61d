"""The dtypes that safetensors 0.8 names: the bits of an element, what torch and numpy call them, and what they hold.

The names are strings, and neither library is imported: most commands need neither.
"""

from collections.abc import Sequence
from typing import NamedTuple

MAX_BYTES = 1 << 63
"""Sizes and offsets are below this: no file is longer."""


class Dtype(NamedTuple):
    """Bits of an element, and its names elsewhere; empty where there is none.

    torch holds two F4 values in an element. What numpy itself lacks, the package ml_dtypes may have.
    """

    bits: int
    torch: str = ""
    numpy: str = ""
    ml_dtypes: str = ""


DTYPES = {
    "BOOL": Dtype(8, "bool", numpy="?"),
    "U8": Dtype(8, "uint8", numpy="<u1"),
    "I8": Dtype(8, "int8", numpy="<i1"),
    "U16": Dtype(16, "uint16", numpy="<u2"),
    "I16": Dtype(16, "int16", numpy="<i2"),
    "U32": Dtype(32, "uint32", numpy="<u4"),
    "I32": Dtype(32, "int32", numpy="<i4"),
    "U64": Dtype(64, "uint64", numpy="<u8"),
    "I64": Dtype(64, "int64", numpy="<i8"),
    "F16": Dtype(16, "float16", numpy="<f2"),
    "BF16": Dtype(16, "bfloat16", ml_dtypes="bfloat16"),
    "F32": Dtype(32, "float32", numpy="<f4"),
    "F64": Dtype(64, "float64", numpy="<f8"),
    "C64": Dtype(64, "complex64", numpy="<c8"),
    "F8_E4M3": Dtype(8, "float8_e4m3fn", ml_dtypes="float8_e4m3fn"),
    "F8_E4M3FNUZ": Dtype(8, "float8_e4m3fnuz", ml_dtypes="float8_e4m3fnuz"),
    "F8_E5M2": Dtype(8, "float8_e5m2", ml_dtypes="float8_e5m2"),
    "F8_E5M2FNUZ": Dtype(8, "float8_e5m2fnuz", ml_dtypes="float8_e5m2fnuz"),
    "F8_E8M0": Dtype(8, "float8_e8m0fnu", ml_dtypes="float8_e8m0fnu"),
    "F6_E2M3": Dtype(6),
    "F6_E3M2": Dtype(6),
    "F4": Dtype(4, "float4_e2m1fn_x2"),
}
"""Every dtype by its name in a header."""

FP4_DTYPES = ("U8", "I8", "F4")
"""Dtypes of weights that hold FP4 codes, two a byte; the shape of an F4 one is the logical one."""

PLAIN_DTYPES = ("BF16", "F16", "F32")
"""Dtypes of weights that are not quantised."""


def bits_of(dtype: str, shape: Sequence[int]) -> int | None:
    """Bits that a tensor of a known dtype takes, or None where that is more than any file holds."""
    total = DTYPES[dtype].bits
    for n in shape:
        total *= n
        if total > 8 * MAX_BYTES:  # as the reference implementation: even when a later size is 0
            return None
    return total
