"""A shard on the Hub: its header, and a reader that fetches ahead what will be read."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from csf_tool.codes import Code
from csf_tool.disk.headers import LENGTH_BYTES, MAX_HEADER_BYTES
from csf_tool.disk.reader import Reader
from csf_tool.errors import CheckpointError
from csf_tool.hub.ranges import HubFile, Ranges
from csf_tool.hub.threads import Answer

BLOCK_BYTES = 4 << 20
"""Most bytes of one request, but for the rest of a header."""

GAP_BYTES = 64 << 10
"""Ranges that lie closer together than this are one request: a request costs more than these bytes."""

AHEAD_BYTES = 32 << 20
"""Most bytes that a reader has fetched, or asked for, before they are read."""

AHEAD_BLOCKS = 64
"""Most requests for these bytes."""

HEAD_BYTES = 64 << 10
"""Bytes of a file that are read before its header's length is known: enough for most small headers."""


@dataclass(frozen=True)
class RemoteFile:
    """A file that lies on the Hub; `head` are its first bytes, where they have been read."""

    file: HubFile
    ranges: Ranges
    head: bytes = b""

    @classmethod
    def with_head(cls, file: HubFile, ranges: Ranges) -> "RemoteFile":
        """The file with its safetensors header, read in one or two requests, in a thread of `ranges`."""
        head = ranges.fetch_here(file, 0, min(file.size, HEAD_BYTES))
        end = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "little")
        if len(head) < end <= min(file.size, LENGTH_BYTES + MAX_HEADER_BYTES):
            head += ranges.fetch_here(file, len(head), end)
        return cls(file, ranges, head)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.file.size

    @property
    def published(self) -> tuple[str, str]:
        """The algorithm and the digest that the Hub lists."""
        return self.file.published

    def open(self) -> "HubReader":
        """A reader of the file."""
        return HubReader(self)


class HubReader(Reader):
    """Reads byte ranges of one file on the Hub. Ranges that were announced (`expect`) are fetched ahead."""

    def __init__(self, remote: RemoteFile) -> None:
        self.name = remote.file.name
        self._file, self._ranges, self._head = remote.file, remote.ranges, remote.head
        self._ahead = self._read_ahead([])

    def _read_ahead(self, ranges: list[tuple[int, int]]) -> "ReadAhead":
        return ReadAhead(ranges, lambda begin, end: self._ranges.ask(self._file, begin, end))

    def close(self) -> None:
        """Forget what was fetched; what has not been requested yet never is."""
        self._ahead.close()

    def expect(self, ranges: list[tuple[int, int]]) -> None:
        """See `Reader.expect`."""
        self.close()
        self._ahead = self._read_ahead([(begin, end) for begin, end in ranges if end <= self._file.size])

    def read_into(self, view: memoryview, begin: int) -> None:
        """See `Reader.read_into`."""
        self._require(begin + len(view))
        while view:
            part = self._head[begin : begin + len(view)] or self._ahead.take(begin, len(view))
            if not part:
                part = self._ranges.fetch(self._file, begin, begin + min(len(view), BLOCK_BYTES))
            view[: len(part)] = part
            view, begin = view[len(part) :], begin + len(part)

    def chunks(self, begin: int, end: int) -> Iterator[memoryview]:
        """See `Reader.chunks`; ranges that were not announced are fetched ahead, too."""
        if self._ahead.covers(begin) or end - begin <= BLOCK_BYTES:
            yield from super().chunks(begin, end)
            return
        self._require(end)
        if head := self._head[begin:end]:
            yield memoryview(head)
            begin += len(head)
        ahead = self._read_ahead([(begin, end)])
        try:
            while begin < end:
                piece = memoryview(ahead.take(begin, end - begin))
                yield piece
                begin += len(piece)
        finally:
            ahead.close()

    def _require(self, end: int) -> None:
        if end > self._file.size:
            problem = f"ends at byte {self._file.size}, {end - self._file.size} bytes short"
            raise CheckpointError(problem, Code.FILE_SHRANK, self.name)


