"""Results of verify: named checks, each with its evidence, and what they prove together."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from csf_tool.checkpoint.hash_list import HashList
from csf_tool.checkpoint.problems import Problem, Severity
from csf_tool.codes import SUPERFLUOUS, Code
from csf_tool.disk.headers import SHARD_SUFFIX
from csf_tool.prove.next_steps import Download
from csf_tool.text import count, escape, some, verb

CheckName = Literal["structure", "streams", "decode", "stored", "source", "against"]

_SHOWN = 20
"""Number of uncovered files that the last line names."""


class Status(StrEnum):
    """The outcome of a check; the value is in JSON reports."""

    PASSED = "passed"
    FAILED = "failed"
    WARNING = "warning"
    SKIPPED = "skipped"


@dataclass
class Check:
    """One named check: the number of things checked, the evidence (`note`), and what it found."""

    name: CheckName
    checked: int = 0
    note: str = ""
    skipped: bool = False
    failures: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    @property
    def status(self) -> Status:
        """The outcome: failed if anything failed, skipped if there was nothing to check by."""
        if self.failures:
            return Status.FAILED
        if self.skipped:
            return Status.SKIPPED
        return Status.WARNING if self.warnings else Status.PASSED

    @property
    def holds(self) -> bool:
        """Whether the check was made and its statement is true."""
        return self.status in (Status.PASSED, Status.WARNING)

    def add(self, other: "Check") -> None:
        """Add the findings of another part of the same check."""
        self.checked += other.checked
        self.failures += other.failures
        self.warnings += other.warnings

    def skip(self, why: str) -> None:
        """Note that the check was not made, or not for everything."""
        self.skipped, self.note = True, why

    def fail(self, problem: str, code: Code, file: str = "", tensor: str = "") -> None:
        """Note a fault."""
        self.failures.append(Problem(problem, code, file, tensor))

    def warn(self, problem: str, code: Code, file: str = "", tensor: str = "") -> None:
        """Note a warning."""
        self.warnings.append(Problem(problem, code, file, tensor, Severity.WARNING))


@dataclass
class StoredCheck(Check):
    """The check of stored bytes by hashes of two kinds: published ones, and those of a list that the user gave.

    `published` and `listed` say how many files each kind covers, and where its hashes come from. `list_name` names the
    list if published hashes alone do not cover every shard, and `maker` who made it, according to the list.
    """

    published: str = ""
    listed: str = ""
    list_name: str = ""
    maker: str = ""

    @property
    def proved(self) -> str:
        """Statements that are proved, with their evidence, in words."""
        if not self.list_name:
            also = f", and {self.listed}" if self.listed else ""
            return f"the stored bytes are the published ones ({self.published}){also}"
        either = "as published or " if self.published else ""
        return f"the stored bytes are {either}as listed in {self.list_name} ({self.note})"

    @property
    def unproved(self) -> list[str]:
        """Statements that are not proved, and why."""
        why = "see the check stored"
        if self.holds:
            maker = f"; it says that {self.maker} made it" if self.maker else ""
            why = f"{self.list_name} is a list that you gave{maker}"
        elif self.skipped:
            why = self.note
        is_open = not self.holds or self.list_name
        return [f"that the stored bytes are the published ones ({why})"] if is_open else []


@dataclass
class Checks:
    """All checks, of a whole checkpoint or of one shard."""

    structure: Check = field(default_factory=lambda: Check("structure"))
    streams: Check = field(default_factory=lambda: Check("streams"))
    decode: Check = field(default_factory=lambda: Check("decode"))
    stored: StoredCheck = field(default_factory=lambda: StoredCheck("stored"))
    source: Check = field(default_factory=lambda: Check("source"))
    reference: Check = field(default_factory=lambda: Check("against"))

    @property
    def checks(self) -> list[Check]:
        """All checks in the order in which they are reported."""
        return [self.structure, self.streams, self.decode, self.stored, self.source, self.reference]

    @property
    def reports(self) -> int:
        """Number of faults and oddities that they found."""
        return sum(len(check.failures) + len(check.warnings) for check in self.checks)

    def add(self, others: "Checks") -> None:
        """Add the findings of another part of the same checks."""
        for mine, theirs in zip(self.checks, others.checks, strict=True):
            mine.add(theirs)


@dataclass(kw_only=True)
class Verified(Checks):
    """The report of `verify`."""

    path: str
    kind: str
    against: str | None
    device: str
    quick: bool = False
    shards: tuple[int, int] = (0, 0)
    """Numbers of shards checked and of all shards."""
    hashes: HashList | None = None
    """Hashes of all files, if asked for and nothing failed."""
    unfetched: int = 0
    """Tensors of both sides whose bytes were not compared, because they would have had to be fetched."""
    checked_files: list[str] = field(default_factory=list)
    """Shards, and files beside them, that something was compared with or decoded from."""
    uncovered: list[str] = field(default_factory=list)
    """Files beside the shards that a runtime may read, and that neither a hash nor the reference has proved right."""
    uncompared: list[str] = field(default_factory=list)
    """Files beside the shards that a runtime may read and that were not compared with the reference, hashed or not."""
    why_uncompared: str = ""
    not_mendable: set[Problem] = field(default_factory=set)
    """Failures that no download of the checkpoint mends: faults of the reference, and what it does not have."""
    is_remote: bool = False
    """Whether shards are on the Hub."""
    hub: str = ""
    """The repository whose hashes the user asked for."""
    download: Download | None = None
    """The way in which its files can be fetched again, where that is known."""

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not any(check.failures for check in self.checks)

    @property
    def findings(self) -> list[Problem]:
        """Everything that the checks found."""
        return [problem for check in self.checks for problem in (*check.failures, *check.warnings)]

    @property
    def verdict(self) -> str:
        """The verdict in a few words."""
        in_part = " IN PART" if self.uncovered else ""
        if failed := [check.name for check in self.checks if check.status is Status.FAILED]:
            head = f"FAILED: {', '.join(failed)}."
        elif self.quick:
            head = "NO FAULT FOUND in headers and sizes; no data was read."
        elif self.source.holds or self.reference.holds:
            head = f"VERIFIED{in_part}."
        elif self.stored.holds and self.stored.list_name:
            head = f"VERIFIED AS LISTED in {escape(self.stored.list_name)}{in_part}; not compared with the original."
        elif self.stored.holds:
            head = f"VERIFIED AS PUBLISHED{in_part}; not compared with the original."
        else:
            evidence = "too little" if self.stored.checked or self.source.checked else "nothing"
            why = "well-formed streams can be wrong" if self.decode.checked else "other bytes would also pass"
            head = f"NO FAULT FOUND, but {evidence} to compare with: {why}."
        checked, total = self.shards
        were = verb(checked, "was", "were")
        return f"{head} Only {checked} of {total} shards {were} looked at." if checked < total else head

    @property
    def is_proved(self) -> bool:
        """Whether the bytes are the original's, the published or the listed ones, all that was looked at."""
        return self.ok and not self.quick and (self.source.holds or self.reference.holds or self.stored.holds)

    @property
    def is_as_published(self) -> bool:
        """Whether every stored file is the published one."""
        return self.stored.holds and not self.stored.list_name

    @property
    def again(self) -> list[str]:
        """Files that failed and that another download may mend: none where they are the published ones, or not here."""
        if self.is_remote or self.is_as_published:
            return []
        failures = (problem for check in self.checks for problem in check.failures)
        mendable = (p for p in failures if p.code not in SUPERFLUOUS and p not in self.not_mendable)
        return sorted({problem.file for problem in mendable if problem.file})

    @property
    def more(self) -> list[str]:
        """The options, in words, with which more could be proved of a checkpoint without a fault."""
        if not self.ok:
            return []
        if self.quick:
            return ["the same without --quick"]
        checked, there = self.shards
        options = {
            "--against DENSE": not self.source.holds and not self.reference.holds,
            "--hub ORG/NAME": not self.is_as_published and not self.is_remote and not self.hub,
            "--all-tensors": bool(self.unfetched),
            "the same without --only": checked < there,
        }
        return [option for option, is_open in options.items() if is_open]

    @property
    def failed_files(self) -> list[str]:
        """Files in which something failed, to be downloaded or verified again."""
        return sorted({problem.file for check in self.checks for problem in check.failures if problem.file})

    @property
    def proved(self) -> list[str]:
        """Statements that are proved, with their evidence, in words."""
        statements = []
        if self.structure.holds and self.quick:
            statements.append("headers, names and sizes agree")
        if self.structure.holds and self.streams.holds and self.decode.holds and self.decode.checked:
            are = verb(self.decode.checked, "is", "are")
            statements.append(f"{count(self.decode.checked, 'plane')} {are} well-formed and can be decoded")
        if self.stored.holds:
            statements.append(self.stored.proved)
        if self.source.holds:
            statements.append(f"the decoded bytes are the original ones ({self.source.note})")
        if self.reference.holds:
            what = "every block scale" if self.unfetched else "every tensor"
            checked, there = self.shards
            if checked < there or any(name.endswith(SHARD_SUFFIX) for name in self.uncompared):
                what += " of the shards that were compared"
            statements.append(f"{what} equals {self.against}")
        return statements

    @property
    def unproved(self) -> list[str]:
        """Statements that were not proved, and why."""
        statements = self.stored.unproved
        if not self.source.holds and not self.reference.holds:
            why = "see the failures above" if self.source.failures or self.reference.failures else self.source.note
            what = "decoded bytes" if self.decode.checked else "bytes"
            statements.append(f"that the {what} are the original ones ({why})")
        if self.unfetched:
            equal = verb(self.unfetched, "equals", "equal")
            what = f"that {count(self.unfetched, 'other tensor')} {equal} {self.against}"
            statements.append(f"{what} (not fetched; --all-tensors fetches them)")
        if self.reference.holds and self.uncompared:
            why = f" ({self.why_uncompared})" if self.why_uncompared else ""
            equal = verb(len(self.uncompared), "equals", "equal")
            statements.append(f"that {some(self.uncompared, _SHOWN)} {equal} {self.against}{why}")
        elif self.uncovered and (self.source.holds or self.stored.holds):
            files = count(len(self.uncovered), "file")
            statements.append(f"the content of {files} beside the shards: {some(self.uncovered, _SHOWN)} (no hash)")
        return statements
