"""verify: decodes a checkpoint as decompress does but writes nothing, and reports what this proves about the bytes.

`stored` states that the files are the published ones, `source` that they decode to the original. Either can hold
alone. Bytes are compared, never floats.
"""

from collections.abc import Callable
from dataclasses import replace

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import LogicalShard, logical_tensors, original_shard, own_shards, require_new
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.problems import errors, warnings
from csf_tool.checkpoint.published import hash_list, published_hashes
from csf_tool.codec.formats import CsfFormat
from csf_tool.coders.decoder import Decoder, NumpyDecoder
from csf_tool.codes import Code
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.reader import is_file
from csf_tool.errors import CheckpointError
from csf_tool.progress import Amount, Progress, SharedProgress
from csf_tool.prove.beside import FETCHED_SUFFIXES, is_far, unclaimed_files
from csf_tool.prove.compare import mismatch
from csf_tool.prove.next_steps import known_download
from csf_tool.prove.options import VerifyOptions, chosen_shards, require_another, require_same_origin
from csf_tool.prove.shard_check import Scope, ShardCheck, ShardFindings, check_dtype
from csf_tool.prove.side_check import check_side_files, compare_formats, compare_side_files
from csf_tool.prove.stored_check import check_stored
from csf_tool.prove.verdict import Verified
from csf_tool.running.forked import Work, may_fork, run_forked
from csf_tool.running.jobs import run_with_progress
from csf_tool.text import count


def verify(
    checkpoint: Checkpoint,
    against: Checkpoint | None,
    decoder: Decoder,
    progress: Progress,
    options: VerifyOptions | None = None,
) -> Verified:
    """Check everything that can be checked of `checkpoint`. No fault in one tensor stops the rest.

    `against` is a reference whose dense tensors must be the same, byte for byte.

    Raises:
        UsageError: no shard has a name that fits `only`, `listed` is of another checkpoint, or `against` is the
            checkpoint itself.
        EnvironmentFault: the system cannot read.
    """
    return _Verification(checkpoint, against, decoder, progress, options or VerifyOptions()).run()


