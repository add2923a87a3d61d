"""`~` in arguments: shells leave it as it is in quotes and after `=`, and a folder of that name is never meant."""

import re
from collections.abc import Iterable
from pathlib import Path

from csf_tool.errors import UsageError

_WORD = re.compile(r"(?P<option>--[\w-]+=|-\w)?(?P<path>~.*)", re.DOTALL)


def home_expanded(args: Iterable[str]) -> list[str]:
    """The words of a command line with `~` and `~user` at the beginning of a path replaced, as a shell does it.

    Raises:
        UsageError: there is no such user, and no such path here.
    """
    return [_expanded(match["option"] or "", match["path"]) if (match := _WORD.fullmatch(a)) else a for a in args]


def _expanded(option: str, path: str) -> str:
    """A word whose value begins with `~`; names that only begin so, as backups do, stay as they are."""
    given = Path(path)
    try:
        return f"{option}{given.expanduser()}"
    except RuntimeError as error:
        if (len(given.parts) > 1 or path == "~") and not given.exists():
            problem = (
                f"{path}: the home folder of {given.parts[0]} is unknown; for a path in this folder, give ./{path}"
            )
            raise UsageError(problem) from error
        return option + path
