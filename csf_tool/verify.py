"""verify: the real decode path with no writer attached, and what it proves about the bytes.

`stored` and `source` are different statements: that the files are the published ones, and that what they
decode to is the original. Either can hold alone. All comparison is of bytes, never of floats.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from csf_tool.checkpoint.compare import DenseReader, TensorComparison, adjacent, mismatch
from csf_tool.checkpoint.container import ScaleReceipt
from csf_tool.checkpoint.dense import DenseShard, DenseTensor, dense_tensors, original_shard, own_shards
from csf_tool.checkpoint.hashes import PublishedHash, download_commits, hash_file, published_hashes
from csf_tool.checkpoint.model import Checkpoint, Located, Plane, Shard
from csf_tool.checkpoint.problems import errors, warnings
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec.formats import FORMATS
from csf_tool.decoder import Decoded, Decoder
from csf_tool.errors import CheckpointError
from csf_tool.jobs import SharedProgress, default_jobs, local_executor, run_jobs
from csf_tool.progress import Progress
from csf_tool.shard_writer import Hashing
from csf_tool.text import count
from csf_tool.verdict import Check, Verified

_PROBE_BYTES = 4096


class _Observer(Protocol):
    """Sees the dense bytes of a tensor or a shard pass by, in order."""

    def update(self, data: memoryview, /) -> None: ...


@dataclass(frozen=True)
class VerifyOptions:
    """How `verify` goes about it."""

    jobs: int = field(default_factory=default_jobs)
    drop_cache: bool = False


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
        EnvironmentFault: the system cannot read.
    """
    return _Verification(checkpoint, against, decoder, progress, options or VerifyOptions()).run()


