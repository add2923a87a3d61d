"""Products from compressed scales: designs that decode just ahead of the product, beside dense scales and decode-first.

    benchmarks/fused_session.sh FOLDER                           # on a GPU: compile, check, time, profile; a table
    python benchmarks/fused.py --json FILE [--only WORD...]      # on a GPU: check and time
    python benchmarks/fused.py --table FILE...                   # anywhere: what was timed, with ratios
    python benchmarks/fused.py --compile                         # anywhere: registers and spills for sm_90
    TRITON_INTERPRET=1 python benchmarks/fused.py --check        # anywhere: bits, on small stacks

The layer is Qwen3.8's: gate and up as one stack, then down. A design in Triton gives the bits of the product with dense
scales in the same launch shape, one in Gluon its values, or it is reported as wrong and not timed. Each stack's product
gets the launch shape that is fastest for it; ratios are to the fastest product with dense scales, of any design.

- *dense*: bench's product; *dense, overlapping*: down brings its weights into the L2 while gate and up ends
  (programmatic dependent launch); *dense in Gluon*: that of `gluon_prologue.py`.
- *decoded first*: csf_tool's decoder before each product.
- *both decoded first*: one launch for the active experts of both stacks; *…, overlapping*: products bring weights into
  the L2 while what is before them ends.
- *down decoded beside*: gate and up's product has programs more that decode down's scales.
- *strip*: each program decodes its strip of scales to a scratch of its own, which stays in the L2.
- *prologue*: into shared memory, in Gluon. *Prologue, overlapping*: down decodes its scales, which depend on no token,
  while gate and up ends.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from fused_designs import (
    PAIRS,
    SINGLE,
    Call,
    Product,
    Routing,
    Stack,
    alone,
    compile_all,
    dense,
    in_gluon,
    shapes_of,
    wanted,
)  # fmt: skip
from fused_table import table
from notes import Note

from csf_tool.bench.gemm import STACKS, Tile
from csf_tool.bench.timing import time_graph
from csf_tool.bench.workloads import ACTIVE_EXPERTS


@dataclass
class Case:
    """Both stacks' products with some tokens, and the routings that launches take in turn."""

    products: list[Product]
    routings: list[Routing]
    tokens: int
    active: int
    ranked: dict[tuple[str, int], list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, stacks: list[Stack], tokens: int, active: int, dtype: torch.dtype = torch.bfloat16) -> "Case":
        experts, device = stacks[0].layer.stack.experts, stacks[0].layer.device
        if active == experts:
            routings = [Routing(experts, None, tokens, device)]
        else:
            order = torch.randperm(experts, generator=torch.Generator().manual_seed(3))
            chosen = order[: experts // active * active].split(active)
            routings = [Routing(experts, each, tokens, device) for each in chosen]
        rows = active * tokens
        products = [
            Product(stack, x, x.new_empty(rows, stack.layer.columns))
            for stack in stacks
            for x in (stack.layer.tokens(rows, dtype),)
        ]
        return cls(products, routings, tokens, active)

    @cached_property
    def lines(self) -> int:
        """All lines of a row where few programs start; where many do, each has others' loads to wait beside."""
        return 64 if len(self.routings) > 1 else 0

    def call(self, which: int, shape: Any, i: int = 0) -> Call:
        return Call(self.products[which], self.routings[i % len(self.routings)], shape, self.lines)

    def time(self, work: Callable[[int], object], repeats: int) -> list[float]:
        for i in range(len(self.routings)):  # makes the lists of blocks, which no graph can do
            work(i)
        timing = time_graph(work, launches=max(4, len(self.routings)), repeats=repeats)
        return [timing.median_us, timing.low_us, timing.high_us]


def fault_of(run: Callable[[], object], outs: list[torch.Tensor], wants: list[torch.Tensor], exact: bool) -> str | None:
    """What is wrong with what `run` gives, twice, or None."""
    for _ in range(2):
        for out in outs:
            out.zero_()
        try:
            run()
            for out, want in zip(outs, wants, strict=True):
                if exact:
                    wrong = int((out.view(torch.int16) != want.view(torch.int16)).sum())
                    assert not wrong, f"{wrong} of {want.numel()} values differ"
                else:
                    torch.testing.assert_close(out, want, rtol=2e-2, atol=float(want.nan_to_num().abs().mean()) / 50)
        except Exception as error:
            return repr(error)[:300]
    return None


def poison(case: Case) -> None:
    for product in case.products:
        product.stack.layer.workspace.view(torch.uint8).fill_(0xA5)
        product.stack.scratch.fill_(0xA5)


def expected(case: Case, which: int, shape: Any) -> torch.Tensor:
    """The product with dense scales in a launch shape of Triton, or in any for Gluon's."""
    tile = shape if isinstance(shape, Tile) else Tile(16, 64, 128, 4, 4)
    dense(case.call(which, tile))
    return case.products[which].out.clone()


def check_single(case: Case, which: int, name: str, shape: Any) -> str | None:
    want = expected(case, which, shape)
    poison(case)
    run = SINGLE[name]
    return fault_of(lambda: run(case.call(which, shape)), [case.products[which].out], [want], not in_gluon(name))


def check_pair(case: Case, name: str, shapes: list[Any]) -> str | None:
    wants = [expected(case, which, shape) for which, shape in enumerate(shapes)]
    poison(case)
    run = PAIRS[name]
    outs = [product.out for product in case.products]
    return fault_of(
        lambda: run(*(case.call(which, shape) for which, shape in enumerate(shapes))), outs, wants, not in_gluon(name)
    )


def fastest(case: Case, which: int, name: str) -> list[Any]:
    """Launch shapes of a design, the fastest first; those that cannot be launched are left out."""
    if (name, which) in case.ranked:
        return case.ranked[name, which]
    stack, run, found = case.products[which].stack.layer.stack, SINGLE[name], []
    for shape in shapes_of(name, stack, case.tokens):
        try:
            us = case.time(lambda i, shape=shape: run(case.call(which, shape, i)), 4)[0]
        except Exception as error:  # more shared memory than there is, say
            print(name, shape, repr(error)[:200], flush=True)
            continue
        found.append((us, len(found), shape))
    case.ranked[name, which] = [shape for _, _, shape in sorted(found)]
    return case.ranked[name, which]


def time_case(case: Case, only: list[str], note: Callable[..., None], repeats: int) -> None:
    """Each design on each stack in its best launch shape, and on both one after the other."""
    for name in wanted(SINGLE, only):
        shapes: list[Any] = []
        for which in (0, 1):
            best = fastest(case, which, alone(name))
            fault = check_single(case, which, name, best[0]) if best else "no launch shape works"
            stack, base = case.products[which].stack.name, {"tokens": case.tokens, "active": case.active, "name": name}
            if fault:
                note(**base, stack=stack, error=fault, shape=str(best[:1]))
                break
            shapes += best[:1]
            us = case.time(lambda i, w=which, s=shapes[which], n=name: SINGLE[n](case.call(w, s, i)), repeats)
            note(**base, stack=stack, us=[round(each, 2) for each in us], shape=str(shapes[which]))
        if len(shapes) == 2:
            run = SINGLE[name]
            time_pair(case, name, lambda a, b, r=run: (r(a), r(b)), shapes, note, repeats)
    for name in wanted(PAIRS, only):
        best = [fastest(case, which, alone(name)) for which in (0, 1)]
        shapes = [each[0] for each in best if each]
        fault = check_pair(case, name, shapes) if len(shapes) == 2 else "no launch shape works"
        if fault:
            note(tokens=case.tokens, active=case.active, name=name, stack="both", error=fault, shape=str(shapes))
        else:
            time_pair(case, name, PAIRS[name], shapes, note, repeats)


def time_pair(
    case: Case, name: str, run: Callable[[Call, Call], object], shapes: list[Any], note: Callable[..., None],
    repeats: int,
) -> None:  # fmt: skip
    us = case.time(lambda i: run(case.call(0, shapes[0], i), case.call(1, shapes[1], i)), repeats)
    note(
        tokens=case.tokens, active=case.active, name=name, stack="both", us=[round(each, 2) for each in us],
        shape=str(shapes),
    )  # fmt: skip


def warm(stacks: list[Stack], only: list[str], share: int, shares: int) -> None:
    """Compile what `time_case` may launch, a share of it: processes that do so fill the compiler's cache together."""
    seen: set[object] = set()
    for tokens in (1, 64):
        case = Case.of(stacks, tokens, ACTIVE_EXPERTS)
        for which, stack in enumerate(stacks):
            for name in ["dense", *wanted(SINGLE, only)]:
                for shape in shapes_of(name, stack.layer.stack, tokens):
                    if _is_mine(seen, (name, which, str(shape)), share, shares):
                        _tried(lambda c=case, n=name, w=which, s=shape: SINGLE[n](c.call(w, s)))
        for name in wanted(PAIRS, only):
            both = [shapes_of(alone(name), stack.layer.stack, tokens) for stack in stacks]
            for i in range(max(map(len, both))):
                shapes = [found[i % len(found)] for found in both]
                if _is_mine(seen, (name, str(shapes)), share, shares):
                    _tried(lambda c=case, n=name, s=shapes: PAIRS[n](c.call(0, s[0]), c.call(1, s[1])))
    torch.cuda.synchronize()


def _is_mine(seen: set[object], what: object, share: int, shares: int) -> bool:
    is_new = what not in seen
    seen.add(what)
    return is_new and len(seen) % shares == share


def _tried(launch: Callable[[], object]) -> None:
    try:
        launch()
    except Exception as error:
        print(repr(error)[:300], flush=True)


SMALL: tuple[tuple[int, int], ...] = ((18, 6), (2, 2))
"""Tokens and active experts that are checked without a GPU."""


def check(note: Callable[..., None], which: Iterable[tuple[int, int]] = SMALL, only: list[str] | None = None) -> None:
    """Designs on a small layer, whose exceptions are many: what they give alone."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float16
    sizes = ((128, 32), (256, 40)) if device.type == "cuda" else ((64, 16), (128, 8))
    stacks = [
        Stack(replace(STACKS[0], name=name, experts=6, rows=rows, cols=cols, exception_share=0.03), device)
        for name, (rows, cols) in zip(("gate and up", "down"), sizes, strict=True)
    ]
    for tokens, active in which:
        case = Case.of(stacks, tokens, active, dtype)
        base = {"tokens": tokens, "active": active}
        for name in wanted(SINGLE, only or []):
            for number, stack in enumerate(stacks):
                for shape in shapes_of(name, stack.layer.stack, tokens)[:: 1 if in_gluon(name) else 5]:
                    fault = check_single(case, number, name, shape)
                    note(**base, name=name, stack=stack.name, **({"error": fault} if fault else {"values": "right"}))
        for name in wanted(PAIRS, only or []):
            both = [shapes_of(alone(name), stack.layer.stack, tokens) for stack in stacks]
            for at in (0, -1):
                fault = check_pair(case, name, [found[at] for found in both])
                note(**base, name=name, **({"error": fault} if fault else {"values": "right"}))


def profile(stacks: list[Stack], only: list[str]) -> None:
    """Each product of each design alone and once, in its best launch shape, for a profiler that waits for its start."""
    for active in (ACTIVE_EXPERTS, stacks[0].layer.stack.experts):
        case = Case.of(stacks, 1, active)
        for name in wanted(SINGLE, only):
            for which in (0, 1):
                shape = fastest(case, which, name)[0]
                torch.cuda.synchronize()
                torch.cuda.profiler.start()
                SINGLE[name](case.call(which, shape, 1))
                torch.cuda.synchronize()
                torch.cuda.profiler.stop()
                print(f"profiled: {name}, {case.products[which].stack.name}, {active} active, {shape}", flush=True)


CASES = (
    (1, ACTIVE_EXPERTS),
    (1, 512),
    (16, ACTIVE_EXPERTS),
    (64, ACTIVE_EXPERTS),
    (16, 512),
    (64, 512),
    (4, 8),
    (4, 512),
)
"""Tokens and active experts, most wanted first."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--only", nargs="*", default=[], help="the designs to take")
    parser.add_argument("--warm", help="I/N: compile the I-th of N parts of all, and no more")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further case after so long")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.compile:
        return compile_all()
    if options.table:
        return table(options.table)
    note = Note(options.json)
    if options.check:
        check(note, ((*SMALL, (70, 2)) if torch.cuda.is_available() else SMALL), options.only)
        sys.exit(1 if note.wrong else 0)
    begun, device = time.monotonic(), torch.device("cuda")
    stacks = [Stack(stack, device) for stack in STACKS]
    if options.warm:
        return warm(stacks, options.only, *map(int, options.warm.split("/")))
    if options.profile:
        return profile(stacks, options.only)
    for tokens, active in CASES:
        if time.monotonic() - begun < options.seconds:
            note(case=[tokens, active], seconds=round(time.monotonic() - begun, 1))
            time_case(Case.of(stacks, tokens, active), options.only, note, options.repeats)
    sys.exit(1 if note.wrong else 0)


if __name__ == "__main__":
    main()
