"""The benchmark's matrix product against one in float64, which knows the bytes by the specifications alone."""

from dataclasses import replace

import pytest
import torch

from csf_tool.bench.gemm import MXFP4_STACKS, STACKS, Tile, multiply, row_blocks
from csf_tool.bench.gemm_kernels import _UNPACK, _UNPACK_E8M0
from csf_tool.bench.gemm_times import Layer
from csf_tool.bench.rivals import without_exceptions
from csf_tool.bench.workloads import Workload, make_streams
from csf_tool.codec.formats import MXFP4, NVFP4, CsfFormat
from csf_tool.gpu.scales import decompress_csf_scales
from tests.gpu.assembly import bfloat16, run_assembly
from tests.gpu.stacks import DEVICE

EXPERTS, COLUMNS, DEPTH = 4, 64, 128
TILE = Tile(16, 32, 64, 4, 2)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)

# The interpreter multiplies bfloat16 as integers; float32 has its exponents.
DTYPES = (torch.bfloat16,) if DEVICE == "cuda" else (torch.float16, torch.float32)
DTYPE_OF = {NVFP4: torch.float8_e4m3fn, MXFP4: torch.float8_e8m0fnu}
FORMATS = pytest.mark.parametrize("fmt", [NVFP4, MXFP4], ids=lambda fmt: fmt.title)


def value(byte: int, fmt: CsfFormat) -> float:
    """The number that a scale byte is: E4M3, or E8M0 of the OCP MX specification."""
    if fmt is MXFP4:
        return float("nan") if byte == 255 else 2.0 ** (byte - 127)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    magnitude = 2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8
    return float("nan") if byte & 127 == 127 else -magnitude if byte & 128 else magnitude


def dequantized(weight: torch.Tensor, scale: torch.Tensor, fmt: CsfFormat) -> torch.Tensor:
    """Weights in float64, of their code bytes and scale bytes."""
    codes = torch.stack([weight & 15, weight >> 4], -1).reshape(*weight.shape[:2], -1)
    values = torch.tensor([value(byte, fmt) for byte in range(256)], dtype=torch.float64)
    return E2M1[codes.long()] * values[scale.view(torch.uint8).long()].repeat_interleave(fmt.group_size, 2)


