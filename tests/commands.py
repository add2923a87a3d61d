"""Commands as a user runs them, in this process, and what they say."""

from typer.testing import CliRunner, Result

from csf_tool.cli import app


def run(*args: object) -> Result:
    """A command, decoding on the CPU."""
    words = [str(arg) for arg in args]
    device = ["--device", "cpu"] if words[0] in ("verify", "expand", "compress") and "--quick" not in words else []
    result = CliRunner().invoke(app, [*words, *device])
    assert "Traceback" not in result.output
    return result


def says(result: Result, *texts: str) -> bool:
    """Whether a command's output has all of these, however a terminal would wrap it."""
    missing = [text for text in texts if text not in result.output]
    assert not missing, result.output
    return True