class _Verification:
    """One run: the checkpoint, the reference, and the checks being filled in."""

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
        self._options = options
        self._tensors = dense_tensors(checkpoint)
        self._theirs = dense_tensors(against) if against else {}
        self._receipts = checkpoint.container.scale_receipts if checkpoint.container else {}
        self._hashed_planes = 0
        self._rebuilt_shards = 0
        self._stored_digests: dict[str, str] = {}
        self.result = Verified(
            path=str(checkpoint.path),
            kind=checkpoint.kind,
            against=str(against.path) if against else None,
            device=decoder.device,
        )

    def run(self) -> Verified:
        """Go through everything once."""
        self._structure()
        shards = self._dense_shards()
        published = published_hashes(self._checkpoint)
        self._progress.start("verify", self._bytes_to_read(shards, published))
        self._check_shards(shards, published)
        self._stored(published)
        self._source()
        self._names_against()
        self._planes()
        return self.result

    def _structure(self) -> None:
        check = self.result.structure
        check.failures = errors(self._checkpoint.problems)
        check.warnings = warnings(self._checkpoint.problems)
        check.checked = sum(len(shard.header) for shard in self._checkpoint.shards)
        check.note = f"headers, sizes, pairs, geometry and names of {count(len(self._checkpoint.shards), 'shard')}"

    def _dense_shards(self) -> list[DenseShard]:
        """The shards to go through: originals where receipts allow, then whatever tensors those left out."""
        receipts = self._checkpoint.container.receipts if self._checkpoint.container else {}
        shards: list[DenseShard] = []
        for shard in self._checkpoint.shards:
            try:
                if shard.file in receipts:
                    shards.append(original_shard(receipts[shard.file], self._tensors))
            except CheckpointError as error:
                self.result.source.fail(shard.name, "", f"cannot be rebuilt: {error}")
        taken = {tensor.name for shard in shards for tensor in shard.tensors}
        left = [tensor for name, tensor in self._tensors.items() if name not in taken]
        return shards + [shard for shard in own_shards(self._checkpoint, left).values() if shard.tensors]

    def _bytes_to_read(self, shards: list[DenseShard], published: list[PublishedHash]) -> int:
        hashed = {entry.file for entry in published}
        return sum(
            tensor.nbytes
            for shard in shards
            for tensor in shard.tensors
            if self._against or shard.sha256 or tensor.stored_in in hashed or isinstance(tensor.source, Plane)
        )

    def _check_shards(self, shards: list[DenseShard], published: list[PublishedHash]) -> None:
        """Check every shard as a job of its own, and add up what they found in the order of the shards."""
        hashed = {entry.file for entry in published if entry.algorithm == "sha256"}
        scope = _Scope(
            self._theirs, self._receipts, hashed, self._decoder, self._progress.advance, self._options.drop_cache
        )
        found: dict[int, _ShardFindings] = {}  # by number: what a damaged receipt left out has its shard's name again
        with local_executor(self._options.jobs) as pool:
            run_jobs(
                range(len(shards)),
                lambda i: _ShardCheck(shards[i], scope).run(),
                found.__setitem__,
                pool,
                self._progress.stop,
            )
        for i in range(len(shards)):
            self._add(found[i])

    def _add(self, findings: "_ShardFindings") -> None:
        for mine, theirs in zip(self.result.checks, findings.checks, strict=True):
            mine.add(theirs)
        self._hashed_planes += findings.hashed_planes
        self._rebuilt_shards += findings.is_rebuilt
        self._stored_digests |= findings.stored_digest

    def _planes(self) -> None:
        self.result.streams.note = "bases, positions, padding; zero planes and weights"
        self.result.decode.note = f"on {self._decoder.device}"
        if not self._checkpoint.planes:
            self.result.decode.skipped, self.result.decode.note = True, "no CSF planes"

    def _stored(self, published: list[PublishedHash]) -> None:
        """Compare the hash of every file for which somebody published one."""
        check = self.result.stored
        by_file: dict[str, list[PublishedHash]] = {}
        for entry in published:
            by_file.setdefault(entry.file, []).append(entry)
        for file, entries in by_file.items():
            self._stored_file(file, entries)
        check.checked = len(by_file)
        if len(commits := download_commits(self._checkpoint)) > 1:
            said = "; ".join(f"{commit[:12]}: {count(len(files), 'file')}" for commit, files in commits.items())
            check.warn("", "", f"the files come from different revisions ({said})")
        bare = [shard.name for shard in self._checkpoint.shards if shard.name not in by_file]
        if bare:
            check.skipped = True
            check.note = f"no published hash for {count(len(bare), 'shard')}, as {bare[0]}"
        else:
            check.note = f"{count(len(by_file), 'file')} by {', '.join(dict.fromkeys(e.evidence for e in published))}"

    def _stored_file(self, file: str, entries: list[PublishedHash]) -> None:
        check = self.result.stored
        path = self._checkpoint.root / file
        if not path.is_file():
            check.fail(file, "", f"{entries[0].evidence} lists it, it is not there")
            return
        found = {"sha256": self._stored_digests[file]} if file in self._stored_digests else {}
        wanted = {entry.algorithm for entry in entries} - found.keys()
        try:
            found |= hash_file(path, file, wanted, lambda _: None) if wanted else {}
        except CheckpointError as error:
            check.fail(file, "", str(error))
            return
        for entry in entries:
            if found[entry.algorithm] != entry.digest:
                text = f"{entry.algorithm} is {found[entry.algorithm]}, {entry.evidence} says {entry.digest}"
                check.fail(file, "", text)

    def _source(self) -> None:
        check = self.result.source
        container = self._checkpoint.container
        shards = len(self._checkpoint.shards)
        check.checked = self._hashed_planes + self._rebuilt_shards
        evidence = f"source_sha256 of {count(self._hashed_planes, 'plane')} and of {self._rebuilt_shards} rebuilt"
        check.note = f"{evidence} {'shard' if self._rebuilt_shards == 1 else 'shards'}"
        if container is None:
            check.skipped, check.note = True, "no source hashes"
        elif not container.receipts:
            check.skipped, check.note = True, "no receipts, so no source hashes"
        elif self._rebuilt_shards < shards or self._hashed_planes < len(self._checkpoint.planes):
            check.skipped = True
            check.note += f", of {len(self._checkpoint.planes)} and {shards}"

    def _names_against(self) -> None:
        """Names that only one side has, and faults of the reference itself."""
        check = self.result.reference
        if self._against is None:
            check.skipped, check.note = True, "no reference given (--against)"
            return
        for problem in errors(self._against.problems):
            check.fail(problem.file, problem.tensor, f"in the reference: {problem.problem}")
        for name in self._tensors.keys() - self._theirs.keys():
            check.fail(self._tensors[name].stored_in, name, "the reference does not have it")
        for name in self._theirs.keys() - self._tensors.keys():
            check.fail("", name, f"missing; the reference has it in {self._theirs[name].stored_in}")
        check.failures.sort(key=lambda problem: (problem.file, problem.tensor))
        check.note = f"bytes of every tensor of {self._against.path}"


@dataclass(frozen=True)
class _Scope:
    """What every shard is checked against, and how."""

    theirs: dict[str, DenseTensor]
    receipts: dict[str, ScaleReceipt]
    stored_hashes: set[str]
    decoder: Decoder
    on_bytes: Callable[[int], None]
    drop_cache: bool


