"""Everything that the commands that write have in common: their options, and the run that these ask for."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from csf_tool.cli.command import detail, note, open_argument, show
from csf_tool.cli.help import FILES, SPEED
from csf_tool.cli.options import AllShardsOption, JobsOption, cache_option
from csf_tool.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from csf_tool.checkpoint.checkpoint import Checkpoint
    from csf_tool.checkpoint.published import StatedOrigin
    from csf_tool.progress import Progress
    from csf_tool.write.compress import Compressed
    from csf_tool.write.convert import Converted
    from csf_tool.write.expand import Expanded
    from csf_tool.write.request import WriteRequest
    from csf_tool.write.run import WriteOptions, Written

R = TypeVar("R", "Expanded", "Compressed", "Converted")

CONTAINER = "In a container's documents"
"""The title of the options about where a container says that it is from."""


@dataclass(frozen=True)
class Writing:
    """A run that is about to write: its opened source, and where and how."""

    source: "Checkpoint"
    destination: Path
    options: "WriteOptions"
    progress: "Progress"
    request: "WriteRequest"

    def list_files(self, done: "Written") -> None:
        """Say what became of each shard, if `--verbose` asks for it."""
        for name in done.shards:
            was_there = name in done.resumed_shards or name in done.adopted_files
            detail(f"{name}: {'linked' if name in done.linked else 'was there' if was_there else 'written'}")
        for name in done.missing:
            detail(f"{name}: not written yet")


@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """Options of every command that writes."""

    jobs: JobsOption = None
    drop_cache: Annotated[bool | None, cache_option("by size")] = None
    shards: Annotated[
        str | None,
        typer.Option("--shards", metavar="I/N", rich_help_panel=SPEED, help="Do only part I of N, for example 3/8."),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            rich_help_panel=SPEED,
            help="Work on a Dask cluster, at tcp://HOST:PORT.",
        ),
    ] = None
    recheck: Annotated[
        bool,
        typer.Option("--recheck", rich_help_panel=FILES, help="Compare the shards that an interrupted run finished."),
    ] = False
    adopt: Annotated[
        bool,
        typer.Option("--adopt", rich_help_panel=FILES, help="Keep correct files that are already in DEST."),
    ] = False
    ignore_space: Annotated[
        bool,
        typer.Option("--ignore-space", rich_help_panel=FILES, help="Start even if there is not enough disk space."),
    ] = False
    consume_source: Annotated[
        bool,
        typer.Option(
            "--consume-source", rich_help_panel=FILES, help="REMOVE each source shard after its copy is proved."
        ),
    ] = False
    yes: Annotated[
        bool, typer.Option("--yes", "-y", rich_help_panel=FILES, help="Do not ask before --consume-source.")
    ] = False
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", "-n", rich_help_panel=FILES, help="Print what would be done, and write nothing."),
    ] = False
    all_shards: AllShardsOption = False

    @property
    def request(self) -> "WriteRequest":
        """The request that these options make; consent and how the result is shown are the command's own."""
        from csf_tool.write.request import WriteRequest

        return WriteRequest(**{field.name: getattr(self, field.name) for field in fields(WriteRequest)})

    def show(
        self,
        done: R,
        document: Callable[[R], Mapping[str, object]],
        report: Callable[[R], list["RenderableType"]],
        as_json: bool,
    ) -> None:
        """Print the result of a run, or what it would do."""
        from csf_tool.documents.dry_run import dry_run_document
        from csf_tool.report.dry_run import dry_run_report

        if self.dry_run:
            show(done, dry_run_document, dry_run_report, as_json)
        else:
            show(done, document, report, as_json)

    def consumed(
        self, argument: str, destination: Path, operation: str, options: "Mapping[str, Any] | None" = None
    ) -> "Written | None":
        """See `WriteRequest.consumed`."""
        done = self.request.consumed(Path(argument), destination, operation, options)
        if done and not self.dry_run:
            note(f"{destination} is already complete, and the shards of {argument} are gone")
        return done

    @contextmanager
    def opened(self, argument: str, destination: Path, *, link: bool = False) -> Iterator[Writing]:
        """Open the source, ask for consent where it is needed, and yield the run."""
        from csf_tool.checkpoint.problems import excused, warnings
        from csf_tool.report.problems import print_problems
        from csf_tool.report.progress import progress_bar
        from csf_tool.write.evidence import evidence_warnings

        request = self.request
        request.require_sense()
        if self.cluster and Path(argument).exists():
            argument = str(request.place(Path(argument)))
        opened = open_argument(argument, all_shards=self.all_shards)
        # Other errors are raised by the operation, or excused by it.
        print_problems(warnings(opened.problems) + excused(opened.problems) + evidence_warnings(opened))
        if self.consume_source:
            self._ask_for_consent(opened)
        with request.options(opened, link=link) as options, progress_bar() as progress:
            yield Writing(opened, request.place(destination), options, progress, request)

    def _ask_for_consent(self, source: "Checkpoint") -> None:
        """Ask before shards are removed, and go on only after a yes; without a terminal, refuse."""
        if self.yes or self.dry_run:
            return
        question = f"Every shard of {source.label} will be removed after its replacement is proved. Go on?"
        if not sys.stdin.isatty():
            raise UsageError(f"{question} Cannot ask without a terminal: add --yes to confirm")
        try:
            agreed = typer.confirm(question, err=True)
        except typer.Abort:  # the end of the input
            agreed = False
        if not agreed:
            raise UsageError("nothing was done")


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """Options about the source that a container is said to be made of."""

    family: Annotated[
        str | None, typer.Option(metavar="NAME", rich_help_panel=CONTAINER, help="Model family to record.")
    ] = None
    source_model_id: Annotated[
        str | None,
        typer.Option(metavar="REPO", rich_help_panel=CONTAINER, help="Source repository to record."),
    ] = None
    source_revision: Annotated[
        str | None,
        typer.Option(metavar="REV", rich_help_panel=CONTAINER, help="Source revision to record."),
    ] = None

    def stated(self, to: str | None, checkpoint_root: str | None = None) -> "StatedOrigin":
        """The origin to write into the documents of a container.

        Raises:
            UsageError: the layout to write is another one, which has no such documents.
        """
        from csf_tool.checkpoint.published import StatedOrigin
        from csf_tool.write.targets import require_that_options_fit

        origin = StatedOrigin(self.family, self.source_model_id, self.source_revision)
        require_that_options_fit(to, origin, checkpoint_root)
        return origin