class _Verification:
    """One run of `verify`: the checkpoint, the reference, and the results so far."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        against: Checkpoint | None,
        decoder: Decoder,
        progress: Progress,
        options: VerifyOptions,
    ) -> None:
        self._checkpoint = checkpoint
        self._against = against
        self._decoder = decoder
        self._progress = SharedProgress(progress)
        self._cancel = CancelToken(*(side.stop_fetching for side in (checkpoint, against) if side))
        self._options = options
        self._shards = chosen_shards(checkpoint, options.only)
        self._names = {shard.name for shard in self._shards}
        if options.listed:
            require_same_origin(checkpoint, options.listed)
        if against:
            require_another(checkpoint, against)
        self._tensors = logical_tensors(checkpoint)
        self._theirs = logical_tensors(against) if against else {}
        self._fetched = self._names_fetched()
        for side in filter(None, (checkpoint, against)):
            side.fetch_side_files(FETCHED_SUFFIXES)
        self._receipts = checkpoint.layout.scale_receipts
        self._hashed_planes = 0
        self._rebuilt_shards = 0
        self._uncompared = 0
        self._stored_digests: dict[str, str] = {}
        self._vouched: set[str] = set()
        self._compared: set[str] = set()
        self._unclaimed = [] if options.quick else unclaimed_files(checkpoint)
        self.result = Verified(
            path=checkpoint.label,
            kind=checkpoint.kind,
            against=against.label if against else None,
            unfetched=0 if self._fetched is None else len(self._tensors.keys() & self._theirs.keys() - self._fetched),
            device=decoder.device,
            quick=options.quick,
            is_remote=checkpoint.is_remote,
            hub=options.hub,
            download=known_download(checkpoint, options.hub),
            shards=(len(self._shards), len(checkpoint.shards)),
        )

    def run(self) -> Verified:
        """Make all checks."""
        self._check_structure()
        if self._options.quick:
            self._check_sizes()
            return self.result
        shards = self._logical_shards()
        published = self._published_hashes()
        self._progress.start("verify", Amount(self._bytes_to_read(shards, published), len(shards)))
        self._check_shards(shards, published)
        self._check_stored(published)
        self._conclude_source()
        self._conclude_reference()
        self._note_planes()
        self._note_uncovered()
        self.result.checked_files = sorted(self._names | self._vouched | self._compared)
        if self._options.save_hashes and self.result.ok:
            self.result.hashes = hash_list(self._checkpoint, self._options.save_hashes, self._stored_digests)
        return self.result

    def _names_fetched(self) -> set[str] | None:
        """Tensors whose bytes are read: all (None), or only the scales where the others would have to be fetched."""
        checkpoint, against = self._checkpoint, self._against
        if self._options.all_tensors or not (checkpoint.is_remote or (against and against.is_remote)):
            return None
        names = {plane.name for plane in checkpoint.planes}
        if against:
            names |= {plane.name for plane in against.planes}
            names |= {plane.name for side in (checkpoint, against) for plane in side.dense_planes}
        return names

    def _check_structure(self) -> None:
        check = self.result.structure
        problems = self._checkpoint.problems + check_side_files(self._checkpoint)
        check.failures, check.warnings = errors(problems), warnings(problems)
        check.checked = sum(len(shard.header) for shard in self._checkpoint.shards)
        check.note = f"headers, sizes, pairs, geometry and names of {count(len(self._checkpoint.shards), 'shard')}"

    def _check_sizes(self) -> None:
        """Compare only presence and sizes of files with the list."""
        for check in (self.result.streams, self.result.decode, self.result.source, self.result.reference):
            check.skip("not checked: --quick reads no data")
        check, listed = self.result.stored, self._options.listed
        check.skip("--quick reads no data")
        if listed is None:
            return
        for file in listed.names:
            path = self._checkpoint.root / file
            if is_far(self._checkpoint, file):
                continue
            if not is_file(path):
                check.fail(f"is missing, but {listed.name} lists it", Code.MISSING_FILE, file)
            elif (found := path.stat().st_size) != (stated := listed.sizes.get(file, found)):
                check.fail(f"is {found} bytes long, but {listed.name} has {stated}", Code.SIZE_DIFFERS, file)
        check.failures += errors(listed.faults)
        check.warnings += warnings(listed.faults)
        check.checked = len(listed.names)
        bare = check.checked - len(listed.sizes)
        what = f"sizes of {count(len(listed.sizes), 'file')}" if listed.sizes else ""
        if bare:
            without = f"presence of {count(bare, 'file')} without a size"
            what = f"{what}, and {without}" if what else without
        check.note = f"{what}, compared with {listed.name}; --quick reads no data"

    def _published_hashes(self) -> list[PublishedHash]:
        """The hashes to compare with: all known ones, or those of the chosen shards."""
        listed = self._options.listed
        found = published_hashes(self._checkpoint)
        found += listed.hashes() if listed else []
        found += [entry for entry in self._options.published if is_file(self._checkpoint.root / entry.file)]
        return [entry for entry in found if not self._options.only or entry.file in self._names]

    def _logical_shards(self) -> list[LogicalShard]:
        """The shards to check: originals where receipts describe them, then the tensors that no receipt describes."""
        if self._fetched is not None and self._checkpoint.is_remote:
            scales = [tensor for name, tensor in self._tensors.items() if name in self._fetched]
            return [shard for shard in own_shards(self._checkpoint, scales).values() if shard.tensors]
        receipts = self._checkpoint.layout.receipts
        shards: list[LogicalShard] = []
        taken: set[str] = set()
        for shard in self._shards:
            try:
                if shard.file in receipts:
                    original = original_shard(receipts[shard.file], self._tensors)
                    require_new(original, taken)
                    shards.append(original)
            except CheckpointError as error:
                self.result.source.fail(f"cannot be rebuilt: {error}", error.code, shard.name)
        left = [t for name, t in self._tensors.items() if name not in taken and t.stored_in in self._names]
        return shards + [shard for shard in own_shards(self._checkpoint, left).values() if shard.tensors]

    def _bytes_to_read(self, shards: list[LogicalShard], published: list[PublishedHash]) -> int:
        hashed = {entry.file for entry in published} | (self._names if self._options.save_hashes else set())
        beside = self._unclaimed if self._against and not self._options.only else ()
        sizes = (path.stat().st_size for path in map(self._checkpoint.root.joinpath, beside) if is_file(path))
        return sum(sizes) + sum(
            tensor.nbytes
            for shard in shards
            for tensor in shard.tensors
            if self._against or shard.sha256 or tensor.stored_in in hashed or isinstance(tensor.source, Plane)
        )

    def _check_shards(self, shards: list[LogicalShard], published: list[PublishedHash]) -> None:
        """Check every shard as a job of its own, and add up the results in the order of the shards."""
        hashed = {entry.file for entry in published if entry.algorithm == "sha256"}
        hashed |= self._names if self._options.save_hashes else set()
        fetched = self._theirs.keys() if self._fetched is None else self._fetched
        theirs = {name: tensor for name, tensor in self._theirs.items() if name in fetched}
        formats = self._scale_formats()
        scope = Scope(theirs, self._receipts, hashed, formats, self._decoder, self._options.drop_cache)
        # By number: the tensors that a damaged receipt left out form a second shard of its name.
        found: dict[int, ShardFindings] = {}

        def done(i: int, findings: ShardFindings) -> None:
            found[i] = findings
            self._progress.shard_done()

        self._run_jobs(len(shards), lambda i, on_bytes: ShardCheck(shards[i], scope, on_bytes).run(), done)
        for i in range(len(shards)):
            self._add(found[i])

    def _run_jobs(self, tasks: int, work: Work[ShardFindings], done: Callable[[int, ShardFindings], None]) -> None:
        """Run `work` on the numbers of all tasks: in forked workers where they can do it, in threads if not."""
        jobs = min(self._options.jobs, tasks)
        is_here = not any(side.is_remote for side in (self._checkpoint, self._against) if side)
        if jobs > 1 and is_here and isinstance(self._decoder, NumpyDecoder) and may_fork(jobs):
            run_forked(tasks, work, done, jobs, self._progress.advance)
            return
        run_with_progress(range(tasks), work, done, jobs, self._cancel, self._progress)

    def _add(self, findings: ShardFindings) -> None:
        for mine, theirs in zip(self.result.checks, findings.checks, strict=True):
            mine.add(theirs)
        self._hashed_planes += findings.hashed_planes
        self._rebuilt_shards += findings.is_rebuilt
        self._uncompared += findings.uncompared
        self._stored_digests |= findings.stored_digest

    def _note_planes(self) -> None:
        self.result.streams.note = "bases, positions, padding; zero planes and weights"
        self.result.decode.note = f"on {self._decoder.device}"
        if not self._checkpoint.planes:
            self.result.decode.skip("no CSF planes")
            if not self.result.streams.warnings:
                self.result.streams.skip("no CSF streams")

    def _check_stored(self, published: list[PublishedHash]) -> None:
        shards = [shard.name for shard in self._shards] + ([] if self._options.only else self._checkpoint.lacking)
        check, listed, digests = self.result.stored, self._options.listed, self._stored_digests
        self._vouched = check_stored(check, self._checkpoint, published, listed, digests, shards)

    def _conclude_source(self) -> None:
        check = self.result.source
        layout = self._checkpoint.layout
        check.checked = self._hashed_planes + self._rebuilt_shards
        if not layout.receipts:
            check.skip(layout.unproved)
            return
        shards = len(self._shards) if self._options.only else len(layout.listed)
        planes = self._chosen_planes()
        compared = f"{self._hashed_planes:,} of {count(planes, 'plane')}"
        rebuilt = f" and {self._rebuilt_shards:,} of {count(shards, 'rebuilt shard')}"
        check.note = f"{compared}{rebuilt} compared with the original's SHA-256"
        if self._fetched is not None and self._hashed_planes == planes:
            check.note = f"{compared} compared with the original's SHA-256; no other tensor was fetched"
        elif self._rebuilt_shards < shards or self._hashed_planes < planes:
            check.skip(check.note)

    def _chosen_planes(self) -> int:
        """The number of planes whose source bytes are to be proved, planes that only receipts name included."""
        planes = {plane.name for plane in self._checkpoint.planes if plane.fixed.shard.name in self._names}
        return len(planes if self._options.only else self._receipts.keys() | planes)

    def _conclude_reference(self) -> None:
        """Compare names, shapes and the files beside the shards with the reference, and report its own faults."""
        check = self.result.reference
        if self._against is None:
            check.skip("no reference was given (--against)")
            return
        theirs = errors(self._against.problems)
        theirs = [replace(problem, problem=f"in the reference: {problem.problem}") for problem in theirs]
        check.failures += theirs
        self.result.not_mendable.update(theirs)
        self._names_against()
        files = 0
        if not self._options.tensors_only:
            check.failures += compare_formats(self._checkpoint, self._against)
        if not self._options.only:
            shards_only, on_bytes = self._options.tensors_only, self._progress.advance
            beside = compare_side_files(self._checkpoint, self._against, on_bytes, shards_only=shards_only)
            check.failures += beside.problems
            names = [problem for problem in beside.problems if problem.code is Code.REFERENCE_NAMES]
            self.result.not_mendable.update(p for p in names if is_file(self._checkpoint.root / p.file))
            self.result.not_mendable.update(beside.of_reference)
            files, self._compared = beside.files, beside.compared
        others = f", and {count(files, 'file')} beside the shards" if files else ""
        check.note = f"bytes of every tensor of {self._against.label}{others}"
        if self._fetched is not None:
            self._shapes_against(self._fetched)
            check.note = (
                f"bytes of the block scales of {self._against.label}{others}; names, dtypes and shapes of "
                f"{count(self.result.unfetched, 'other tensor')} (--all-tensors fetches their bytes)"
            )
        check.failures.sort(key=lambda problem: (problem.file, problem.tensor))
        if self._uncompared:
            check.skip(f"{check.note}, except {count(self._uncompared, 'tensor')} that cannot be read or decoded")

    def _names_against(self) -> None:
        """Report tensors that only one side has."""
        check = self.result.reference
        for name in self._tensors.keys() - self._theirs.keys():
            if self._tensors[name].stored_in in self._names:
                where = self._tensors[name].stored_in
                check.fail("the reference does not have it", Code.REFERENCE_NAMES, where, name)
                self.result.not_mendable.add(check.failures[-1])
        for name in self._theirs.keys() - self._tensors.keys() if not self._options.only else ():
            text = f"missing; the reference has it in {self._theirs[name].stored_in}"
            check.fail(text, Code.REFERENCE_NAMES, tensor=name)

    def _shapes_against(self, fetched: set[str]) -> None:
        """Compare shapes and dtypes of the tensors that were not fetched."""
        formats = self._scale_formats()
        for name in self._tensors.keys() & self._theirs.keys() - fetched:
            ours, theirs = self._tensors[name], self._theirs[name]
            if problem := mismatch(ours, theirs):
                self.result.reference.fail(problem, Code.REFERENCE_DIFFERS, ours.stored_in, name)
            else:
                check_dtype(self.result.reference, ours, theirs, formats)

    def _scale_formats(self) -> dict[str, CsfFormat]:
        """The format of every block scale of either side, stored dense or not."""
        if self._against is None:
            return {}
        tables = [table for side in (self._checkpoint, self._against) for table in (side.dense_table, side.plane_table)]
        return {
            name: table.kinds[kind].fmt
            for table in tables
            for name, kind in zip(table.names, table.kind_of, strict=True)
        }

    def _note_uncovered(self) -> None:
        """Note the files that neither a hash nor the reference has proved right, and why."""
        result, options = self.result, self._options
        uncompared = [name for name in self._unclaimed if name not in self._compared]
        result.uncovered = [name for name in uncompared if name not in self._vouched]
        result.uncompared = uncompared if self._against else []
        if options.only:
            result.why_uncompared = "--only reads only shards"
        elif options.tensors_only:
            result.why_uncompared = "--tensors-only leaves them out"
        elif set(uncompared) & set(self._checkpoint.aside):
            result.why_uncompared = "shards that were left out"
        elif any(is_far(self._checkpoint, name) for name in uncompared):
            result.why_uncompared = "not fetched"
