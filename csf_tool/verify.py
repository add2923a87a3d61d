"""verify: the real decode path with no writer attached, and what it proves about the bytes.

`stored` and `source` are different statements: that the files are the published ones, and that what they
decode to is the original. Either can hold alone. All comparison is of bytes, never of floats.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from csf_tool.checkpoint.compare import DenseReader, TensorComparison, mismatch
from csf_tool.checkpoint.dense import DenseShard, DenseTensor, dense_tensors, original_shard, own_shards
from csf_tool.checkpoint.hashes import PublishedHash, download_commits, hash_file, published_hashes
from csf_tool.checkpoint.model import Checkpoint, Located, Plane
from csf_tool.checkpoint.problems import errors, warnings
from csf_tool.checkpoint.streams import PlaneStreams, Readers
from csf_tool.codec.formats import FORMATS
from csf_tool.decoder import Decoded, Decoder
from csf_tool.errors import CheckpointError
from csf_tool.progress import Progress
from csf_tool.text import count
from csf_tool.verdict import Verified

_PROBE_BYTES = 4096


class _Observer(Protocol):
    """Sees the dense bytes of a tensor or a shard pass by, in order."""

    def update(self, data: memoryview, /) -> None: ...


def verify(checkpoint: Checkpoint, against: Checkpoint | None, decoder: Decoder, progress: Progress) -> Verified:
    """Check everything that can be checked of `checkpoint`. No fault in one tensor stops the rest.

    `against` is a reference whose dense tensors must be the same, byte for byte.
    """
    return _Verification(checkpoint, against, decoder, progress).run()


class _Verification:
    """One run: the checkpoint, the reference, and the checks being filled in."""

    def __init__(
        self, checkpoint: Checkpoint, against: Checkpoint | None, decoder: Decoder, progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._against = against
        self._decoder = decoder
        self._progress = progress
        self._tensors = dense_tensors(checkpoint)
        self._theirs = dense_tensors(against) if against else {}
        self._scale_receipts = checkpoint.container.scale_receipts if checkpoint.container else {}
        self._readers = Readers()
        self._reference = DenseReader()
        self._hashed_planes = 0
        self._rebuilt_shards = 0
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
        with self._readers, self._reference:
            for shard in shards:
                self._shard(shard)
        self._stored(published)
        self._source()
        self._names_against()
        self._planes()
        return self.result

    def _structure(self) -> None:
        check = self.result.structure
        check.failures = errors(self._checkpoint.problems)
        check.warnings = warnings(self._checkpoint.problems)
        check.checked = sum(len(shard.header.tensors) for shard in self._checkpoint.shards)
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
        everything = self._against is not None
        hashed = {entry.file for entry in published}
        return sum(shard.size for shard in self._checkpoint.shards if shard.name in hashed) + sum(
            tensor.nbytes
            for shard in shards
            for tensor in shard.tensors
            if everything or shard.sha256 or isinstance(tensor.source, Plane)
        )

    def _shard(self, shard: DenseShard) -> None:
        """Decode, hash and compare one dense shard in the order of its data."""
        decoded = _InOrder(self._decoder.decode(self._good_streams(shard.planes)))
        rebuilt = _Rebuilt(shard)
        for tensor in shard.tensors:
            try:
                if isinstance(tensor.source, Plane):
                    self._plane(tensor, decoded.take(tensor.source), rebuilt)
                else:
                    self._stored_tensor(tensor, tensor.source, rebuilt)
            except CheckpointError as error:
                rebuilt.lack(tensor.name)
                self.result.structure.fail(tensor.stored_in, tensor.name, str(error))
        if problem := rebuilt.problem():
            self.result.source.fail(shard.tensors[0].stored_in if shard.tensors else shard.name, "", problem)
        elif shard.sha256:
            self._rebuilt_shards += 1

    def _good_streams(self, planes: list[Plane]) -> Iterator[PlaneStreams]:
        """Read and check each plane's streams; give on those that can be decoded."""
        check = self.result.streams
        for plane in planes:
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

    def _plane(self, tensor: DenseTensor, scales: NDArray[np.uint8] | None, rebuilt: "_Rebuilt") -> None:
        if scales is None:
            rebuilt.lack(tensor.name)
            self.result.decode.fail(tensor.stored_in, tensor.name, "not decoded: its streams are broken")
            return
        self.result.decode.checked += 1
        data = scales.data.cast("B")
        zero, comparison = _ZeroWatch(), self._comparison(tensor)
        self._pass_by(data, zero, rebuilt, *comparison)
        self._report_zero(tensor, zero)
        self._report_difference(tensor, comparison)
        self._plane_hash(tensor, data)

    def _plane_hash(self, tensor: DenseTensor, data: memoryview) -> None:
        receipt = self._scale_receipts.get(tensor.name)
        if receipt is None:
            return
        self._hashed_planes += 1
        found = hashlib.sha256(data).hexdigest()
        if found != receipt.source_sha256:
            text = f"decodes to SHA-256 {found}, the source's is {receipt.source_sha256}"
            self.result.source.fail(tensor.stored_in, tensor.name, text)

    def _stored_tensor(self, tensor: DenseTensor, located: Located, rebuilt: "_Rebuilt") -> None:
        if located.tensor.end > located.shard.size:
            rebuilt.lack(tensor.name)  # named under structure
            return
        reader = self._readers[located.shard]
        begin, end = located.tensor.begin, located.tensor.end
        zero, comparison = _ZeroWatch(), self._comparison(tensor)
        if rebuilt.wanted or comparison:
            for piece in reader.chunks(begin, end):
                self._pass_by(piece, zero, rebuilt, *comparison)
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
        self._progress.advance(len(piece))

    def _report_zero(self, tensor: DenseTensor, zero: "_ZeroWatch") -> None:
        if zero.only_zeros and tensor.nbytes:
            text = "every byte is zero: a failed download can look so"
            self.result.streams.warn(tensor.stored_in, tensor.name, text)

    def _comparison(self, tensor: DenseTensor) -> list["_Comparison"]:
        """The comparison with the reference's tensor of the same name; none where it cannot be made."""
        theirs = self._theirs.get(tensor.name)
        if theirs is None:
            return []  # a missing name is reported by _names_against
        check = self.result.reference
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
                self.result.reference.fail(tensor.stored_in, tensor.name, problem)

    def _planes(self) -> None:
        self.result.streams.note = "bases, positions, padding; zero planes and weights"
        self.result.decode.note = f"on {self._decoder.device}"
        if not self._checkpoint.planes:
            self.result.decode.skipped, self.result.decode.note = True, "no CSF planes"

    def _stored(self, published: list[PublishedHash]) -> None:
        """Hash every file for which somebody published a hash."""
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
        try:
            found = hash_file(path, file, {entry.algorithm for entry in entries}, self._progress.advance)
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


