"""The CSF formats as data: code bits, window, names, and the sizes of a plane's streams.

Every fact of the format stands here and nowhere else. A further codec of the same family is one more
`CsfFormat` value. Standard library only: `csf-tool --help` and header-only commands import this.
"""

from collections.abc import Iterable
from dataclasses import dataclass

SLAB_ROWS = 16
"""Rows of a slab, the unit of the fixed stream: 16 row bases, then the code bytes of the 16 rows."""

POSITION_BITS = 24
"""Bits of an exception word that hold its position (row * cols + col); the 8 bits above hold the value."""

MAX_ELEMENTS = 1 << POSITION_BITS
"""Most scales that a plane may have, so that every position fits."""

POSITION_MASK = MAX_ELEMENTS - 1

EXCEPTION_BYTES = 4
"""Bytes of an exception: one little-endian U32 word."""


@dataclass(frozen=True)
class CsfFormat:
    """One codec of the family: a scale byte is its row's base plus a code of `code_bits` bits.

    The codes of a row are packed into bytes least significant bits first, so column 0 is in the low bits
    of the first byte; bits past the last column are zero.
    """

    name: str
    title: str
    codec: str
    schema: str
    serving_method: str
    code_bits: int
    column_multiple: int
    group_size: int
    dense_dtypes: tuple[str, ...]
    scale_type: str
    """The number format of the scales, by which their values are shown to people (`codec/values.py`)."""
    fixed_in_slabs: bool
    """Whether writers give the fixed stream two dimensions, slabs and their bytes, or one."""
    has_hf_readers: bool
    """Whether readers of the Hugging Face layout know it; a container has readers for all."""
    serving_nests_source: bool
    """Whether a serving config holds the source's quantization_config under one key, or its keys beside csf-tool's."""

    @property
    def window(self) -> int:
        """Number of byte values that a row's codes span."""
        return 1 << self.code_bits

    @property
    def max_base(self) -> int:
        """Highest row base for which base + code stays a byte."""
        return 256 - self.window

    @property
    def dense_dtype(self) -> str:
        """The safetensors dtype of the dense scales, unless a source says otherwise."""
        return self.dense_dtypes[0]

    @property
    def fixed_suffix(self) -> str:
        """Suffix to the scale's name that makes the name of its fixed stream."""
        return f".{self.name}_csf_fixed"

    @property
    def exceptions_suffix(self) -> str:
        """Suffix to the scale's name that makes the name of its exception list."""
        return f".{self.name}_csf_exceptions"

    def row_bytes(self, cols: int) -> int:
        """Bytes that the codes of one row of `cols` columns take."""
        return (cols * self.code_bits + 7) // 8

    def slab_bytes(self, cols: int) -> int:
        """Bytes of one slab of `cols` columns."""
        return SLAB_ROWS * (1 + self.row_bytes(cols))

    def fixed_bytes(self, rows: int, cols: int) -> int:
        """Bytes of the fixed stream of a `[rows, cols]` plane."""
        return rows // SLAB_ROWS * self.slab_bytes(cols)

    def fixed_shape(self, rows: int, cols: int) -> tuple[int, ...]:
        """The shape in which writers store the fixed stream of a `[rows, cols]` plane."""
        slabs, nbytes = rows // SLAB_ROWS, self.slab_bytes(cols)
        return (slabs, nbytes) if self.fixed_in_slabs else (slabs * nbytes,)

    def csf_bytes(self, rows: int, cols: int, exceptions: int) -> int:
        """Bytes of both streams of a `[rows, cols]` plane with that many exceptions."""
        return self.fixed_bytes(rows, cols) + exceptions * EXCEPTION_BYTES

    def weight_bytes(self, scales: int) -> int:
        """Bytes of the FP4 weights that `scales` block scales belong to: two codes a byte."""
        return scales * self.group_size // 2

    def cols_of_slab(self, slab_bytes: int) -> int | None:
        """The columns that a slab of `slab_bytes` bytes stands for, or None where more than one number fits.

        Only a format without padding (NVFP4) can tell: its columns are a multiple of the codes in a byte.
        """
        row_bytes, rest = divmod(slab_bytes, SLAB_ROWS)
        codes_per_byte = 8 // self.code_bits
        if rest or row_bytes < 2 or self.column_multiple % codes_per_byte:
            return None
        return (row_bytes - 1) * codes_per_byte

    def geometry_fault(self, rows: int, cols: int) -> str | None:
        """Why no CSF plane can be `[rows, cols]`, or None when one can."""
        if rows <= 0 or rows % SLAB_ROWS:
            return f"{rows} rows are not a positive multiple of {SLAB_ROWS}"
        if cols <= 0 or cols % self.column_multiple:
            return f"{cols} columns are not a positive multiple of {self.column_multiple}"
        if rows * cols > MAX_ELEMENTS:
            return f"{rows} x {cols} is more than 2**{POSITION_BITS} scales"
        return None


NVFP4 = CsfFormat(
    name="nvfp4",
    title="NVFP4",
    codec="byte-window4-fixed-stream-u24-exceptions/1",
    schema="lil-nvfp4-csf-checkpoint/1",
    serving_method="nvfp4_csf",
    code_bits=4,
    column_multiple=2,
    group_size=16,
    dense_dtypes=("F8_E4M3",),
    scale_type="E4M3",
    fixed_in_slabs=True,
    has_hf_readers=True,
    serving_nests_source=True,
)

MXFP4 = CsfFormat(
    name="mxfp4",
    title="MXFP4",
    codec="row-base-offset1-u24-exceptions/1",
    schema="lil-mxfp4-csf-checkpoint/1",
    serving_method="mxfp4_csf",
    code_bits=1,
    column_multiple=1,
    group_size=32,
    dense_dtypes=("F8_E8M0", "U8"),
    scale_type="UE8M0",
    fixed_in_slabs=False,
    has_hf_readers=False,
    serving_nests_source=False,
)

FORMATS = (NVFP4, MXFP4)
"""All formats, in the order in which they are tried."""


def titles(formats: Iterable[CsfFormat]) -> str:
    """The titles of formats as a list in a sentence."""
    return " and ".join(fmt.title for fmt in formats)


def format_by_schema(schema: str) -> CsfFormat | None:
    """The format whose containers carry this `schema`, or None."""
    return next((f for f in FORMATS if f.schema == schema), None)


def format_by_name(name: str) -> CsfFormat:
    """The format that is called `name`.

    Raises:
        KeyError: there is none.
    """
    return {f.name: f for f in FORMATS}[name]


def nearest_format(dtype: str) -> CsfFormat:
    """The format whose dense scales have a dtype; NVFP4 where none has."""
    return next((fmt for fmt in FORMATS if dtype in fmt.dense_dtypes), NVFP4)
