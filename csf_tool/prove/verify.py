"""verify: decodes a checkpoint as expand does but writes nothing, and reports what this proves about the bytes.

`stored` states that the files are the published ones, `source` that they decode to the original. Either can hold
alone. Bytes are compared, never floats.
"""

from collections.abc import Callable

from csf_tool.cancel import CancelToken
from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.logical import LogicalShard, original_shard, own_shards, require_new
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.problems import errors, warnings
from csf_tool.checkpoint.published import hash_list, published_hashes
from csf_tool.coders.decoder import Decoder, NumpyDecoder
from csf_tool.disk.hashing import PublishedHash
from csf_tool.disk.reader import is_file
from csf_tool.errors import CheckpointError
from csf_tool.progress import Amount, Progress, SharedProgress
from csf_tool.prove.coverage import Coverage
from csf_tool.prove.next_steps import known_download
from csf_tool.prove.options import VerifyOptions, chosen_shards, require_another, require_same_origin
from csf_tool.prove.reference_check import ReferenceCheck, scale_formats
from csf_tool.prove.runtime_files import FETCHED_SUFFIXES, is_far, unclaimed_files
from csf_tool.prove.shard_check import Scope, ShardCheck, ShardFindings
from csf_tool.prove.side_check import check_side_files
from csf_tool.prove.size_check import check_sizes
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
        self._coverage = Coverage.of(checkpoint, against, all_tensors=options.all_tensors)
        for side in filter(None, (checkpoint, against)):
            side.fetch_side_files(FETCHED_SUFFIXES)
        self._receipts = checkpoint.layout.scale_receipts
        self._unclaimed = [] if options.quick else unclaimed_files(checkpoint)
        self.result = Verified(
            path=checkpoint.label,
            kind=checkpoint.kind,
            against=against.label if against else None,
            unfetched=len(self._coverage.unread),
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
            check_sizes(self.result, self._checkpoint, self._options.listed)
            return self.result
        shards = self._logical_shards()
        published = self._published_hashes()
        self._progress.start("verify", Amount(self._bytes_to_read(shards, published), len(shards)))
        found = self._check_shards(shards, published)
        self.result.add(found)
        vouched = self._check_stored(published, found.stored_digests)
        self._conclude_source(found)
        compared = self._conclude_reference(found)
        self._note_planes(found)
        self._note_uncovered(vouched, compared)
        self.result.checked_files = sorted(self._names | vouched | compared)
        if self._options.save_hashes and self.result.ok:
            self.result.hashes = hash_list(self._checkpoint, self._options.save_hashes, found.stored_digests)
        return self.result

    def _check_structure(self) -> None:
        check = self.result.structure
        problems = self._checkpoint.problems + check_side_files(self._checkpoint)
        check.failures, check.warnings = errors(problems), warnings(problems)
        check.checked = sum(len(shard.header) for shard in self._checkpoint.shards)
        check.note = f"headers, sizes, pairs, geometry and names of {count(len(self._checkpoint.shards), 'shard')}"

    def _published_hashes(self) -> list[PublishedHash]:
        """The hashes to compare with: all known ones, or those of the chosen shards."""
        listed = self._options.listed
        found = published_hashes(self._checkpoint)
        found += listed.hashes() if listed else []
        found += [entry for entry in self._options.published if is_file(self._checkpoint.root / entry.file)]
        return [entry for entry in found if not self._options.only or entry.file in self._names]

    def _logical_shards(self) -> list[LogicalShard]:
        """The shards to check: originals where receipts describe them, then the tensors that no receipt describes."""
        if self._coverage.scales_only and self._checkpoint.is_remote:
            scales = list(self._coverage.read(self._coverage.ours).values())
            return [shard for shard in own_shards(self._checkpoint, scales).values() if shard.tensors]
        receipts = self._checkpoint.layout.receipts
        shards: list[LogicalShard] = []
        taken: set[str] = set()
        for shard in self._shards:
            try:
                if shard.file in receipts:
                    original = original_shard(receipts[shard.file], self._coverage.ours)
                    require_new(original, taken)
                    shards.append(original)
            except CheckpointError as error:
                self.result.source.fail(f"cannot be rebuilt: {error}", error.code, shard.name)
        left = [t for name, t in self._coverage.ours.items() if name not in taken and t.stored_in in self._names]
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

    def _check_shards(self, shards: list[LogicalShard], published: list[PublishedHash]) -> ShardFindings:
        """Check every shard as a job of its own, and add up the results in the order of the shards."""
        hashed = {entry.file for entry in published if entry.algorithm == "sha256"}
        hashed |= self._names if self._options.save_hashes else set()
        theirs = self._coverage.read(self._coverage.theirs)
        formats = scale_formats(self._checkpoint, self._against) if self._against else {}
        scope = Scope(theirs, self._receipts, hashed, formats, self._decoder, self._options.drop_cache)
        # By number: the tensors that a damaged receipt left out form a second shard of its name.
        found: dict[int, ShardFindings] = {}

        def done(i: int, findings: ShardFindings) -> None:
            found[i] = findings
            self._progress.shard_done()

        self._run_jobs(len(shards), lambda i, on_bytes: ShardCheck(shards[i], scope, on_bytes).run(), done)
        total = ShardFindings()
        for i in range(len(shards)):
            total.add_shard(found[i])
        return total

    def _run_jobs(self, tasks: int, work: Work[ShardFindings], done: Callable[[int, ShardFindings], None]) -> None:
        """Run `work` on the numbers of all tasks: in forked workers where they can do it, in threads if not."""
        jobs = min(self._options.jobs, tasks)
        is_here = not any(side.is_remote for side in (self._checkpoint, self._against) if side)
        if jobs > 1 and is_here and isinstance(self._decoder, NumpyDecoder) and may_fork(jobs):
            run_forked(tasks, work, done, jobs, self._progress.advance)
            return
        run_with_progress(range(tasks), work, done, jobs, self._cancel, self._progress)

    def _note_planes(self, found: ShardFindings) -> None:
        self.result.streams.note = "bases, positions, padding; zero planes and weights"
        self.result.decode.note = f"on {self._decoder.device}"
        if not isinstance(self._decoder, NumpyDecoder):
            self.result.decode.note += f", {count(found.agreed_planes, 'plane')} compared with the CPU"
        if not self._checkpoint.planes:
            self.result.decode.skip("no CSF planes")
            if not self.result.streams.warnings:
                self.result.streams.skip("no CSF streams")

    def _check_stored(self, published: list[PublishedHash], digests: dict[str, str]) -> set[str]:
        """Compare hashes of stored files; returns the files that they vouch for."""
        shards = [shard.name for shard in self._shards] + ([] if self._options.only else self._checkpoint.lacking)
        check, listed = self.result.stored, self._options.listed
        return check_stored(check, self._checkpoint, published, listed, digests, shards)

    def _conclude_source(self, found: ShardFindings) -> None:
        check = self.result.source
        layout = self._checkpoint.layout
        check.checked = found.hashed_planes + found.rebuilt_shards
        if not layout.receipts:
            check.skip(layout.unproved)
            return
        shards = len(self._shards) if self._options.only else len(layout.listed)
        planes = self._chosen_planes()
        compared = f"{found.hashed_planes:,} of {count(planes, 'plane')}"
        rebuilt = f" and {found.rebuilt_shards:,} of {count(shards, 'rebuilt shard')}"
        check.note = f"{compared}{rebuilt} compared with the original's SHA-256"
        if self._coverage.scales_only and found.hashed_planes == planes:
            check.note = f"{compared} compared with the original's SHA-256; no other tensor was fetched"
        elif found.rebuilt_shards < shards or found.hashed_planes < planes:
            check.skip(check.note)

    def _chosen_planes(self) -> int:
        """The number of planes whose source bytes are to be proved, planes that only receipts name included."""
        planes = {plane.name for plane in self._checkpoint.planes if plane.fixed.shard.name in self._names}
        return len(planes if self._options.only else self._receipts.keys() | planes)

    def _conclude_reference(self, found: ShardFindings) -> set[str]:
        """Compare the rest with the reference; returns the files beside the shards that were compared."""
        if self._against is None:
            self.result.reference.skip("no reference was given (--against)")
            return set()
        sides = self._checkpoint, self._against
        check = ReferenceCheck(self.result, *sides, self._coverage, self._options, self._names)
        return check.conclude(found.uncompared, self._progress.advance)

    def _note_uncovered(self, vouched: set[str], compared: set[str]) -> None:
        """Note the files that neither a hash nor the reference has proved right, and why."""
        result, options = self.result, self._options
        uncompared = [name for name in self._unclaimed if name not in compared]
        result.uncovered = [name for name in uncompared if name not in vouched]
        result.uncompared = uncompared if self._against else []
        if options.only:
            result.why_uncompared = "--only reads only shards"
        elif options.tensors_only:
            result.why_uncompared = "--tensors-only leaves them out"
        elif set(uncompared) & set(self._checkpoint.aside):
            result.why_uncompared = "shards that were left out"
        elif any(is_far(self._checkpoint, name) for name in uncompared):
            result.why_uncompared = "not fetched"
