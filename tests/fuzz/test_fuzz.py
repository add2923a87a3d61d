"""Whole checkpoints, mutated: every command ends as the contract says, and what it calls equal is equal.

In CI a fixed number of inputs, always the same. CSF_TOOL_FUZZ=30 tries random ones for 30 minutes; see
docs/security.md.
"""

import os
import sys
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.checkpoints import KINDS, Spec, build, specs
from tests.fuzz.commands import COMMANDS, run, workplace
from tests.fuzz.mutations import mutate

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="alarms, pipes and links of POSIX")

MINUTES = float(os.environ.get("CSF_TOOL_FUZZ", "0"))
CI_EXAMPLES = 70
ROUND_EXAMPLES = 100

ENDINGS: Counter[int] = Counter()
"""How many commands ended with which exit code: inputs that all fail early would try little."""

OTHER_COMMANDS = sorted(COMMANDS.keys() - {"stats", "verify against", "expand"})


def try_one(data: st.DataObject, kind: str) -> None:
    """One input: a valid checkpoint, up to four mutations, and commands on what that gives."""
    case = build(data.draw(specs(kind), label="spec"))
    folder = dict(case.folder)
    for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4]), label="mutations")):
        mutate(data.draw, folder)
    command = data.draw(st.sampled_from(OTHER_COMMANDS), label="command")
    against = data.draw(st.sampled_from(["verify against", "verify against everything"]), label="against")
    file = "model.safetensors" if kind == "file" and data.draw(st.booleans()) else ""
    with workplace(folder, case.reference) as place:
        for name in ("stats", against, "expand", command):
            ENDINGS[run(place, name, file)] += 1


def endings() -> str:
    """How much was tried so far."""
    by_code = ", ".join(f"{n} exit {code}" for code, n in sorted(ENDINGS.items()))
    return f"{sum(ENDINGS.values()) // 4} inputs tried by {sum(ENDINGS.values())} commands ({by_code})"


def checker(kind: str, number: int | None = None) -> Any:
    """A round of random inputs by its number; the fixed ones of CI without a number."""

    @settings(
        max_examples=CI_EXAMPLES if number is None else ROUND_EXAMPLES,
        derandomize=number is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, Phase.shrink],
        print_blob=True,
    )
    @given(st.data())
    def check(data: st.DataObject) -> None:
        try_one(data, kind)

    return check if number is None else seed(number)(check)


@pytest.mark.slow
@pytest.mark.skipif(MINUTES > 0, reason="CSF_TOOL_FUZZ: the long way")
@pytest.mark.parametrize("kind", KINDS)
def test_fixed_inputs(kind: str) -> None:
    checker(kind)()


@pytest.mark.skipif(MINUTES == 0, reason="CSF_TOOL_FUZZ=minutes runs it")
def test_random_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    end, number = time.monotonic() + 60 * MINUTES, int(time.time())
    while time.monotonic() < end:
        for kind in KINDS:
            checker(kind, number)()
        with capsys.disabled():
            print(f"seed {number}: {endings()}", flush=True)
        number += 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mutation_every_command_that_fits_ends_well(kind: str) -> None:
    """What the mutations start from is valid: otherwise they would find nothing."""

    @settings(max_examples=12, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(specs(kind))
    def check(spec: Spec) -> None:
        case = build(spec)
        with workplace(case.folder, case.reference) as place:
            assert run(place, "stats") == 0
            assert run(place, "verify against") == 0
            has_config = kind in ("hf", "dense", "container")
            lacks_index = kind == "dense" and spec.shards > 1 and not spec.with_index
            assert run(place, "verify against everything") == (not has_config or lacks_index)
            assert run(place, "expand") == (2 if kind == "dense" else 0)
            assert kind != "dense" or run(place, "compress") == 0

    check()
