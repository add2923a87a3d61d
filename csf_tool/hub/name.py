"""Names of checkpoints as arguments: a path here, or a repository on the Hub."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.reader import exists, is_folder
from csf_tool.errors import CsfToolError, EnvironmentFault, UsageError

if TYPE_CHECKING:  # huggingface_hub takes a while to import: only a name on the Hub needs it
    from csf_tool.hub.repo import HubRepo

SCHEME = "hf://"

_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[^@\s]+))?", re.ASCII)
_FILES = (SHARD_SUFFIX, ".json")


@dataclass(frozen=True)
class HubName:
    """A repository on the Hub as a user names it: `org/name`, and a branch, tag or commit of it."""

    repo_id: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """The repository that `org/name`, `org/name@revision` or either with `hf://` before it names.

        Raises:
            UsageError: the text is none of these.
        """
        match = _NAME.fullmatch(text.removeprefix(SCHEME))
        if not match:
            raise UsageError(f"{text}: is no repository on the Hub: give org/name, or org/name@revision")
        return cls(match["repo"], match["revision"])


def find_source(argument: str, tell: Callable[[str], None]) -> "Path | HubRepo":
    """The path, or the repository on the Hub, that an argument names; `tell` is told where it could be either.

    Raises:
        UsageError: there is nothing of that name, here or on the Hub.
        EnvironmentFault: the Hub cannot be asked, or refuses.
    """
    path = Path(argument)
    if not argument.startswith(SCHEME):
        could_be_hub = _NAME.fullmatch(argument) and not argument.endswith(_FILES)
        if not could_be_hub or exists(path):
            if could_be_hub and is_folder(path):
                tell(f"{argument}: the folder here is meant; {SCHEME}{argument} means the repository on the Hub")
            return path
    try:
        repo = open_on_hub(argument)
    except CsfToolError as error:
        if argument.startswith(SCHEME):
            raise
        problem = f"{error.problem} (nothing here is called {argument}, so the Hub was asked)"
        raise type(error)(problem, error.code, error.file, error.tensor) from error
    if not repo.files:
        tell(f"{repo}: its shards are all in the cache, so the Hub is not asked, nor for files that it lacks")
    return repo


def open_on_hub(argument: str) -> "HubRepo":
    """The repository on the Hub of that name; see `open_repo`."""
    with _loading():
        from csf_tool.hub.repo import open_repo
    return open_repo(HubName.parse(argument))


def list_on_hub(argument: str) -> "HubRepo":
    """The same with its listing, whatever the cache holds; see `list_repo`."""
    with _loading():
        from csf_tool.hub.repo import list_repo
    return list_repo(HubName.parse(argument))


@contextmanager
def _loading() -> Iterator[None]:
    """Load huggingface_hub, which reads its settings meanwhile.

    Raises:
        EnvironmentFault: one of them makes no sense to it.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    except Exception as error:
        problem = f"huggingface_hub cannot be loaded: {error}: check the environment's variables that begin with HF_"
        raise EnvironmentFault(problem) from error
