"""The content of a safetensors header: tensors, and its faults."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

from csf_tool.codes import Code

METADATA_KEY = "__metadata__"

MAX_NAME_LENGTH = 4096
"""Longest name of a tensor, in characters. Names are taken apart and looked up part by part."""


class Tensor(NamedTuple):
    """One tensor of a shard: where its bytes lie, counted from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of data."""
        return self.end - self.begin


_tensor_of = partial(tuple.__new__, Tensor)
"""`Tensor._make` without a step in Python: half a million are made at once."""


@dataclass(frozen=True, slots=True)
class HeaderFault:
    """A fault of a header; `tensor` is empty when no single tensor is to blame.

    With `hides_data` the tensor's bytes overlap another's, or lie past the end of the file: they must not be read.
    """

    problem: str
    code: Code
    tensor: str = ""
    hides_data: bool = False


@dataclass(frozen=True)
class Header:
    """A parsed header: the tensors in the order of their data, a column for each of their fields, and its faults.

    Tensors whose entry makes no sense are in `faults` and not in the columns; tensors that overlap, or end past
    the end of the file, are in both.
    """

    data_start: int
    metadata: dict[str, str]
    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    begins: list[int]
    ends: list[int]
    faults: list[HeaderFault]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Tensor]:
        return map(_tensor_of, zip(self.names, self.dtypes, self.shapes, self.begins, self.ends, strict=True))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return dict(zip(self.names, self, strict=True))

    @cached_property
    def unreadable(self) -> set[str]:
        """Tensors whose bytes must not be read. All others together have at most as many bytes as the file."""
        return {fault.tensor for fault in self.faults if fault.hides_data}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(self.ends) - sum(self.begins)