@dataclass
class _ShardFindings:
    """What one shard adds to each check, in the order of `Verified.checks`."""

    structure: Check = field(default_factory=lambda: Check("structure"))
    streams: Check = field(default_factory=lambda: Check("streams"))
    decode: Check = field(default_factory=lambda: Check("decode"))
    stored: Check = field(default_factory=lambda: Check("stored"))
    source: Check = field(default_factory=lambda: Check("source"))
    reference: Check = field(default_factory=lambda: Check("against"))
    hashed_planes: int = 0
    is_rebuilt: bool = False
    stored_digest: dict[str, str] = field(default_factory=dict)

    @property
    def checks(self) -> list[Check]:
        return [self.structure, self.streams, self.decode, self.stored, self.source, self.reference]


class _ShardCheck:
    """Decodes, hashes and compares one dense shard in the order of its data, reading every byte once."""

    def __init__(self, shard: DenseShard, scope: _Scope) -> None:
        self._shard = shard
        self._scope = scope
        self._readers = Readers()
        self._reference = DenseReader()
        self._rebuilt = _Rebuilt(shard)
        self._stored = _StoredHash(shard, scope.stored_hashes)
        self.found = _ShardFindings()

    def run(self) -> _ShardFindings:
        """Go through the shard once."""
        with self._readers, self._reference:
            self._stored.begin(self._readers)
            decoded = _InOrder(self._scope.decoder.decode(self._good_streams()))
            for group in adjacent(self._shard.tensors, self._scope.theirs):
                if len(group) == 1 or not self._is_right(group):
                    for tensor in group:
                        self._tensor(tensor, decoded)
            if self._scope.drop_cache:
                self._readers.forget()
                self._reference.forget()
        self._close()
        return self.found

    def _close(self) -> None:
        self.found.stored_digest = self._stored.digest()
        if problem := self._rebuilt.problem():
            file = self._shard.tensors[0].stored_in if self._shard.tensors else self._shard.name
            self.found.source.fail(file, "", problem)
        elif self._shard.sha256:
            self.found.is_rebuilt = True

    def _good_streams(self) -> Iterator[PlaneStreams]:
        """Read and check each plane's streams; give on those that can be decoded."""
        check = self.found.streams
        for plane in self._shard.planes:
            file = plane.fixed.shard.name
            check.checked += 1
            try:
                streams = self._readers.streams(plane)
            except CheckpointError as error:
                check.fail(file, plane.name, f"its streams cannot be read: {error}")
                continue
            faults = streams.faults()
            for fault in faults:
                (check.warn if fault.decodable else check.fail)(file, plane.name, str(fault))
            if all(fault.decodable for fault in faults):
                yield streams

    def _is_right(self, group: list[DenseTensor]) -> bool:
        """Take in several stored tensors that lie side by side at once, if there is nothing to say of any of them.

        Three quarters of a checkpoint's tensors are scalars: one by one they cost more than the weights.
        """
        if not (self._rebuilt.wanted or self._stored.wanted or self._scope.theirs):
            return False  # nothing but a glance at each is needed
        first, last = group[0].source, group[-1].source
        assert isinstance(first, Located)
        assert isinstance(last, Located)
        begin, end = first.tensor.begin, last.tensor.end
        if end > first.shard.size:
            return False
        try:
            ours = self._readers[first.shard].read(begin, end)
            if self._scope.theirs and ours != self._reference.read_group([self._scope.theirs[t.name] for t in group]):
                return False
        except CheckpointError:
            return False  # one by one, each gets its own message
        data = memoryview(ours)
        if any(len(t.shape) > 1 and _is_zero(_part(data, t, begin)) for t in group):
            return False
        self._stored.pass_by(first.shard, begin, data)
        self._pass_by(data, self._rebuilt)
        self.found.reference.checked += len(group) if self._scope.theirs else 0
        return True

    def _tensor(self, tensor: DenseTensor, decoded: "_InOrder") -> None:
        try:
            if isinstance(tensor.source, Plane):
                self._plane(tensor, decoded.take(tensor.source))
            else:
                self._stored_tensor(tensor, tensor.source)
        except CheckpointError as error:
            self._rebuilt.lack(tensor.name)
            self.found.structure.fail(tensor.stored_in, tensor.name, str(error))

    def _plane(self, tensor: DenseTensor, decoded: Decoded | None) -> None:
        if decoded is None:
            self._rebuilt.lack(tensor.name)
            self.found.decode.fail(tensor.stored_in, tensor.name, "not decoded: its streams are broken")
            return
        self.found.decode.checked += 1
        self._stored.pass_streams(decoded.streams)
        data = decoded.scales.data.cast("B")
        zero, comparison = _ZeroWatch(), self._comparison(tensor)
        self._pass_by(data, zero, self._rebuilt, *comparison)
        self._report_zero(tensor, zero)
        self._report_difference(tensor, comparison)
        self._plane_hash(tensor, data)

    def _plane_hash(self, tensor: DenseTensor, data: memoryview) -> None:
        receipt = self._scope.receipts.get(tensor.name)
        if receipt is None:
            return
        self.found.hashed_planes += 1
        found = hashlib.sha256(data).hexdigest()
        if found != receipt.source_sha256:
            text = f"decodes to SHA-256 {found}, the source's is {receipt.source_sha256}"
            self.found.source.fail(tensor.stored_in, tensor.name, text)

    def _stored_tensor(self, tensor: DenseTensor, located: Located) -> None:
        if located.tensor.end > located.shard.size:
            self._rebuilt.lack(tensor.name)  # named under structure
            return
        reader = self._readers[located.shard]
        begin, end = located.tensor.begin, located.tensor.end
        zero, comparison = _ZeroWatch(), self._comparison(tensor)
        if self._rebuilt.wanted or self._stored.wanted or comparison:
            at = begin
            for piece in reader.chunks(begin, end):
                self._stored.pass_by(located.shard, at, piece)
                self._pass_by(piece, zero, self._rebuilt, *comparison)
                at += len(piece)
        else:
            probe = min(begin + _PROBE_BYTES, end)
            zero.update(memoryview(reader.read(begin, probe)))
            for piece in reader.chunks(probe, end) if zero.only_zeros else ():
                zero.update(piece)
        self._report_difference(tensor, comparison)
        if len(tensor.shape) > 1:  # a bias or a scalar may well be zero
            self._report_zero(tensor, zero)

    def _pass_by(self, piece: memoryview, *observers: _Observer) -> None:
        for observer in observers:
            observer.update(piece)
        self._scope.on_bytes(len(piece))

    def _report_zero(self, tensor: DenseTensor, zero: "_ZeroWatch") -> None:
        if zero.only_zeros and tensor.nbytes:
            text = "every byte is zero: a failed download can look so"
            self.found.streams.warn(tensor.stored_in, tensor.name, text)

    def _comparison(self, tensor: DenseTensor) -> list["_Comparison"]:
        """The comparison with the reference's tensor of the same name; none where it cannot be made."""
        theirs = self._scope.theirs.get(tensor.name)
        if theirs is None:
            return []  # a missing name is reported once, for the whole checkpoint
        check = self.found.reference
        check.checked += 1
        if problem := mismatch(tensor, theirs):
            check.fail(tensor.stored_in, tensor.name, problem)
            return []
        if tensor.dtype != theirs.dtype:
            text = f"dtype is {tensor.dtype}, the reference has {theirs.dtype}"
            interchangeable = any({tensor.dtype, theirs.dtype} <= set(fmt.dense_dtypes) for fmt in FORMATS)
            (check.warn if interchangeable else check.fail)(tensor.stored_in, tensor.name, text)
        return [_Comparison(tensor, theirs, self._reference)]

    def _report_difference(self, tensor: DenseTensor, comparisons: list["_Comparison"]) -> None:
        for comparison in comparisons:
            if problem := comparison.problem():
                self.found.reference.fail(tensor.stored_in, tensor.name, problem)


