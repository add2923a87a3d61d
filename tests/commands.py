"""Commands as a user runs them, in this process, and what they say."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from csf_tool.cli import app


def run(*args: object) -> Result:
    """A command, decoding on the CPU."""
    words = [str(arg) for arg in args]
    device = ["--device", "cpu"] if words[0] in ("verify", "expand", "compress") and "--quick" not in words else []
    result = CliRunner().invoke(app, [*words, *device])
    assert "Traceback" not in result.output
    return result


def says(result: Result, *texts: str) -> None:
    """Check that a command's output has all of these."""
    missing = [text for text in texts if text not in result.output]
    assert not missing, result.output


def document(*args: object) -> Any:
    """What a command prints with --json."""
    return json.loads(CliRunner().invoke(app, [*map(str, args), "--json"]).stdout)
