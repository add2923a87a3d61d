"""A weight-only FP4 matrix product over experts, for measuring what decoding scales before it costs."""

import triton
import triton.language as tl

from csf_tool.gpu.launching import INTERPRETED

_INTERPRETED = tl.constexpr(INTERPRETED)

# Four code bytes of eight weights to bfloat16, two to a register: the three bits of a code's magnitude go to where
# bfloat16 has its lowest exponent bits and its highest mantissa bit, the fourth to its sign. That is the weight
# times 2 ** -126, subnormal for 0.5. E4M3: the factor makes up for 2 ** 119 of it, which is as much as it can hold.
_UNPACK = tl.constexpr("""{
    .reg .b32 low, high, number, sign, whole;
    mov.b32 whole, 0x7E807E80;
    prmt.b32 low, $4, 0, 0x4140;
    prmt.b32 high, $4, 0, 0x4342;
    shl.b32 number, low, 6;   and.b32 number, number, 0x01C001C0;
    shl.b32 sign, low, 12;    and.b32 sign, sign, 0x80008000;
    or.b32 number, number, sign;  mul.rn.bf16x2 $0, number, $5;
    shl.b32 number, high, 6;  and.b32 number, number, 0x01C001C0;
    shl.b32 sign, high, 12;   and.b32 sign, sign, 0x80008000;
    or.b32 number, number, sign;  mul.rn.bf16x2 $1, number, $6;
    shl.b32 number, low, 2;   and.b32 number, number, 0x01C001C0;
    shl.b32 sign, low, 8;     and.b32 sign, sign, 0x80008000;
    or.b32 number, number, sign;  mul.rn.bf16x2 $2, number, $5;
    shl.b32 number, high, 2;  and.b32 number, number, 0x01C001C0;
    shl.b32 sign, high, 8;    and.b32 sign, sign, 0x80008000;
    or.b32 number, number, sign;  mul.rn.bf16x2 $3, number, $6;
}""")

# E8M0 scales have all exponents of bfloat16, so that a factor can make up for nothing: 2 ** 126 is multiplied first.
_UNPACK_E8M0 = tl.constexpr(_UNPACK.value.replace("sign;  mul", "sign;  mul.rn.bf16x2 number, number, whole;  mul"))

# The interpreter knows no assembly: there the weights are made the plain way.
_FACTOR = tl.constexpr(1.0 if INTERPRETED else 2.0**119)
_REST = tl.constexpr(1.0 if INTERPRETED else 2.0**7)


@triton.jit
def _e2m1(code):
    """The values of FP4 codes in the low 4 bits of uint8: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and the same negative."""
    magnitude = (code & 7).to(tl.uint32)
    # From 1 on, the code's exponent and mantissa bits are float32's, but for the bias; 0.5 would be subnormal.
    bits = tl.where(magnitude > 1, 0x3F000000 + (magnitude << 22), magnitude * 0x3F000000)
    return (bits | ((code & 8).to(tl.uint32) << 28)).to(tl.float32, bitcast=True)


@triton.jit
def _factors(scales):
    """The factors of blocks of weights from their scales: E4M3, or E8M0 as bytes."""
    if scales.dtype == tl.uint8:
        # Of E8M0's exponents float32 has two for other numbers: 2 ** -127 is subnormal, and infinity stands for NaN.
        special = tl.where((scales == 0) | (scales == 255), 1 << 22, 0)
        factor = (scales.to(tl.uint32) << 23 | special).to(tl.float32, bitcast=True)
    else:
        factor = scales.to(tl.float32) * _FACTOR
    return factor


@triton.jit
def _weights(codes, factor, DTYPE: tl.constexpr, UNPACK: tl.constexpr = _UNPACK):
    """Even and odd columns of weights, E4M3's divided by `_REST`, from code bytes [n, k] and their blocks' factors.

    Code and scale have at most 6 significant bits together: no product is rounded in bfloat16, of E4M3 none in float16.
    """
    if _INTERPRETED:
        even, odd = (_e2m1(codes) * factor).to(DTYPE), (_e2m1(codes >> 4) * factor).to(DTYPE)
    else:
        even, odd = tl.inline_asm_elementwise(
            UNPACK, "=r,=r,=r,=r,r,r,r", [codes, factor.to(tl.bfloat16)], (tl.bfloat16, tl.bfloat16), True, 4
        )
    return even, odd


@triton.jit
def gemm(
    x, weight, scale, out, blocks,
    N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SCALED_DOT: tl.constexpr,
):  # fmt: skip
    """out[rows of e] = x[rows of e] @ (weight[e] * scale[e]).T, for columns of axis 0 and a block of rows of axis 1.

    x bfloat16 (interpreted: float16, float32) `[rows, K]`, weight uint8 `[experts, N, K / 2]` with the even column in
    the low bits, scale float8_e4m3fn or, for E8M0, uint8 `[experts, N, K / GROUP]`, out like x `[rows, N]`, blocks
    int32 `[blocks, 3]`: the expert of each block, its first row, and where the expert's rows end.
    """
    blocks += tl.program_id(1) * 3
    expert, begin, end = tl.load(blocks), tl.load(blocks + 1), tl.load(blocks + 2)
    row = begin + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    line = expert.to(tl.int64) * N + column
    x += row.to(tl.int64)[:, None] * K + tl.arange(0, BLOCK_K)[None, :]
    weight += line[:, None] * (K // 2) + tl.arange(0, BLOCK_K // 2)[None, :]
    scale += line[:, None] * (K // GROUP) + tl.arange(0, BLOCK_K // GROUP)[None, :]
    E8M0: tl.constexpr = scale.dtype.element_ty == tl.uint8
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        tokens = tl.load(x + k, mask=row[:, None] < end, other=0)
        codes = tl.load(weight + k // 2)
        scales = tl.load(scale + k // GROUP)
        if SCALED_DOT:
            total = tl.dot_scaled(tokens, None, "bf16", tl.trans(codes), scales, "e2m1", total)
        else:
            factor = tl.broadcast_to(_factors(scales)[:, :, None], (BLOCK_N, BLOCK_K // GROUP, GROUP // 2))
            factor = tl.reshape(factor, (BLOCK_N, BLOCK_K // 2))
            even, odd = _weights(codes, factor, tokens.dtype, _UNPACK_E8M0 if E8M0 else _UNPACK)
            even_tokens, odd_tokens = tl.split(tl.reshape(tokens, (BLOCK_M, BLOCK_K // 2, 2)))
            total = tl.dot(even_tokens, tl.trans(even), total)
            total = tl.dot(odd_tokens, tl.trans(odd), total)
    if not (SCALED_DOT or E8M0):
        total *= _REST
    at = row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=row[:, None] < end)
