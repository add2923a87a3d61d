"""The few instructions of PTX that the benchmark's product has, run on the CPU for many registers at once."""

import re
from collections.abc import Callable, Sequence

import torch


def run_assembly(text: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results $0 to $3 of `inputs` $4 and so on: 32-bit registers, as int64 tensors of one shape."""
    registers = {f"${4 + i}": each for i, each in enumerate(inputs)}

    def operand(word: str) -> torch.Tensor:
        return registers[word] if word in registers else torch.full_like(inputs[0], int(word, 0))

    for name, operands in re.findall(r"(?<![.\w])([a-z][\w.]+) +([^;{}]+);", text):
        target, *sources = operands.split(", ")
        registers[target] = OPERATIONS[name](*map(operand, sources))
    return [registers[f"${i}"] for i in range(4)]


def bfloat16(registers: torch.Tensor) -> torch.Tensor:
    """The numbers in the low and the high half of registers, in float64."""
    halves = torch.stack([registers & 0xFFFF, registers >> 16], -1)
    return halves.to(torch.uint16).view(torch.bfloat16).double()


def _permute(low: torch.Tensor, high: torch.Tensor, selector: torch.Tensor) -> torch.Tensor:
    both, result = low | high << 32, torch.zeros_like(low)
    for i in range(4):
        result |= (both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i
    return result


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    halves = (bfloat16(a) * bfloat16(b)).to(torch.bfloat16).view(torch.uint16).long()
    return halves[..., 0] | halves[..., 1] << 16


OPERATIONS: dict[str, Callable[..., torch.Tensor]] = {
    "prmt.b32": _permute,
    "shl.b32": lambda a, b: (a << b) & 0xFFFFFFFF,
    "and.b32": lambda a, b: a & b,
    "or.b32": lambda a, b: a | b,
    "mov.b32": lambda a: a,
    "mul.rn.bf16x2": _multiply,
}
