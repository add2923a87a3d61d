"""Help pages: plain text in two columns, options in groups, examples that can be pasted.

They go by what every version of typer keeps of a parameter, and not by typer's own pages, which leave 21 of 80 columns
to the text, and cut the names of options at 60.
"""

import inspect
import shutil
import textwrap
from collections.abc import Mapping
from enum import Enum
from typing import Any, get_args

WHAT, SPEED, FILES, OUTPUT = "What", "Speed", "Source and destination", "Output"
"""Titles that groups of options have in several commands."""

_LAST = (SPEED, FILES, OUTPUT)
"""The groups that come last, in this order."""

WIDEST = 100
"""The most columns that are used: longer lines are hard to read."""

_NAMES = 22
"""The most columns for the names of options: a longer name has its text below it."""

Groups = Mapping[str, list[tuple[str, str]]]
"""Names and texts, by the title that they stand under."""


def command_page(command: Any, path: str) -> str:
    """The page of one command, which is called as `path`."""
    summary, details, examples = parts_of(command.help)
    prose = [summary, *([details] if details else []), f"Usage: {usage(command, path)}"]
    shown = "Examples:\n" + "\n".join(f"  {example}" for example in examples)
    return "\n\n".join([*map(_wrapped, prose), shown, *_columns(groups_of(command))])


def overview(group: Any, path: str) -> str:
    """The page of all commands."""
    commands: dict[str, list[tuple[str, str]]] = {}
    for name, command in group.commands.items():
        commands.setdefault(command.rich_help_panel, []).append((name, command.short_help))
    how = f"Usage: {path} COMMAND ...\n       {path} help COMMAND"
    options = {"Options": groups_of(group)[OUTPUT]}
    return "\n\n".join([_wrapped(group.help), how, *_columns(commands), *_columns(options), _wrapped(group.epilog)])


def parts_of(text: str) -> tuple[str, str, list[str]]:
    """A command's docstring as its summary, further sentences, and examples."""
    prose, _, examples = text.partition("\nExamples:\n")
    summary, _, details = prose.strip().partition("\n\n")
    return summary, details.strip(), [line.strip() for line in examples.splitlines() if line.strip()]


def usage(command: Any, path: str) -> str:
    """The form in which a command is called, with the options that it must have."""
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and param.required]
    names = [name_of(param) if param.required else f"[{name_of(param)}]" for param in arguments]
    return " ".join([path, *names, *map(name_of, options), "[OPTIONS]"])


def groups_of(command: Any) -> Groups:
    """The arguments and options of a command, and at last the help itself."""
    found: dict[str, list[tuple[str, str]]] = {"Arguments": []}
    known = declared(command)
    for param in command.params:
        title = "Arguments" if param.param_type_name == "argument" else param.rich_help_panel or OUTPUT
        found.setdefault(title, []).append((name_of(param), _text(param, known.get(param.name))))
    found.setdefault(OUTPUT, []).append(("-h, --help", "Show this help."))
    return {title: found[title] for title in sorted(found, key=_rank) if found[title]}


def _rank(title: str) -> int:
    return _LAST.index(title) if title in _LAST else -1


def name_of(param: Any) -> str:
    """A parameter as it is typed: `DEST`, `-j, --jobs N`."""
    if param.param_type_name == "argument":
        return f"{param.metavar}{'...' if param.nargs < 0 else ''}"
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=lambda name: name.startswith("--")))
    return names if param.is_flag else f"{names} {param.metavar}"


def declared(command: Any) -> dict[str, tuple[Any, Any]]:
    """The type and the declaration of each parameter of a command, by name."""
    parameters = inspect.signature(command.callback, eval_str=True).parameters
    return {name: get_args(parameter.annotation) for name, parameter in parameters.items()}


def _text(param: Any, known: tuple[Any, Any] | None) -> str:
    """The text of a parameter, with its default in brackets."""
    default = param.default.value if isinstance(param.default, Enum) else param.default
    if isinstance(param.show_default, str):
        default = param.show_default
    elif not param.show_default or isinstance(default, bool) or not isinstance(default, int | str):
        default = None
    text = param.help or (known[1].help if known else "")  # typer 0.19 loses that of arguments
    return text if default is None else f"{text} [default: {default}]"


def _width() -> int:
    return max(40, min(WIDEST, shutil.get_terminal_size().columns))


def _wrapped(text: str, indent: int = 0, width: int = 0) -> str:
    """Text in lines of the terminal's width, names in one piece."""
    blank = " " * indent
    return textwrap.fill(
        text,
        width or _width(),
        initial_indent=blank,
        subsequent_indent=blank,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns(groups: Groups) -> list[str]:
    """Groups of rows, their texts below each other."""
    widths = [len(name) for rows in groups.values() for name, _ in rows]
    at = 4 + max(width for width in widths if width <= _NAMES)
    shown = []
    for title, rows in groups.items():
        lines = [f"{title}:"]
        for name, text in rows:
            wrapped = _wrapped(text, at)
            head = f"  {name}"
            lines += [head + wrapped[len(head) :]] if len(head) + 2 <= at else [head, wrapped]
        shown.append("\n".join(lines))
    return shown