class _InOrder:
    """Decoded planes, asked for in order; those that were left out for faults are answered with None."""

    def __init__(self, decoded: Iterable[Decoded]) -> None:
        self._decoded = iter(decoded)
        self._next = next(self._decoded, None)

    def take(self, plane: Plane) -> Decoded | None:
        """The decoded `plane`, or None when it was not decoded."""
        if self._next is None or self._next.plane is not plane:
            return None
        found, self._next = self._next, next(self._decoded, None)
        return found


class _Rebuilt:
    """Hashes the bytes of a dense shard as they pass, when the original's hash is known."""

    def __init__(self, shard: DenseShard) -> None:
        self._expected = shard.sha256
        self._hashing = Hashing() if shard.sha256 else None
        self._lacking: list[str] = []
        self.update(memoryview(shard.header))

    @property
    def wanted(self) -> bool:
        """Whether the bytes still matter."""
        return self._expected is not None and not self._lacking

    def lack(self, name: str) -> None:
        """Note that the bytes of a tensor cannot be had."""
        self._lacking.append(name)

    def update(self, data: memoryview) -> None:
        """Take in the next bytes."""
        if self._hashing and not self._lacking:
            self._hashing.update(data)

    def problem(self) -> str | None:
        """Why the shard is not the original."""
        if self._hashing is None:
            return None
        found = self._hashing.hexdigest()
        if self._lacking:
            more = f" and {len(self._lacking) - 1} more" if len(self._lacking) > 1 else ""
            return f"cannot be rebuilt: {self._lacking[0]}{more} cannot be read or decoded"
        return None if found == self._expected else f"rebuilt SHA-256 is {found}, the source's is {self._expected}"


