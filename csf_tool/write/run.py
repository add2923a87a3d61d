"""A run that writes: its options, its description, by which another one goes on from it, and its result."""

import re
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from csf_tool.checkpoint.layout import Cause
from csf_tool.codes import Code
from csf_tool.disk.own_files import DESCRIPTION, OWN_FOLDER
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.running.jobs import default_jobs
from csf_tool.version import __version__

if TYPE_CHECKING:
    from csf_tool.write.dry_run import DryRun


@dataclass(frozen=True)
class Share:
    """The share of the shards that a run writes: the `number`-th of `of`, counted from 1."""

    number: int = 1
    of: int = 1

    @classmethod
    def parse(cls, text: str | None) -> "Share":
        """The share that "3/8" names; all of it for None.

        Raises:
            UsageError: the text names no share.
        """
        if text is None:
            return cls()
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"--shards {text}: give I/N with I from 1 to N, for example 3/8")
        return cls(int(match[1]), int(match[2]))

    def takes(self, i: int) -> bool:
        """Whether the i-th shard, from 0, is in this share."""
        return i % self.of == self.number - 1


NOTHING = Share(0, 1)
"""The share without shards: only the files beside them are left to write."""


@dataclass(frozen=True)
class WriteOptions:
    """Options of how a run writes. With an `executor`, shards are jobs of a cluster."""

    jobs: int = field(default_factory=default_jobs)
    share: Share = Share()
    recheck: bool = False
    drop_cache: bool | None = None
    """Whether files are kept out of the page cache; None: large new ones are, and all when they would fill memory."""
    consume_source: bool = False
    ignore_space: bool = False
    adopt: bool = False
    link: bool = False
    executor: Executor | None = None
    dry_run: bool = False
    """Whether to say what would be done, and to write nothing."""

    @property
    def compares(self) -> bool:
        """Whether files that lie in the destination already are compared, and kept where they are right."""
        return self.adopt or self.recheck


MAY_DIFFER = ("label", "root")
"""Parts of a run's description that may differ in a run that continues it."""

SCHEMA = "csf-tool.journal/1"


@dataclass(frozen=True)
class Run:
    """The description of a run that fills a destination; only the same run can continue it.

    `source` is the fingerprint of the source. Its path, `root`, and its name, `label`, may change.
    """

    operation: str
    source: str
    options: dict[str, Any]
    label: str = ""
    root: str = ""

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> "Run":
        """The run that a journal or a note describes.

        Raises:
            CheckpointError: `found` describes no run.
        """
        try:
            options = dict(found["options"])
            return cls(str(found["operation"]), str(found["source"]), options, *(str(found[k]) for k in MAY_DIFFER))
        except (ValueError, TypeError, LookupError) as error:
            problem = "does not say which run it belongs to"
            raise CheckpointError(problem, Code.DAMAGED_JOURNAL, f"{OWN_FOLDER}/{DESCRIPTION}") from error

    def is_same(self, other: "Run") -> bool:
        """Whether two runs write the same files."""
        return (self.operation, self.source, self.options) == (other.operation, other.source, other.options)

    def is_such(self, operation: str, options: Mapping[str, Any]) -> bool:
        """Whether it does the same with the same options, whatever the source; a layout that is None is any."""
        chosen = {"layout": self.options.get("layout")} if options.get("layout", "") is None else {}
        return (self.operation, self.options) == (operation, {**options, **chosen})

    def describe(self) -> dict[str, Any]:
        """The description in a journal or a note."""
        return {"schema": SCHEMA, "tool": f"csf-tool {__version__}", **asdict(self)}


@dataclass(kw_only=True)
class Written:
    """The result of a run, or of an earlier one that had finished it.

    `missing` are shards that other shares of the work have still to write; without any, the checkpoint is complete.
    `proved_shards` have the SHA-256 that was known beforehand. `bytes_written` are this run's own.
    """

    source: str
    destination: str
    shards: list[str] = field(default_factory=list)
    resumed_shards: list[str] = field(default_factory=list)
    adopted_files: list[str] = field(default_factory=list)
    proved_shards: list[str] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    removed_sources: list[str] = field(default_factory=list)
    other_files: list[str] = field(default_factory=list)
    left_out: dict[Cause, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    was_complete: bool = False
    """Whether an earlier run had written the whole result: this one has done nothing."""
    dry_run: "DryRun | None" = None
    """Forecast of the run, where there was to be no more than that."""
    bytes_written: int = 0
    seconds: float = 0.0

    @property
    def new_shards(self) -> list[str]:
        """The shards that were not there before this run."""
        there = {*self.resumed_shards, *self.adopted_files}
        return [name for name in self.shards if name not in there]
