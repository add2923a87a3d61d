"""Everything that the commands that write have in common: their options, and the run that these ask for."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from csf_tool.cli.command import open_argument, say
from csf_tool.cli.options import AllShardsOption, JobsOption, cache_option
from csf_tool.errors import UsageError

if TYPE_CHECKING:
    from csf_tool.checkpoint.model import Checkpoint
    from csf_tool.checkpoint.published import StatedOrigin
    from csf_tool.coders.decoder import Decoder
    from csf_tool.coders.encoder import Encoder
    from csf_tool.progress import Progress
    from csf_tool.write.run import WriteOptions


@dataclass(frozen=True)
class Writing:
    """A run that is about to write: its opened source, and where and how."""

    source: "Checkpoint"
    destination: Path
    options: "WriteOptions"
    progress: "Progress"
    cluster: str | None

    def decoder(self, device: str, tell: Callable[[str], None] = say) -> "Decoder":
        """The decoder for `--device`: here, or of the cluster's workers."""
        from csf_tool.coders.decoder import make_decoder
        from csf_tool.running.cluster import RemoteDecoder

        return RemoteDecoder(device) if self.cluster else make_decoder(device, tell=tell)

    def encoder(self, device: str) -> "Encoder":
        """The encoder for `--device`: here, or of the cluster's workers."""
        from csf_tool.coders.encoder import make_encoder
        from csf_tool.running.cluster import RemoteEncoder

        return RemoteEncoder(device) if self.cluster else make_encoder(device, say)


@dataclass(frozen=True, kw_only=True)
class WritingOptions:
    """Options of every command that writes."""

    jobs: JobsOption = None
    shards: Annotated[
        str | None, typer.Option("--shards", metavar="I/N", help="Do the I-th of N parts of the shards by itself.")
    ] = None
    recheck: Annotated[
        bool, typer.Option("--recheck", help="Read shards that an interrupted run finished, and compare them.")
    ] = False
    drop_cache: Annotated[
        bool | None, cache_option("large new files out; all of them when they are larger than half of memory")
    ] = None
    ignore_space: Annotated[
        bool, typer.Option("--ignore-space", help="Begin even where the disk reports too little room.")
    ] = False
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Compare files that others put into DEST, and keep what is right.")
    ] = False
    consume_source: Annotated[
        bool,
        typer.Option("--consume-source", help="REMOVE each source shard once its replacement is written and proven."),
    ] = False
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before --consume-source.")] = False
    cluster: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Run the shards on a Dask cluster.")
    ] = None
    all_shards: AllShardsOption = False

    def was_complete(self, argument: str, destination: Path) -> bool:
        """Whether a run with `--consume-source` had only its last source shards to remove, which are gone now."""
        from csf_tool.report.console import print_err
        from csf_tool.write.consume import finish_removal

        if not (self.consume_source and finish_removal(Path(argument), destination)):
            return False
        print_err(f"{destination} is complete already, and the shards of {argument} are gone")
        return True

    @contextmanager
    def opened(self, argument: str, destination: Path, *, link: bool = False) -> Iterator[Writing]:
        """Open the source, ask for consent where it is needed, and yield the run."""
        from csf_tool.checkpoint.problems import excused, warnings
        from csf_tool.report.console import print_problems
        from csf_tool.report.progress import progress_bar
        from csf_tool.running.cluster import cluster_executor
        from csf_tool.running.jobs import default_jobs
        from csf_tool.write.evidence import evidence_warnings
        from csf_tool.write.run import Share, WriteOptions

        is_here = Path(argument).exists()
        argument = str(Path(argument).absolute()) if self.cluster and is_here else argument
        opened = open_argument(argument, all_shards=self.all_shards)
        if self.cluster and opened.is_remote:
            raise UsageError(f"{opened.label}: workers of a cluster read files: fetch it first with `hf download`")
        # Other errors are raised by the operation, or excused by it.
        print_problems(warnings(opened.problems) + excused(opened.problems) + evidence_warnings(opened))
        if self.consume_source:
            self._ask_for_consent(opened)
        with cluster_executor(self.cluster) as executor, progress_bar() as progress:
            options = WriteOptions(
                jobs=self.jobs or default_jobs(),
                share=Share.parse(self.shards),
                recheck=self.recheck,
                drop_cache=self.drop_cache,
                consume_source=self.consume_source,
                ignore_space=self.ignore_space,
                adopt=self.adopt,
                link=link,
                executor=executor,
            )
            there = destination.absolute() if self.cluster else destination
            yield Writing(opened, there, options, progress, self.cluster)

    def _ask_for_consent(self, source: "Checkpoint") -> None:
        """Ask before shards are removed, and go on only after a yes; without a terminal, refuse."""
        if self.shards or self.cluster:
            problem = "--consume-source removes what other parts may need: run it without --shards and --cluster"
            raise UsageError(problem)
        if self.yes:
            return
        question = f"Every shard of {source.label} will be removed once its replacement is proven. Go on?"
        if not sys.stdin.isatty():
            raise UsageError(f"{question} Nobody can answer here: --yes says so beforehand")
        if not typer.confirm(question, err=True):
            raise UsageError("nothing was done")


@dataclass(frozen=True, kw_only=True)
class OriginOptions:
    """What a container that is written states of its source."""

    family: Annotated[str | None, typer.Option(help="Container: the model family to state.")] = None
    source_model_id: Annotated[str | None, typer.Option(help="Container: the source repository to state.")] = None
    source_revision: Annotated[str | None, typer.Option(help="Container: the source revision to state.")] = None

    def stated(self) -> "StatedOrigin":
        """The origin to write into the container's documents."""
        from csf_tool.checkpoint.published import StatedOrigin

        return StatedOrigin(self.family, self.source_model_id, self.source_revision)
