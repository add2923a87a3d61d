"""Options that several commands share: the fields of a dataclass, spread over a command's own signature."""

from dataclasses import dataclass
from inspect import signature
from typing import Annotated

import typer
from typer.testing import CliRunner

from csf_tool.cli.spread import spread

_seen: list[object] = []


@dataclass(frozen=True)
class _Shared:
    colour: Annotated[str, typer.Option(help="A colour.")] = "red"
    depth: Annotated[int, typer.Option("--depth", "-d")] = 1


@spread
def _paint(
    thing: Annotated[str, typer.Argument()],
    *,
    must: Annotated[str, typer.Option()],
    shared: _Shared,
    last: bool = False,
) -> int:
    _seen.append((thing, must, shared, last))
    return 0


def test_fields_become_options_and_come_as_one_object() -> None:
    assert list(signature(_paint).parameters) == ["thing", "must", "colour", "depth", "last"]
    app = typer.Typer()
    app.command()(_paint)
    _seen.clear()
    assert CliRunner().invoke(app, ["door", "--must", "x", "-d", "3"]).exit_code == 0
    assert CliRunner().invoke(app, ["door", "--must", "x", "--colour", "blue", "--last"]).exit_code == 0
    assert _seen == [("door", "x", _Shared("red", 3), False), ("door", "x", _Shared("blue", 1), True)]
    assert CliRunner().invoke(app, ["door"]).exit_code == 2
    assert CliRunner().invoke(app, ["door", "--must", "x", "--depth", "y"]).exit_code == 2
