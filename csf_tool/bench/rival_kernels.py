"""Triton kernels that decoding is measured against."""

import triton
import triton.language as tl


@triton.jit
def stream(source, out, chunks, READ: tl.constexpr, SIZE: tl.constexpr):
    """Read READ bytes, write SIZE bytes: as wide as they go, and nothing else. READ is at most SIZE."""
    program = tl.program_id(0)
    chunk = tl.arange(0, SIZE // 16)[:, None]
    slot = tl.arange(0, 4)[None, :]
    source += program.to(tl.int64) * READ
    # Half a word for each word written; what else there is to read goes in words, into a store that never happens.
    HALVES: tl.constexpr = min(READ // 2, SIZE // 4)
    word = chunk * 4 + slot
    words = tl.load(source.to(tl.pointer_type(tl.uint16)) + word, mask=word < HALVES, other=0).to(tl.uint32) * 65537
    at = program.to(tl.int64) * (SIZE // 16) + chunk
    out = out.to(tl.pointer_type(tl.uint32))
    tl.store(out + at * 4 + slot, words, mask=at < chunks)
    if READ > SIZE // 2:
        more = tl.arange(0, SIZE // 8)
        mask = more < (READ - SIZE // 2) // 4
        rest = tl.load((source + SIZE // 2).to(tl.pointer_type(tl.uint32)) + more, mask=mask, other=0)
        tl.store(out + more, rest, mask=mask & (rest == 0x12345678))


@triton.jit
def empty(pointer):
    """Do nothing: what a launch alone costs."""


@triton.jit
def scatter(words, places, out, count, LANES: tl.constexpr):
    """Store the values of exception words at their places in the stack."""
    at = tl.program_id(0) * LANES + tl.arange(0, LANES)
    word = tl.load(words + at, mask=at < count, other=0).to(tl.uint32, bitcast=True)
    place = tl.load(places + at, mask=at < count, other=0)
    tl.store(out + place, (word >> 24).to(tl.uint8), mask=at < count)
