"""Amount of what a command says beside its result: `-q` and `-v`."""

from enum import Enum, auto


class Volume(Enum):
    """The amounts to choose from."""

    QUIET = auto()
    """No notes and no progress; errors and warnings all the same."""
    USUAL = auto()
    VERBOSE = auto()
    """Details as well: a line for each checked file, say."""


_chosen = [Volume.USUAL]


def set_volume(volume: Volume) -> None:
    """Choose how much this process says."""
    _chosen[0] = volume


def is_quiet() -> bool:
    """Whether notes and progress are unwanted."""
    return _chosen[0] is Volume.QUIET


def is_verbose() -> bool:
    """Whether details are wanted."""
    return _chosen[0] is Volume.VERBOSE
