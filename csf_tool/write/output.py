"""Outputs of operations: shards, the files beside them, and the documents that state what was written.

`expand`, `compress` and `convert` each make an `Output`; `csf_tool.write.engine` writes it.
"""

import unicodedata
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.layout import Cause
from csf_tool.checkpoint.logical import Range
from csf_tool.checkpoint.plane_tables import DensePlane, Plane
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.checkpoint.stored import Shard
from csf_tool.checkpoint.streams import Readers
from csf_tool.progress import OnBytes
from csf_tool.write.journal import Record

UNKNOWN_HASH = "0" * 64
"""Placeholder of a hash in documents that are only measured."""

Part = Range | Plane | DensePlane
"""Bytes of a stored shard as they are, or a plane whose bytes a renderer makes: decoded, or encoded."""


@dataclass(frozen=True)
class OutputShard:
    """A shard to write: its complete header, and what its data are made of, in order.

    `sha256` is the hash that the whole file must have, where it is known beforehand. One that is a `copy_of` a stored
    shard, header and all, may be a hard link to it.
    """

    name: str
    header: bytes
    parts: tuple[Part, ...]
    size: int
    sources: tuple[Shard, ...]
    sha256: str | None = None
    copy_of: Shard | None = None

    @property
    def can_be_linked(self) -> bool:
        """Whether it is a copy of a file that is here."""
        return self.copy_of is not None and not self.copy_of.remote


class Rendering(ABC):
    """The bytes of one shard to write. Iterate over it once, to the end, before its methods are called.

    One that copies ranges does not see all bytes of its source, and has neither receipt nor proof.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[memoryview | Range]:
        """The shard's bytes in order, its header first; a stored range may stand for its bytes."""

    def source_sha256(self) -> str | None:
        """The hash of the shard's one source, if every byte of it has passed."""
        return None

    def receipt(self, sha256: str | None) -> SideFile | None:  # noqa: ARG002 (others use it)
        """The file that goes with the shard, whose own hash is given; None where there is none."""
        return None

    def prove(self, path: Path, readers: Readers, on_bytes: OnBytes) -> None:  # noqa: B027 (most have nothing to prove)
        """Check the complete file at `path`, which does not have its own name yet, and which `readers` may read.

        Raises:
            CheckpointError: the source cannot be rebuilt from it.
        """


class Renderer(ABC):
    """Maker of the bytes of shards. It can be pickled, for it is sent to the workers of a cluster."""

    @property
    def passes_source(self) -> bool:
        """Whether its renderings give `Rendering.source_sha256`."""
        return False

    def expect(self, shards: Sequence[OutputShard], jobs: int) -> None:  # noqa: B027 (most need not know)
        """Prepare to render these shards, so many at a time."""

    @abstractmethod
    def render(self, shard: OutputShard, readers: Readers) -> Rendering:
        """The bytes of a shard, whose sources `readers` reads."""

    def foreseen_receipt(self, shard: OutputShard) -> SideFile | None:  # noqa: ARG002 (others use it)
        """The file that `Rendering.receipt` will give, with other hashes; None where there will be none."""
        return None


@dataclass(frozen=True)
class Output:
    """Everything that a run is to write.

    `documents` are made last, of the records of all shards and the folder that they are in; `documents_bytes` is about
    what they take. `facts` is what all of this needs to know of source shards that `--consume-source` has removed by
    the time a run is started again.
    """

    operation: str
    shards: list[OutputShard]
    side_files: list[SideFile]
    renderer: Renderer
    documents: Callable[[Mapping[str, Record], Path], Sequence[SideFile]] = lambda *_: ()
    foreseen_documents: Callable[[Mapping[str, Record]], Sequence[SideFile]] = lambda _: ()
    """Documents of the same sizes, before there are files whose hashes they could state."""
    documents_bytes: int = 0
    document_names: frozenset[str] = frozenset()
    wants_hashes: bool = False
    """Whether the documents state the shards' own hashes."""
    proof_bytes: int = 0
    """Bytes that `Rendering.prove` reads, of all shards together."""
    facts: dict[str, Any] = field(default_factory=dict)
    left_out: Mapping[Cause, list[str]] = field(default_factory=dict)
    """Files of the source that are not carried over, by the cause."""

    def alike_but_for_case(self) -> list[str]:
        """Warnings of files that would be lost on file systems which ignore case, or how an accent is written."""
        alike: defaultdict[str, set[str]] = defaultdict(set)
        for name in [*(shard.name for shard in self.shards), *(file.target for file in self.side_files)]:
            alike[unicodedata.normalize("NFC", name).casefold()].add(name)
        lost = "a file system that ignores case would lose one of them"
        groups = (sorted(group) for group in alike.values() if len(group) > 1)
        return [f"{' and '.join(group)}: these names differ only in case; {lost}" for group in groups]
