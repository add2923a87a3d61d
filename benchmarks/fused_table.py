"""What `fused.py` has timed, as tables: microseconds, and the ratio to the fastest product with dense scales."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from csf_tool.bench.gemm import STACKS


def table(paths: list[Path]) -> None:
    """Microseconds and the ratio to the fastest product with dense scales, by case; `*` where spread is over 5%."""
    rows: dict[tuple[int, int], dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    for path in paths:
        for line in path.read_text().splitlines():
            result = json.loads(line)
            if "us" in result or "error" in result:
                rows[result["tokens"], result["active"]][result["name"]][result.get("stack", "both")] = result
    for (tokens, active), designs in rows.items():
        if not any("us" in each for found in designs.values() for each in found.values()):
            continue
        stacks = ("both", *(stack.name for stack in STACKS))
        plain = {stack: _least(designs, stack) for stack in stacks}
        print("\n" + _line(f"{tokens} tokens, {active} active", stacks))
        for name, found in designs.items():
            cells = [_cell(found.get(stack), plain[stack]) for stack in stacks]
            print(_line(name, cells))


def _line(name: str, cells: Iterable[str]) -> str:
    both, *others = cells
    return f"{name:32}{both:14}{''.join(f'{each:27}' for each in others)}".replace(f"{'-':27}", "").rstrip(" -")


def _least(designs: dict[str, dict[str, Any]], stack: str) -> float:
    plain = [
        found[stack]["us"][0] for name, found in designs.items() if "dense" in name and "us" in found.get(stack, {})
    ]
    return min(plain, default=float("nan"))


def _cell(result: Any, plain: float) -> str:
    if not result:
        return "-"
    if "error" in result:
        return "WRONG"
    us, low, high = result["us"]
    shape = "" if result["stack"] == "both" else _short(result["shape"])
    return f"{us:.1f} {us / plain:.3f}{'*' if high - low > us / 20 else ''} {shape}"


def _short(shape: str) -> str:
    tiles = re.findall(r"rows=(\d+), columns=(\d+), depth=(\d+), warps=(\d+), stages=(\d+)", shape)
    return "x".join(tiles[0]) if tiles else shape