class _InOrder:
    """Decoded planes, asked for in order; those that were left out for faults are answered with None."""

    def __init__(self, decoded: Iterable[Decoded]) -> None:
        self._decoded = iter(decoded)
        self._next = next(self._decoded, None)

    def take(self, plane: Plane) -> NDArray[np.uint8] | None:
        """The dense scales of `plane`, or None when it was not decoded."""
        if self._next is None or self._next.plane is not plane:
            return None
        scales = self._next.scales
        self._next = next(self._decoded, None)
        return scales


class _Rebuilt:
    """Hashes the bytes of a dense shard as they pass, when the original's hash is known."""

    def __init__(self, shard: DenseShard) -> None:
        self._expected = shard.sha256
        self._hasher = hashlib.sha256(shard.header)
        self._lacking: list[str] = []

    @property
    def wanted(self) -> bool:
        """Whether the bytes still matter."""
        return self._expected is not None and not self._lacking

    def lack(self, name: str) -> None:
        """Note that the bytes of a tensor cannot be had."""
        self._lacking.append(name)

    def update(self, data: memoryview) -> None:
        """Take in the next bytes."""
        if self.wanted:
            self._hasher.update(data)

    def problem(self) -> str | None:
        """Why the shard is not the original."""
        if self._expected is None:
            return None
        if self._lacking:
            more = f" and {len(self._lacking) - 1} more" if len(self._lacking) > 1 else ""
            return f"cannot be rebuilt: {self._lacking[0]}{more} cannot be read or decoded"
        found = self._hasher.hexdigest()
        return None if found == self._expected else f"rebuilt SHA-256 is {found}, the source's is {self._expected}"


class _ZeroWatch:
    """Sees whether all bytes are zero."""

    def __init__(self) -> None:
        self.only_zeros = True

    def update(self, data: memoryview) -> None:
        """Look at the next bytes, until one is not zero."""
        if self.only_zeros:
            self.only_zeros = not np.count_nonzero(np.frombuffer(data[:_PROBE_BYTES], np.uint8)) and not (
                np.count_nonzero(np.frombuffer(data, np.uint8))
            )


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