class ReadAhead:
    """Blocks that cover some ranges, fetched in the order in which the ranges will be read.

    A block that has been read stays until its room is needed: it may be read twice.

    Not one of fsspec's caches: they fetch one block ahead, in the order of the file, and all that lies between two
    ranges; or they want all ranges in memory at once.
    """

    def __init__(self, ranges: list[tuple[int, int]], submit: Callable[[int, int], Answer]) -> None:
        self._submit = submit
        self._blocks = coalesced(ranges, GAP_BYTES)
        self._begins = [begin for begin, _ in self._blocks]
        self._unread = [0] * len(self._blocks)
        for begin, end in ranges:
            for i, part in self._parts(begin, end):
                self._unread[i] += part
        self._order = list(dict.fromkeys(i for begin, end in ranges for i, _ in self._parts(begin, end)))
        self._next = 0
        self._held: dict[int, Answer] = {}

    def covers(self, begin: int) -> bool:
        """Whether the byte at `begin` is in one of the blocks."""
        return self._block_at(begin) is not None

    def take(self, begin: int, most: int) -> bytes | memoryview:
        """Bytes from `begin` on, at least one and at most `most`; none where no block has them."""
        i = self._block_at(begin)
        if i is None:
            return b""
        data = memoryview(self._block(i))[begin - self._begins[i] :][:most]
        self._unread[i] -= len(data)
        return data

    def close(self) -> None:
        """Forget all blocks."""
        for future in self._held.values():
            future.cancel()
        self._held.clear()
        self._next = len(self._order)

    def _block_at(self, begin: int) -> int | None:
        i = bisect_right(self._begins, begin) - 1
        return i if i >= 0 and begin < self._blocks[i][1] else None

    def _parts(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """The blocks that a range lies in, each with the bytes of it."""
        i = bisect_right(self._begins, begin) - 1
        while begin < end:
            part = min(end, self._blocks[i][1]) - begin
            yield i, part
            begin, i = begin + part, i + 1

    def _block(self, i: int) -> bytes:
        future = self._held.pop(i, None) or self._submit(*self._blocks[i])
        self._held[i] = future  # last in order, so the last that is dropped
        self._ask_ahead()
        self._make_room(i)
        found: bytes = future.result()
        return found

    def _ask_ahead(self) -> None:
        waiting = [i for i in self._held if self._unread[i] > 0]
        blocks, nbytes = len(waiting), sum(map(self._size, waiting))
        while self._next < len(self._order):
            i = self._order[self._next]
            if i not in self._held:
                blocks, nbytes = blocks + 1, nbytes + self._size(i)
                if blocks > AHEAD_BLOCKS or nbytes > AHEAD_BYTES:
                    break
                self._held[i] = self._submit(*self._blocks[i])
            self._next += 1

    def _make_room(self, current: int) -> None:
        """Drop blocks that have been read; where ranges are read in quite another order, then others, too."""
        nbytes = sum(map(self._size, self._held))
        read = [i for i in self._held if self._unread[i] <= 0 and i != current]
        for i in [*read, *(i for i in self._held if i not in read and i != current)]:
            if nbytes <= 2 * AHEAD_BYTES:
                break
            self._held.pop(i).cancel()
            nbytes -= self._size(i)

    def _size(self, i: int) -> int:
        return self._blocks[i][1] - self._blocks[i][0]


def coalesced(ranges: list[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Blocks of at most BLOCK_BYTES that cover the ranges, in the order of the file; empty ranges need none.

    Not fsspec's `merge_offset_ranges`: it cuts no long range into blocks, and in the versions that huggingface_hub
    allows it may lose the end of a range that another lies in.
    """
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(r for r in ranges if r[0] < r[1]):
        if merged and begin - merged[-1][1] < gap:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return [(at, min(at + BLOCK_BYTES, end)) for begin, end in merged for at in range(begin, end, BLOCK_BYTES)]
