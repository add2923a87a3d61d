"""Names of the tensors around a plane: streams and scales, scales and weights, projections, layers.

Suffix tables of four families of repositories; nothing here knows a model.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from csf_tool.codec.formats import FORMATS, CsfFormat

PACKED = ".weight_packed"
"""Ending of the names of FP4 weights of compressed-tensors."""

WEIGHTS_OF_SCALE = {
    ".weight_scale": (PACKED, ".weight"),  # compressed-tensors; ModelOpt and Kimi
    ".scale": (".weight",),  # DeepSeek
}
"""Endings of block scales' names, each with those that their weights' may have instead, the likelier first."""

GLOBAL_SCALES = (".weight_scale_2", ".weight_global_scale")
"""Endings of the names of scales of block scales: ModelOpt's, and that of compressed-tensors."""

INPUT_SCALES = (".input_scale", ".input_global_scale")
"""Endings of the names of scales of activations: ModelOpt's, and that of compressed-tensors."""

SCALE_SUFFIXES = tuple(WEIGHTS_OF_SCALE)
"""Suffixes of the names that block scales have."""


STREAM_MARK = "_csf_"
"""Part of every stream's name and of hardly any other: a quick test before the thorough one."""


PREDECESSOR_STREAMS = {"x4t_fixed", "x4t_exceptions"}
"""Last parts of the names of streams of x4t, the predecessor of CSF."""


class StreamName(NamedTuple):
    """A stream's name taken apart."""

    scale: str
    fmt: CsfFormat
    is_fixed: bool


_STREAM_SUFFIXES = {
    suffix: (fmt, is_fixed)
    for fmt in FORMATS
    for suffix, is_fixed in ((fmt.fixed_suffix, True), (fmt.exceptions_suffix, False))
}

_STREAM_SUFFIX = re.compile(r"\.[a-z0-9]+_csf_(fixed|exceptions)")

_LAYER = re.compile(r"(?:.*?\.)?\d+(?=\.)")


def parse_stream_name(name: str) -> StreamName | None:
    """The scale, format and role of a stream, or None for any other tensor."""
    if STREAM_MARK not in name:
        return None
    scale, dot, last = name.rpartition(".")
    found = _STREAM_SUFFIXES.get(dot + last)
    return StreamName(scale, *found) if found else None


def dense_name(name: str) -> str:
    """The name of a tensor in the dense checkpoint: streams and the scale that they stand for are one tensor."""
    stream = parse_stream_name(name)
    return stream.scale if stream else name


def is_stream_suffix(suffix: str) -> bool:
    """Whether a name with this suffix is that of a stream, of a known format or an unknown one."""
    return bool(_STREAM_SUFFIX.fullmatch(suffix))


def weight_names(scale: str) -> list[str]:
    """The names that the weight of a block scale may have, most likely first; empty for other tensors."""
    stem, dot, last = scale.rpartition(".")
    return [stem + weight for weight in WEIGHTS_OF_SCALE.get(dot + last, ())]


def module_of(scale: str) -> str:
    """The module that holds a scale: its name without the last part."""
    return scale.rpartition(".")[0]


_NUMBER = re.compile(r"(?:(?<=[._-])|^)\d+(?=[._-]|$)")


class Patterns:
    """Modules' names without their numbers: what each has in common with its siblings in other layers and experts.

    There are few modules around modules, and fewer last parts: each is looked at once.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, module: str) -> str:
        """The pattern of a module."""
        around, dot, last = module.rpartition(".")
        for part in (around, last):
            if part not in self._known:
                self._known[part] = _NUMBER.sub("*", part)
        return self._known[around] + dot + self._known[last]


class Role(StrEnum):
    """The role of a projection in a gated feed-forward block."""

    GATE = "gate"
    UP = "up"
    DOWN = "down"


_ROLES = {
    "gate_proj": Role.GATE, "up_proj": Role.UP, "down_proj": Role.DOWN,
    "w1": Role.GATE, "w3": Role.UP, "w2": Role.DOWN,
    "gate": Role.GATE, "up": Role.UP, "down": Role.DOWN,
}  # fmt: skip
"""Names of projections, as Hugging Face models and as those descended from Llama's own code have them."""


def role_of(projection: str) -> Role | None:
    """The role of a projection, or None where its name does not say."""
    return _ROLES.get(projection)


def layer_of(name: str) -> str:
    """The layer of a tensor: its name up to the first number (`model.layers.3`), or up to its module without one."""
    match = _LAYER.match(name)
    return match[0] if match else module_of(name)


def layers_of(names: Iterable[str]) -> Iterator[str]:
    """`layer_of` each name.

    Neighbours mostly share their layer, which their beginnings tell at once: 0.006 s instead of 0.040 for 73,728 names.
    """
    layer, beginning = "", ""
    for name in names:
        if not beginning or not name.startswith(beginning):
            layer = layer_of(name)
            # Any name with this beginning has this layer, unless a later number could be the first that counts.
            beginning = f"{layer}." if "." in layer and _LAYER.match(name) else ""
        yield layer


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sort key that puts `layers.10` after `layers.9`. Numbers may be too long for an int."""
    return [_part_key(part) for part in re.split(r"([0-9]+)", name)]


def _part_key(part: str) -> tuple[int, int, str]:
    if not part.isdecimal():
        return 1, 0, part
    digits = part.lstrip("0")
    return 0, len(digits), digits