def random_weight() -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (EXPERTS, COLUMNS, DEPTH // 2), dtype=torch.uint8, generator=random)


def random_scale(fmt: CsfFormat) -> torch.Tensor:
    """E4M3 of up to 16, subnormal and negative ones too; E8M0 from 1/16 to 16."""
    random = torch.Generator().manual_seed(1)
    low, high = (0, 89) if fmt is NVFP4 else (123, 132)
    shape = (EXPERTS, COLUMNS, DEPTH // fmt.group_size)
    scale = torch.randint(low, high, shape, dtype=torch.uint8, generator=random)
    if fmt is NVFP4:
        scale[:, ::3] |= 0x80
    return scale.view(DTYPE_OF[fmt])


def product(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, rows: list[int], tile: Tile = TILE
) -> torch.Tensor:
    """What the kernel gives for `rows` of each expert, with one row more that is not to be written."""
    x, weight, scale = (tensor.to(DEVICE) for tensor in (x, weight, scale))
    out = torch.full((sum(rows) + 1, weight.shape[1]), 7, dtype=x.dtype, device=DEVICE)
    return multiply(x, weight, scale, out, row_blocks(rows, tile.rows, out.device), tile).cpu()


@FORMATS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [[3, 3, 3, 3], [0, 20, 0, 1], [0, 0, 0, 0]], ids=str)
def test_each_expert_multiplies_its_own_rows(fmt: CsfFormat, dtype: torch.dtype, rows: list[int]) -> None:
    weight, scale = random_weight(), random_scale(fmt)
    x = torch.randn(sum(rows), DEPTH, generator=torch.Generator().manual_seed(2)).to(dtype)
    parts = zip(x.double().split(rows), dequantized(weight, scale, fmt), strict=True)
    expected = torch.cat([part @ one.T for part, one in parts])
    out = product(x, weight, scale, rows)
    rtol, atol = (1e-5, 1e-4) if dtype is torch.float32 else (2e-2, 2e-1)
    torch.testing.assert_close(out[:-1].double(), expected, rtol=rtol, atol=atol)
    assert (out[-1:] == 7).all()


@FORMATS
@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of numpy, on the way to NaN and infinity
@pytest.mark.parametrize("place", [0, 1, 2 * DEPTH // 3], ids=str)
def test_every_code_with_every_scale_is_its_number(fmt: CsfFormat, place: int) -> None:
    """To the bit: NaN where the scale is NaN, infinite only from 2 ** 128 on, which bfloat16 has not."""
    codes, scales = torch.arange(16, dtype=torch.uint8), torch.arange(256, dtype=torch.uint8)
    weight = torch.zeros(16, 256, DEPTH // 2, dtype=torch.uint8)
    weight[..., place // 2] = (codes << 4 * (place % 2))[:, None]
    scale = scales.repeat(16, 1)[..., None].repeat(1, 1, DEPTH // fmt.group_size)
    x = torch.zeros(16, DEPTH, dtype=DTYPES[-1])
    x[:, place] = 1
    out = product(x, weight, scale.view(DTYPE_OF[fmt]), [1] * 16, Tile(16, 256, DEPTH, 4, 2))[:-1]
    expected = dequantized(weight, scale, fmt)[..., place].to(DTYPES[-1])
    assert torch.isnan(expected).any() and torch.isinf(expected).any() == (fmt is MXFP4)
    if fmt is NVFP4 and DEVICE == "cpu":
        out[expected.isnan()] = torch.nan  # for the interpreter, E4M3's NaN is 480
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.slow
@FORMATS
def test_the_assembly_unpacks_every_code_with_every_scale(fmt: CsfFormat) -> None:
    """What only a GPU runs gives the same numbers: to the bit, in bfloat16."""
    text, shift, rest = (_UNPACK, 2.0**119, 2.0**7) if fmt is NVFP4 else (_UNPACK_E8M0, 1.0, 1.0)
    byte, scale = torch.cartesian_prod(torch.arange(256), torch.arange(256)).unbind(1)
    numbers = torch.tensor([value(b, fmt) for b in range(256)], dtype=torch.float64)[scale]
    factor = (numbers * shift).to(torch.bfloat16).view(torch.uint16).long()
    codes = torch.stack([byte, byte ^ 0x5A, byte ^ 0xFF, byte ^ 0x3C], 1)
    registers = codes[:, 0] | codes[:, 1] << 8 | codes[:, 2] << 16 | codes[:, 3] << 24
    results = run_assembly(text.value, [registers, factor | factor << 16, factor | factor << 16])
    got = torch.cat([bfloat16(each) for each in results], 1) * rest
    expected = torch.cat([E2M1[codes & 15], E2M1[codes >> 4]], 1) * numbers[:, None]
    torch.testing.assert_close(got, expected.to(torch.bfloat16).double(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("stack", [*STACKS, *MXFP4_STACKS], ids=lambda stack: stack.name)
def test_products_that_are_compared_are_finite_and_tell_scales_apart(stack: Workload) -> None:
    """Equal products of made-up streams prove something: all are numbers, and an exception left out changes its row."""
    cols = 2 * TILE.depth // stack.format.group_size
    small = replace(stack, experts=2, rows=COLUMNS, cols=cols, exception_share=0.05)
    streams = make_streams(small, torch.device(DEVICE))
    layer = Layer(small, streams, torch.device(DEVICE))
    x = layer.tokens(2)
    right = product(x, layer.weight, layer.dense, [1, 1])
    assert torch.isfinite(right).all()
    without = decompress_csf_scales(without_exceptions(streams))
    other = without.view(torch.uint8) != layer.dense.view(torch.uint8)
    wrong = product(x, layer.weight, without, [1, 1])
    changed, differs = other.any(2).cpu(), (right != wrong)[:-1]
    assert not (differs & ~changed).any()
    assert differs.sum() > 0.9 * changed.sum()  # a small weight's change may be lost in rounding
    assert 10 < changed.sum() < changed.numel()
