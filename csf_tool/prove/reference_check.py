"""The check `against` a reference, for everything but the bytes of tensors: names, dtypes, shapes, and other files."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import LogicalTensor
from csf_tool.checkpoint.problems import Problem, errors
from csf_tool.codec.formats import CsfFormat
from csf_tool.codes import Code
from csf_tool.disk.reader import is_file
from csf_tool.progress import OnBytes
from csf_tool.prove.compare import mismatch
from csf_tool.prove.coverage import Coverage
from csf_tool.prove.options import VerifyOptions
from csf_tool.prove.side_comparison import compare_side_files
from csf_tool.prove.verdict import Check, Verified
from csf_tool.text import count


@dataclass(frozen=True)
class ReferenceCheck:
    """The comparison of a checkpoint with a reference, whose findings go to `result`.

    `names` are the shards that were chosen.
    """

    result: Verified
    checkpoint: Checkpoint
    reference: Checkpoint
    coverage: Coverage
    options: VerifyOptions
    names: set[str]

    def conclude(self, uncompared: int, on_bytes: OnBytes) -> set[str]:
        """Compare everything but the bytes of tensors, report the reference's own faults, and conclude.

        `uncompared` is the number of tensors whose bytes could not be compared. Returns the files beside the shards
        that were compared.
        """
        check, label = self.result.reference, self.reference.label
        theirs = [
            replace(problem, problem=f"in the reference: {problem.problem}")
            for problem in errors(self.reference.problems)
        ]
        check.failures += theirs
        self.result.not_mendable.update(theirs)
        self._compare_names()
        if not self.options.tensors_only:
            check.failures += other_frameworks(self.checkpoint, self.reference)
        files, compared = (0, set[str]()) if self.options.only else self._compare_files(on_bytes)
        others = f", and {count(files, 'file')} beside the shards" if files else ""
        check.note = f"bytes of every tensor of {label}{others}"
        if self.coverage.scales_only:
            self._compare_shapes()
            check.note = (
                f"bytes of the block scales of {label}{others}; names, dtypes and shapes of "
                f"{count(self.result.unfetched, 'other tensor')} (--all-tensors fetches their bytes)"
            )
        check.failures.sort(key=lambda problem: (problem.file, problem.tensor))
        if uncompared:
            check.skip(f"{check.note}, except {count(uncompared, 'tensor')} that cannot be read or decoded")
        return compared

    def _compare_names(self) -> None:
        """Report tensors that only one side has."""
        check, ours, theirs = self.result.reference, self.coverage.ours, self.coverage.theirs
        for name in ours.keys() - theirs.keys():
            if (where := ours[name].stored_in) in self.names:
                check.fail("the reference does not have it", Code.REFERENCE_NAMES, where, name)
                self.result.not_mendable.add(check.failures[-1])
        for name in theirs.keys() - ours.keys() if not self.options.only else ():
            text = f"missing; the reference has it in {theirs[name].stored_in}"
            check.fail(text, Code.REFERENCE_NAMES, tensor=name)

    def _compare_files(self, on_bytes: OnBytes) -> tuple[int, set[str]]:
        """Compare the files beside the shards; returns their number without the index, and their paths."""
        beside = compare_side_files(self.checkpoint, self.reference, on_bytes, shards_only=self.options.tensors_only)
        self.result.reference.failures += beside.problems
        names = [problem for problem in beside.problems if problem.code is Code.REFERENCE_NAMES]
        self.result.not_mendable.update(p for p in names if is_file(self.checkpoint.root / p.file))
        self.result.not_mendable.update(beside.of_reference)
        return beside.files, beside.compared

    def _compare_shapes(self) -> None:
        """Compare shapes and dtypes of the tensors that were not fetched."""
        check, formats = self.result.reference, scale_formats(self.checkpoint, self.reference)
        for name in self.coverage.unread:
            ours, theirs = self.coverage.ours[name], self.coverage.theirs[name]
            if problem := mismatch(ours, theirs):
                check.fail(problem, Code.REFERENCE_DIFFERS, ours.stored_in, name)
            else:
                check_dtype(check, ours, theirs, formats)


def scale_formats(*sides: Checkpoint) -> dict[str, CsfFormat]:
    """The format of every block scale of the sides, stored dense or not."""
    tables = [table for side in sides for table in (side.dense_table, side.plane_table)]
    return {
        name: table.kinds[kind].fmt for table in tables for name, kind in zip(table.names, table.kind_of, strict=True)
    }


def check_dtype(check: Check, ours: LogicalTensor, theirs: LogicalTensor, formats: Mapping[str, CsfFormat]) -> None:
    """Report that a tensor has another dtype than the reference's.

    It is a fault except for block scales in dtypes of their format.
    """
    if ours.dtype != theirs.dtype:
        text = f"dtype is {ours.dtype}, but the reference has {theirs.dtype}"
        fmt = formats.get(ours.name)
        interchangeable = fmt is not None and {ours.dtype, theirs.dtype} <= set(fmt.dense_dtypes)
        note = check.warn if interchangeable else check.fail
        note(text, Code.REFERENCE_DIFFERS, ours.stored_in, ours.name)


def other_frameworks(checkpoint: Checkpoint, reference: Checkpoint) -> list[Problem]:
    """Shards whose headers state another framework than the reference's: readers refuse unknown frameworks."""
    theirs = {shard.header.metadata.get("format", "") for shard in reference.shards} - {""}
    others = "/".join(sorted(theirs))
    return [
        Problem(
            f"its header has format {stated!r}, but the reference has {others!r}", Code.REFERENCE_DIFFERS, shard.name
        )
        for shard in checkpoint.shards
        if theirs and (stated := shard.header.metadata.get("format")) and stated not in theirs
    ]
