"""The product that is measured: FP4 weights, unpacked in the kernel, and 16-bit activations. Its stacks and shapes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from csf_tool.bench.gemm_kernels import gemm
from csf_tool.bench.workloads import ACTIVE_EXPERTS, Workload
from csf_tool.codec.formats import MXFP4, NVFP4

STACKS = (
    Workload("Qwen3.8 gate and up", NVFP4, 512, 1280, 160, 0.010),
    Workload("Qwen3.8 down", NVFP4, 512, 2560, 40, 0.004),
)
"""The stacks of one layer of Qwen3.8-Flash-Next, gate and up as one."""

MXFP4_STACKS = (
    Workload("DeepSeek-V4.1 w1 and w3", MXFP4, 384, 4608, 160, 0.0006),
    Workload("DeepSeek-V4.1 w2", MXFP4, 384, 5120, 72, 0.0006),
)
"""The stacks of one layer of DeepSeek-V4.1: w1 and w3, its gate and up, as one."""

_TOKENS = (1, 4, 16, 64, 256)
_FEW_TOKENS = (1, 64)


def tokens_of(stack: Workload) -> tuple[int, ...]:
    """Tokens of each expert that has any, for each product; of the second format in a run only two, to save time."""
    return _FEW_TOKENS if stack in MXFP4_STACKS else _TOKENS


@dataclass(frozen=True, slots=True)
class Tile:
    """A launch shape of the product: what one program computes, and how."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    scaled_dot: bool = False


TILES = (
    Tile(16, 16, 128, 1, 6),
    Tile(16, 16, 256, 1, 4),
    Tile(16, 16, 512, 2, 3),
    Tile(16, 32, 128, 2, 5),
    Tile(16, 32, 128, 4, 4),
    Tile(16, 32, 256, 2, 4),
    Tile(16, 32, 256, 4, 4),
    Tile(16, 32, 512, 4, 3),
    Tile(16, 64, 128, 2, 4),
    Tile(16, 64, 128, 4, 4),
    Tile(16, 64, 256, 4, 3),
    Tile(16, 128, 128, 4, 3),
    Tile(16, 128, 128, 4, 4),
    Tile(64, 32, 128, 4, 4),
    Tile(64, 64, 128, 4, 3),
    Tile(64, 64, 256, 4, 3),
    Tile(64, 128, 128, 4, 3),
    Tile(128, 128, 64, 8, 3),
    Tile(128, 128, 128, 8, 3),
)


def row_blocks(rows: Sequence[int], block: int, device: torch.device) -> torch.Tensor:
    """Blocks of at most `block` rows, of experts with so many `rows` each: int32 `[blocks, 3]`, as the kernel has it.

    Engines give such a list to their products, too, so that no program starts for an expert without rows.
    """
    found, begin = [], 0
    for expert, count in enumerate(rows):
        found += [(expert, first, begin + count) for first in range(begin, begin + count, block)]
        begin += count
    return torch.tensor(found, dtype=torch.int32).reshape(-1, 3).to(device)


def multiply(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, out: torch.Tensor, blocks: torch.Tensor, tile: Tile
) -> torch.Tensor:
    """`out[rows of expert e] = x[rows of e] @ (weight[e] * scale[e]).T`, for `row_blocks` of `tile.rows`.

    Shapes and dtypes stand at the kernel.
    """
    _, columns, half = weight.shape
    scale = scale.view(torch.uint8) if scale.dtype == torch.float8_e8m0fnu else scale  # Triton has no such dtype
    if len(blocks):
        gemm[(columns // tile.columns, len(blocks))](
            x,
            weight,
            scale,
            out,
            blocks,
            N=columns,
            K=2 * half,
            GROUP=2 * half // scale.shape[2],
            BLOCK_M=tile.rows,
            BLOCK_N=tile.columns,
            BLOCK_K=tile.depth,
            SCALED_DOT=tile.scaled_dot,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return out


def why_no_product(stack: Workload, l2_bytes: int) -> str | None:
    """Why the products of a stack are not measured, or None when they are."""
    if stack.format not in (NVFP4, MXFP4):
        return f"the product needs NVFP4 or MXFP4 weights, but these are {stack.format.title}"
    depth = stack.cols * stack.format.group_size
    if not any(fits(tile, stack) for tile in TILES):
        return f"no launch shape fits weights of {stack.rows}x{depth}"
    if stack.experts < 2 * ACTIVE_EXPERTS:
        return f"{stack.experts} experts are too few to choose {ACTIVE_EXPERTS} of them in turn"
    if stack.format.weight_bytes(stack.dense_bytes) <= l2_bytes:
        return "the weights fit in the L2, so they cannot be measured outside it"
    return None


def fits(tile: Tile, stack: Workload) -> bool:
    """Whether the launch shape divides the stack's weights: the kernel computes no part of a tile."""
    depth = stack.cols * stack.format.group_size
    return not stack.rows % tile.columns and not depth % tile.depth
