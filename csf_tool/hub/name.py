"""Names of checkpoints as arguments: a path here, or a repository on the Hub."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.disk.near_paths import nearest_path
from csf_tool.disk.reader import exists
from csf_tool.errors import CsfToolError, EnvironmentFault, UsageError
from csf_tool.hub.pages import is_address, is_path_of_page, repository_of

if TYPE_CHECKING:  # huggingface_hub takes a while to import: only a name on the Hub needs it
    from csf_tool.hub.repo import HubRepo

SCHEME = "hf://"

_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[^@\s]+))?", re.ASCII)
_HOW_TO_NAME = "give org/name, or org/name@revision"
_FILES = (SHARD_SUFFIX, ".json")
_SCHEME_AS_TYPED = re.compile(r"hf:/*(?=\w)", re.IGNORECASE)
_ADDRESS = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+):/+(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
"""An address of any kind; one letter before the colon is a drive of Windows."""
_WITHOUT_REVISION = re.compile(r"\w[\w.-]*/\w[\w.-]*@", re.ASCII)


@dataclass(frozen=True)
class HubName:
    """A repository on the Hub as a user names it: `org/name`, and a branch, tag or commit of it."""

    repo_id: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """The repository that `org/name`, `org/name@revision`, one of them after `hf://`, or a page's address names.

        Raises:
            UsageError: the text is none of these.
        """
        name = _without_scheme(text.strip()).removesuffix("/")
        match = _NAME.fullmatch(repository_of(name) if is_address(name) or is_path_of_page(name) else name)
        if not match:
            raise UsageError(f"{text}: is not the name of a repository on the Hub: {_HOW_TO_NAME}")
        return cls(match["repo"], match["revision"])


def _without_scheme(name: str) -> str:
    """A name without the Hub's scheme, however that was typed: `hf://`, `HF://`, `hf:`."""
    match = _SCHEME_AS_TYPED.match(name)
    return name[match.end() :] if match else name


def find_source(argument: str, tell: Callable[[str], None]) -> "Path | HubRepo":
    """The path, or the repository on the Hub, that an argument names; `tell` is told before the Hub is asked for one.

    Raises:
        UsageError: there is nothing of that name, here or on the Hub.
        EnvironmentFault: the Hub cannot be asked, or refuses.
    """
    path, name = Path(argument), argument.strip()
    if exists(path) and not name.startswith(SCHEME):
        return path
    name = name if _without_scheme(name) == name else SCHEME + _without_scheme(name)
    _require_reachable(name)
    if not _may_be_on_hub(name):
        _refuse_file_on_hub(name)
        return path if name == argument or not exists(Path(name)) else Path(name)
    is_surely = name.startswith(SCHEME) or is_address(name)
    if not is_surely and (near := nearest_path(path)) and len(near.parts) == len(path.parts) and "@" not in name:
        problem = f"no such file or folder; did you mean {near}? ({SCHEME}{name} asks the Hub)"
        raise UsageError(problem, file=name)
    try:
        repo = open_on_hub(name, (lambda: None) if is_surely else (lambda: tell(f"asking the Hub for {name}")))
    except CsfToolError as error:
        if is_surely:
            raise
        problem = f"{error.problem} (there is no local {name}, so csf-tool asked the Hub)"
        raise type(error)(problem, error.code, error.file, error.tensor) from error
    if not repo.files:
        tell(
            f"{repo}: all of its shards are in the cache, so csf-tool does not ask the Hub, not even for missing files"
        )
    return repo


def _require_reachable(name: str) -> None:
    """Refuse addresses of other kinds than the Hub's, and a name that lacks the revision it promises.

    Raises:
        UsageError: it is one of these.
    """
    if _WITHOUT_REVISION.fullmatch(name.removeprefix(SCHEME)):
        raise UsageError(f"{name}: names no revision after the @ (a variable that is not set?): {_HOW_TO_NAME}")
    match = _ADDRESS.fullmatch(name)
    if not match or name.startswith(SCHEME) or is_address(name):
        return
    if match["scheme"].lower() == "file":
        raise UsageError(f"{name}: give the path itself: /{match['rest']}")
    problem = f"{match['scheme']}: is not an address that csf-tool reads: give a path here, or org/name on the Hub"
    raise UsageError(problem, file=name)


def _refuse_file_on_hub(name: str) -> None:
    """Say how a repository is named to who names a file of one, if no folder here can have been meant.

    Raises:
        UsageError: such a name was given.
    """
    repository, _, file = name.rpartition("/")
    if file.endswith(_FILES) and _NAME.fullmatch(repository) and not exists(Path(repository).parent):
        raise UsageError(f"no such file or folder; of a repository on the Hub give {repository}", file=name)


def _may_be_on_hub(name: str) -> bool:
    """Whether a name that is nothing here may be one on the Hub."""
    if name.startswith(SCHEME) or is_address(name) or is_path_of_page(name):
        return True
    return bool(_NAME.fullmatch(name)) and not name.endswith(_FILES)


def open_on_hub(argument: str, before_asking: Callable[[], None]) -> "HubRepo":
    """The repository on the Hub of that name; see `open_repo`."""
    with _loading():
        from csf_tool.hub.repo import open_repo
    return open_repo(HubName.parse(argument), before_asking)


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
