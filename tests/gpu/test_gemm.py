"""The benchmark's matrix product against one in plain PyTorch, on weights and scales of all kinds."""

import pytest
import torch

from csf_tool.bench.gemm import Tile, multiply, row_blocks
from tests.gpu.stacks import DEVICE

EXPERTS, COLUMNS, DEPTH = 4, 64, 128
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])

# The interpreter multiplies bfloat16 as integers.
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float16


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    random = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (EXPERTS, COLUMNS, DEPTH // 2), dtype=torch.uint8, generator=random)


@pytest.fixture(scope="module")
def scale() -> torch.Tensor:
    """Every finite E4M3 value up to 16, subnormal and negative ones too."""
    random = torch.Generator().manual_seed(1)
    values = torch.randint(0, 89, (EXPERTS, COLUMNS, DEPTH // 16), dtype=torch.uint8, generator=random)
    values[:, ::3] |= 0x80
    return values.view(torch.float8_e4m3fn)


def dequantized(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    codes = torch.stack([weight & 15, weight >> 4], -1).reshape(EXPERTS, COLUMNS, DEPTH)
    return E2M1[codes.long()] * scale.float().repeat_interleave(16, 2)


@pytest.mark.parametrize("rows", [[3, 3, 3, 3], [0, 20, 0, 1], [0, 0, 0, 0]], ids=str)
def test_each_expert_multiplies_its_own_rows(weight: torch.Tensor, scale: torch.Tensor, rows: list[int]) -> None:
    total = sum(rows)
    x = torch.randn(total, DEPTH, generator=torch.Generator().manual_seed(2)).to(DTYPE)
    parts = [part.float() @ w.T for part, w in zip(x.split(rows), dequantized(weight, scale), strict=True)]
    expected = torch.cat(parts)
    out = torch.full((total + 1, COLUMNS), 7, dtype=DTYPE, device=DEVICE)
    tile = Tile(16, 32, 64, 4, 2)
    x, weight, scale = (tensor.to(DEVICE) for tensor in (x, weight, scale))
    multiply(x, weight, scale, out, row_blocks(rows, tile.rows, x.device), tile)
    torch.testing.assert_close(out[:total].cpu().float(), expected, rtol=2e-2, atol=2e-1)
    assert (out[total:] == 7).all()
