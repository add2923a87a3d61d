"""Layouts as targets: everything that differs between layouts when `compress` and `convert` write one.

The places of files are the `Layout`'s own, as when a checkpoint is read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from csf_tool.checkpoint.container import (
    CONTRACT,
    MANIFEST,
    METADATA,
    VERIFICATION,
    Origin,
    ShardRow,
    receipt_name,
    render_contract,
    render_manifest,
    verification,
)
from csf_tool.checkpoint.container_layout import Container
from csf_tool.checkpoint.layout import HuggingFace, Layout
from csf_tool.checkpoint.published import StatedOrigin
from csf_tool.checkpoint.side_files import SideFile
from csf_tool.checkpoint.stored import Shard
from csf_tool.choices import Target
from csf_tool.codec.formats import CsfFormat, titles
from csf_tool.disk.hashing import sha256_of
from csf_tool.disk.json_files import load_json, render_json
from csf_tool.errors import UsageError
from csf_tool.write.journal import Record
from csf_tool.write.output import UNKNOWN_HASH, Output

_RECORD_BYTES = 1024
"""Room that a plane takes in receipt and contract, for the check of space: names and hashes, generously."""


@dataclass(frozen=True)
class Statement:
    """Facts about the whole source for the documents, shards included that are removed when a run goes on.

    `shards` are their file names; `names`, the shard of every dense tensor; `scales`, the dense and the stored bytes of
    every plane. `source_index` is the side file that is the source's own index; `note`, what is not known.
    """

    fmt: CsfFormat
    origin: Origin
    shards: list[str]
    names: dict[str, str]
    scales: list[tuple[int, int]]
    source_index: str | None = None
    note: str | None = None


RecordOf = Callable[[str, Mapping[str, Record]], Record]
"""The record of a shard by its name, among those of this run and of earlier ones."""


def require_that_options_fit(to: str | None, origin: StatedOrigin, checkpoint_root: str | None = None) -> None:
    """Refuse what the layout to write, if it was chosen, has no place for.

    Raises:
        UsageError: there is such an option.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in vars(origin).items() if value is not None]
    if given and to not in (None, Target.CONTAINER):
        raise UsageError(f"{' and '.join(given)}: only a container records this, but --to {to} does not write one")
    if checkpoint_root and to != Target.SERVING:
        raise UsageError(f"--checkpoint-root: is for --to serving, not for --to {to}")


class TargetLayout:
    """A layout that is written, as an ordinary Hugging Face folder is."""

    layout: type[Layout] = HuggingFace
    gives_receipts = False
    """Whether `compress` writes down what the originals were, and proves it by rebuilding them."""

    def refusal(self, formats: Sequence[CsfFormat], shards: Sequence[Shard]) -> str:  # noqa: ARG002 (others use them)
        """Why shards with planes of these formats cannot be written in it; empty where they can."""
        if len(formats) > 1:
            return ""  # no other layout holds them: see `unread`
        return self.unread(formats)

    def unread(self, formats: Sequence[CsfFormat]) -> str:
        """The formats that it can hold, and that none of its readers knows; empty where there are none."""
        unknown = titles(fmt for fmt in formats if not fmt.has_hf_readers)
        return f"no reader can find {unknown} CSF in the {self.layout.words}" if unknown else ""

    def placed(self, files: Sequence[SideFile]) -> list[SideFile]:
        """The model's own files at their places in the layout."""
        return list(files)

    def compressed(self, output: Output, statement: Callable[[], Statement]) -> Output:  # noqa: ARG002
        """The output of `compress` with the layout's documents."""
        return output

    def converted(self, output: Output, statement: Callable[[], Statement], record_of: RecordOf) -> Output:  # noqa: ARG002
        """The output of `convert` with the layout's documents."""
        return output


