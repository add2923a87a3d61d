"""Comparing a shard that lies in the destination with what the run would write there."""

from csf_tool.checkpoint.streams import Readers
from csf_tool.disk.hashing import Hashing, sha256_of
from csf_tool.disk.reader import RandomReader, exists
from csf_tool.progress import OnBytes
from csf_tool.write.copy import pieces, write_side_file
from csf_tool.write.fetch import fetched
from csf_tool.write.journal import Journal, Record
from csf_tool.write.output import Output, OutputShard
from csf_tool.write.shard_job import is_in_place


class ShardComparison:
    """Compares shards of an output: by the hash that one is known to have; without one, by making its bytes again."""

    def __init__(self, output: Output, journal: Journal) -> None:
        self._output = output
        self._journal = journal
        self._receipt_bytes: list[int] = []

    @property
    def bytes_written(self) -> int:
        """Bytes of the receipts that right shards lacked."""
        return sum(self._receipt_bytes)

    def right_record(self, shard: OutputShard, on_bytes: OnBytes = lambda _: None) -> Record | None:
        """The record of a shard whose file holds the bytes that this run would write; None where it holds others."""
        path = self._journal.path_of(shard.name)
        recorded = self._journal.finished(shard.name)
        if known := shard.sha256 or (recorded.sha256 if recorded else None):
            return Record(shard.size, known) if sha256_of(path, shard.name, on_bytes) == known else None
        hashing = Hashing() if self._output.wants_hashes else None
        with (
            fetched(shard.sources, self._journal.fetch_folder(shard.name), lambda _: on_bytes(0)) as copies,
            Readers(copies) as readers,
            RandomReader(path, shard.name) as written,
        ):
            rendering = self._output.renderer.render(shard, readers)
            at = 0
            for piece in pieces(rendering, readers):
                found = written.read(at, at + len(piece))
                if found != piece:
                    return None
                at += len(piece)
                on_bytes(len(piece))
                if hashing:
                    hashing.update(memoryview(found))
            record = Record(shard.size, hashing.hexdigest() if hashing else None)
            receipt = rendering.receipt(record.sha256)
            if receipt and not is_in_place(receipt, self._journal):
                if exists(self._journal.path_of(receipt.target)):
                    return None
                self._receipt_bytes.append(write_side_file(receipt, self._journal))
            return record
