"""Parsing what was typed: mistakes in one line of our own words, before typer finds them, and pages of our own."""

import difflib
import os
import re
import sys
from collections.abc import Iterable
from enum import Enum
from typing import Any, get_args

import typer
import typer.core

from csf_tool.cli import help as pages
from csf_tool.cli.command import print_error, say
from csf_tool.cli.home import home_expanded
from csf_tool.cli.other_names import command_for, option_for
from csf_tool.errors import UsageError
from csf_tool.text import some

_ParserError: Any = typer.BadParameter.__mro__[2]
"""The base of all errors of the parser, which has no public name in newer versions of typer."""


class Command(typer.core.TyperCommand):
    """A command whose mistaken arguments are explained in one line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed; see typer.

        Raises:
            UsageError: it cannot be right.
        """
        if not ctx.resilient_parsing:  # which is completion, whose words may be empty or half
            _check(self, ctx, args)
            args = home_expanded(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page of this command; see typer."""
        formatter.write(pages.command_page(self, ctx.command_path))


class Commands(typer.core.TyperGroup):
    """All commands together, with `help COMMAND`."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command that was typed, and end the process unless `standalone_mode` is false; see typer."""
        if not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        given = args[0] if args else extra.get("args")
        typed = sys.argv[1:] if given is None else given
        try:
            code = super().main(*args, **extra | {"standalone_mode": False})
        except UsageError as error:
            code = _refuse(error, typed)
        except _ParserError as error:
            code = _refuse(UsageError(error.format_message()), typed)
        sys.exit(code)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse what was typed; see typer.

        Raises:
            UsageError: it cannot be right.
        """
        if not ctx.resilient_parsing:
            args = [*args[1:], "--help"] if args[:1] == ["help"] else args
            given, command = _parse(self, ctx, args)
            if not command and not any(isinstance(value, bool | str) for value in given.values()):
                typer.echo(ctx.get_help(), err=True)
                raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that is named; see typer.

        Raises:
            UsageError: there is none of this name.
        """
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise UsageError(f"{args[0]}: no such command{self._hint(args[0])}")
        return super().resolve_command(ctx, args)

    def _hint(self, typed: str) -> str:
        """The end of a message about a command that there is not."""
        if meant := command_for(typed):
            return f"; did you mean csf-tool {meant}?"
        if "/" in typed or os.path.lexists(typed):
            return f": the command comes first, as in csf-tool stats {typed}"
        return _near(typed.lower(), self.commands, "(csf-tool --help lists all)")

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page of all commands; see typer."""
        formatter.write(pages.overview(self, ctx.command_path))


def _refuse(error: UsageError, typed: Iterable[str]) -> int:
    """Say what is wrong with what was typed, and with `--json` in a document; the exit code."""
    say(str(error))
    if "--json" in typed:
        print_error(error)
    return error.exit_code


def _parse(command: Any, ctx: Any, args: list[str]) -> tuple[dict[str, Any], list[str]]:
    """The text that was typed for each parameter, and what is left over."""
    try:
        given, extra, _ = command.make_parser(ctx).parse_args(args=list(args))
    except _ParserError as error:
        raise UsageError(_option_mistake(command, error)) from error
    return given, extra


def _option_mistake(command: Any, error: Any) -> str:
    """The mistake in the option that the parser stopped at."""
    options = {
        name: p for p in command.params if p.param_type_name == "option" for name in (*p.opts, *p.secondary_opts)
    }
    name = getattr(error, "option_name", None)
    if name is None:
        return str(error.format_message())
    if name not in options:
        return f"{name}: {command.name} has no such option{_near_option(command, name, {*options, '--help'})}"
    return f"{name}: takes no value" if options[name].is_flag else f"{name}: needs a value ({options[name].metavar})"


def _near_option(command: Any, name: str, options: set[str]) -> str:
    """A suggestion for an option that a command does not have."""
    for inner in getattr(command, "commands", {}).values():
        if any(name in param.opts for param in inner.params):
            return f": give it after a command, as in csf-tool {inner.name} ... {name}"
    arguments = {param.metavar for param in command.params if param.param_type_name == "argument"}
    if said := option_for(name, options, {"CHECKPOINT" if each == "SRC" else each for each in arguments}):
        return said
    by_letters = {option.strip("-"): option for option in sorted(options)}  # two dashes in common are no likeness
    found = difflib.get_close_matches(name.strip("-"), by_letters, n=1)
    return f"; did you mean {by_letters[found[0]]}?" if found else ""


def _check(command: Any, ctx: Any, args: list[str]) -> None:
    """Refuse arguments that typer would refuse, and empty ones: `"$UNSET"` is not the working folder."""
    given, extra = _parse(command, ctx, args)
    if given.get(command.get_help_option(ctx).name):
        return
    for param in command.params:
        found = given.get(param.name)
        for value in found if isinstance(found, list | tuple) else [found]:
            if isinstance(value, str):
                _check_value(command, param, value)
    arguments = [p.metavar for p in command.params if p.param_type_name == "argument"]
    if extra:
        takes = _listed(arguments, "and") if arguments else "none"
        raise UsageError(f"{some(extra, 1)}: one argument too many: {command.name} takes {takes}")
    if missing := [p for p in command.params if p.required and not _is_given(given.get(p.name))]:
        names = _listed([pages.name_of(p).removesuffix("...") for p in missing], "and")
        raise UsageError(f"{command.name} needs {names}: {pages.usage(command, ctx.command_path)}")


def _is_given(value: object) -> bool:
    """Whether the parser found an argument: what stands for one that is missing differs from version to version."""
    return isinstance(value, str | list | tuple) and bool(value)


def _check_value(command: Any, param: Any, value: str) -> None:
    """Refuse a value that is empty, no number where one is asked for, or none of those to choose from."""
    shown = param.metavar if param.param_type_name == "argument" else max(param.opts, key=len)
    if not value.strip():
        raise UsageError(f"{shown}: is empty (a variable that is not set?)")
    annotation, declared = pages.declared(command)[param.name]
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    if int in kinds and not (re.fullmatch(r"\d{1,9}", value, re.ASCII) and int(value) >= declared.min):
        raise UsageError(f"{shown} {value}: give a whole number, {declared.min} or more")
    for kind in kinds:
        choices = [choice.value for choice in kind] if issubclass(kind, Enum) else [value]
        if value not in choices:
            raise UsageError(f"{shown} {value}: give {_listed(choices, 'or')}{_near(value.lower(), choices)}")


def _listed(words: list[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _near(typed: str, known: Iterable[str], otherwise: str = "") -> str:
    """A suggestion, where something known is near to what was typed."""
    found = difflib.get_close_matches(typed, list(known), n=1)
    return f"; did you mean {found[0]}?" if found else f" {otherwise}".rstrip()