class ContainerTarget(TargetLayout):
    """A container: its documents are written last, and the manifest as the last of them says that all is there."""

    layout = Container
    gives_receipts = True

    def refusal(self, formats: Sequence[CsfFormat], shards: Sequence[Shard]) -> str:
        """See `TargetLayout.refusal`."""
        if len(formats) > 1:
            return f"a container has one codec, but these scales are {titles(formats)}"
        nested = [shard.name for shard in shards if "/" in shard.name]
        return f"shard {nested[0]} is in a folder; a container's shards are not" if nested else ""

    def unread(self, formats: Sequence[CsfFormat]) -> str:  # noqa: ARG002
        """See `TargetLayout.unread`; a container has readers for all."""
        return ""

    def placed(self, files: Sequence[SideFile]) -> list[SideFile]:
        """See `TargetLayout.placed`."""
        return [replace(file, folder=METADATA) for file in files]

    def compressed(self, output: Output, statement: Callable[[], Statement]) -> Output:
        """See `TargetLayout.compressed`; the rows of the shards are read from their receipts."""
        stated = statement()
        receipts = list(map(receipt_name, stated.shards))

        def rows(_: Mapping[str, Record], folder: Path) -> list[ShardRow]:
            return [ShardRow.parse(load_json(folder / name, name), name) for name in receipts]

        def foreseen(_: Mapping[str, Record]) -> list[ShardRow]:
            """The rows of shards that are still to write; other runs may have removed the sources of the rest."""
            return [
                ShardRow(source.name, shard.size, UNKNOWN_HASH, source.size, UNKNOWN_HASH)
                for shard in output.shards
                for source in shard.sources
            ]

        return replace(
            _with_documents(output, stated, rows, foreseen, is_proved=True),
            documents_bytes=sum(2 * len(shard.header) for shard in output.shards) + _RECORD_BYTES * len(stated.scales),
            document_names=self.layout.own_files.union(receipts),
            proof_bytes=sum(source.size for shard in output.shards for source in shard.sources),
        )

    def converted(self, output: Output, statement: Callable[[], Statement], record_of: RecordOf) -> Output:
        """See `TargetLayout.converted`; the originals are unknown, so there are no receipts."""
        stated = statement()

        def rows(records: Mapping[str, Record], _: Path) -> list[ShardRow]:
            found = {file: record_of(self.layout.stored_name(file), records) for file in stated.shards}
            return [ShardRow(file, record.size, record.sha256) for file, record in found.items()]

        return _with_documents(output, stated, rows, lambda records: rows(records, Path()))


TARGETS: dict[str, TargetLayout] = {target.layout.name: target for target in (TargetLayout(), ContainerTarget())}
"""Targets by the names that options give them."""


def target_for(formats: Sequence[CsfFormat]) -> TargetLayout:
    """The layout that holds planes of all these formats, and for which readers exist."""
    return next(target for target in TARGETS.values() if not target.refusal(formats, ()))


def _with_documents(
    output: Output,
    stated: Statement,
    rows: Callable[[Mapping[str, Record], Path], list[ShardRow]],
    foreseen: Callable[[Mapping[str, Record]], list[ShardRow]],
    *,
    is_proved: bool = False,
) -> Output:
    """The output of a container with its documents; `is_proved` says that every original shard is rebuilt."""

    def documents(records: Mapping[str, Record], folder: Path) -> list[SideFile]:
        hashes = {file.name: sha256_of(folder / file.target, file.target) for file in output.side_files}
        return render(rows(records, folder), hashes)

    def render(shards: list[ShardRow], hashes: dict[str, str]) -> list[SideFile]:
        index_sha256 = hashes[stated.source_index] if stated.source_index else None
        contract = render_contract(stated.fmt, stated.origin, len(stated.scales), index_sha256, stated.names)
        record = verification(stated.fmt, len(shards), len(stated.scales))
        manifest = render_manifest(stated.fmt, stated.origin, shards, hashes, index_sha256, stated.scales, stated.note)
        named = [(CONTRACT, contract), *([(VERIFICATION, record)] if is_proved else []), (MANIFEST, manifest)]
        return [SideFile.new(name, render_json(document)) for name, document in named]

    return replace(
        output,
        documents=documents,
        foreseen_documents=lambda records: render(
            foreseen(records), {file.name: UNKNOWN_HASH for file in output.side_files}
        ),
        documents_bytes=_RECORD_BYTES * len(stated.scales),
        document_names=Container.own_files,
        wants_hashes=True,
    )