class _StoredHash:
    """Hashes a stored shard as its bytes pass, so that it is read once; gives up when they pass in another order."""

    def __init__(self, shard: DenseShard, stored_hashes: set[str]) -> None:
        names = {tensor.stored_in for tensor in shard.tensors}
        self._name = names.pop() if len(names) == 1 else ""
        self._hashing = Hashing() if self._name in stored_hashes else None
        self._source: Shard | None = next((_home(t) for t in shard.tensors), None) if self._hashing else None
        self._at = 0

    @property
    def wanted(self) -> bool:
        """Whether the bytes still matter."""
        return self._hashing is not None and self._at >= 0

    def begin(self, readers: Readers) -> None:
        """Take in the stored header."""
        if self._source:
            header = readers[self._source].read(0, self._source.header.data_start)
            self.pass_by(self._source, 0, memoryview(header))

    def pass_by(self, shard: Shard, begin: int, data: memoryview) -> None:
        """See stored bytes from offset `begin` on."""
        if self._hashing is None or self._at < 0:
            return
        if shard is not self._source or begin != self._at:
            self._at = -1
            return
        self._hashing.update(data)
        self._at += len(data)

    def pass_streams(self, streams: PlaneStreams) -> None:
        """See the two streams of a plane, whichever comes first in the file."""
        plane = streams.plane
        stored = [(plane.fixed, streams.fixed.data), (plane.exceptions, streams.exceptions.data)]
        for located, data in sorted(stored, key=lambda entry: entry[0].tensor.begin):
            self.pass_by(located.shard, located.tensor.begin, data.cast("B"))

    def digest(self) -> dict[str, str]:
        """The stored shard's name and hash, or nothing when not all of its bytes have passed in order."""
        if self._hashing is None:
            return {}
        found = self._hashing.hexdigest()
        complete = self._source is not None and self._at == self._source.size
        return {self._name: found} if complete else {}


def _home(tensor: DenseTensor) -> Shard:
    return (tensor.source.fixed if isinstance(tensor.source, Plane) else tensor.source).shard


class _ZeroWatch:
    """Sees whether all bytes are zero."""

    def __init__(self) -> None:
        self.only_zeros = True

    def update(self, data: memoryview) -> None:
        """Look at the next bytes, until one is not zero."""
        if self.only_zeros:
            self.only_zeros = _is_zero(data)


def _is_zero(data: memoryview) -> bool:
    """Whether all bytes are zero; the first few nearly always tell."""
    return not np.frombuffer(data[:_PROBE_BYTES], np.uint8).any() and not np.frombuffer(data, np.uint8).any()


def _part(data: memoryview, tensor: DenseTensor, begin: int) -> memoryview:
    """A tensor's bytes within `data`, which begins at offset `begin` of its shard."""
    assert isinstance(tensor.source, Located)
    stored = tensor.source.tensor
    return data[stored.begin - begin : stored.end - begin]


class _Comparison:
    """Compares a tensor's bytes, as they pass, with the reference's."""

    def __init__(self, ours: DenseTensor, theirs: DenseTensor, reader: DenseReader) -> None:
        self._theirs = theirs
        self._reader = reader
        self._comparison = TensorComparison(ours)
        self._at = 0
        self._unreadable: str | None = None

    def update(self, data: memoryview) -> None:
        """Compare the next bytes."""
        if self._unreadable is None:
            try:
                self._comparison.update(data, self._reader.read(self._theirs, self._at, self._at + len(data)))
            except CheckpointError as error:
                self._unreadable = f"the reference cannot be read: {error}"
        self._at += len(data)

    def problem(self) -> str | None:
        """What differs, once all bytes have passed."""
        difference = self._comparison.result()
        return self._unreadable or (str(difference) if difference else None)
