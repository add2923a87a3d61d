"""Fuzzing led by coverage: `python -m tests.fuzz.atheris_fuzz KIND -max_total_time=600` (needs `pip install atheris`).

atheris makes the bytes that hypothesis draws from, and keeps those that reach new code of csf_tool.
"""

import itertools
import sys

import atheris
from typer.testing import CliRunner

with atheris.instrument_imports(include=["csf_tool"]):
    from csf_tool.cli import app
    from tests.fuzz.commands import COMMANDS

    for line in COMMANDS.values():  # every command imports what it needs, even where it then finds nothing
        CliRunner().invoke(app, line.split())

from tests.fuzz.checkpoints import KINDS
from tests.fuzz.test_fuzz import checker, endings


def main() -> None:
    """Fuzz checkpoints of one kind until a flag of libFuzzer's says stop, or something fails."""
    kind = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    if kind not in KINDS:
        sys.exit(f"{__doc__}\nKIND is one of {', '.join(KINDS)}")
    try_bytes, calls = checker(kind).hypothesis.fuzz_one_input, itertools.count(1)

    def try_and_count(data: bytes) -> None:
        try_bytes(data)
        if next(calls) % 500 == 0:
            print(endings(), flush=True)

    atheris.Setup(sys.argv, try_and_count)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
