"""Byte ranges of files on the Hub: fetched in parallel and ahead, and checked to be what was asked for.

Every range is one GET that names its bytes, of one commit. A file's address is asked for once: the Hub answers
with a redirect to where the bytes lie, which is used until it is refused, so that reading a file in a thousand
pieces is one request to the Hub and a thousand to its storage.
"""

import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

from csf_tool.cancel import CancelToken
from csf_tool.codes import Code
from csf_tool.disk.headers import LENGTH_BYTES, MAX_HEADER_BYTES
from csf_tool.disk.reader import Reader
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.hub.errors import HubRef, RetryPolicy, WrongLength, with_retries
from csf_tool.version import __version__

CONNECTIONS = 16
"""Ranges in flight together, of all files of a repository."""

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

_REDIRECTS = 8
_EXPIRED = {401, 403, 404, 410}
"""HTTP statuses of a storage when the signature in an address has run out."""


@dataclass(frozen=True)
class HubFile:
    """A file as the Hub lists it; `sha256` is there for files in LFS, `git_sha1` (of the pointer, then) for all."""

    name: str
    size: int
    sha256: str | None
    git_sha1: str

    @property
    def published(self) -> tuple[str, str]:
        """The hash that the Hub lists, as (algorithm, digest): see `PublishedHash`."""
        return ("sha256", self.sha256) if self.sha256 else ("git-sha1", self.git_sha1)


class Ranges:
    """Fetches ranges of the files of one commit."""

    def __init__(self, ref: HubRef, policy: RetryPolicy) -> None:
        self._ref = ref
        self._policy = policy
        self._addresses: dict[str, str] = {}
        self._etags: dict[str, str] = {}
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="csf-tool-hub")
        self._lock = threading.Lock()
        self.cancel = CancelToken()
        """Ends the waits for retries: otherwise an interrupted process would go on waiting."""
        self.bytes_fetched = 0

    def submit(self, work: Callable[..., Any], *args: Any) -> "Future[Any]":
        """Run `work` in the pool that fetches ranges."""
        return self._pool.submit(work, *args)

    def fetch(self, file: HubFile, begin: int, end: int) -> bytes:
        """The bytes `begin` to `end` of a file.

        Raises:
            CheckpointError: the Hub lists the file and does not have it.
            EnvironmentFault: they cannot be had, or are no longer those of the file that was listed.
        """
        if begin == end:
            return b""
        ref = replace(self._ref, file=file.name)
        data = with_retries(lambda: self._fetch_once(file, begin, end), ref, self._policy, self.cancel.wait)
        with self._lock:
            self.bytes_fetched += len(data)
        return data

    def _fetch_once(self, file: HubFile, begin: int, end: int) -> bytes:
        if address := self._addresses.get(file.name):
            with self._get(address, begin, end) as response:
                if response.status_code not in _EXPIRED and not response.has_redirect_location:
                    return self._body(file, response, begin, end)
            self._addresses.pop(file.name, None)
        url = hf_hub_url(self._ref.repo_id, file.name, revision=self._ref.revision, endpoint=self._ref.endpoint)
        for _ in range(_REDIRECTS):
            with self._get(url, begin, end) as response:
                if not response.has_redirect_location:
                    data = self._body(file, response, begin, end)
                    self._addresses[file.name] = url
                    return data
                self._check_listed(file, response)
                url = urljoin(url, response.headers["Location"])
        raise EnvironmentFault(f"{self._ref}: {file.name}: redirected more than {_REDIRECTS} times")

    def _get(self, url: str, begin: int, end: int) -> AbstractContextManager[Any]:
        """The open answer to a request for a range. The user's token goes to the Hub alone, not to storages."""
        is_hub = urlsplit(url)[:2] == urlsplit(self._ref.endpoint)[:2]
        headers = build_hf_headers(
            token=None if is_hub else False, library_name="csf-tool", library_version=__version__
        )
        headers |= {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        return get_session().stream("GET", url, headers=headers, follow_redirects=False, timeout=timeout)

    def _check_listed(self, file: HubFile, response: Any) -> None:
        """Check that a redirect is one to the file that was listed, as far as its headers say."""
        expected = {
            constants.HUGGINGFACE_HEADER_X_REPO_COMMIT: self._ref.revision,
            constants.HUGGINGFACE_HEADER_X_LINKED_SIZE: str(file.size),
            constants.HUGGINGFACE_HEADER_X_LINKED_ETAG: file.sha256,
        }
        for header, wanted in expected.items():
            value = response.headers.get(header)
            if value is not None and wanted is not None and value.removeprefix("W/").strip('"') != wanted:
                raise self._changed(file, f"{header} is {value}, the listing says {wanted}")

    def _body(self, file: HubFile, response: Any, begin: int, end: int) -> bytes:
        """The body of an answer whose headers promise exactly the range; no other body is read."""
        hf_raise_for_status(response)
        where, encoding = f"{self._ref}: {file.name}", response.headers.get("Content-Encoding", "identity")
        if response.status_code == 206:
            self._check_range(file, response.headers.get("Content-Range", "").strip(), begin, end)
        elif (begin, end) != (0, file.size):
            host, status = urlsplit(str(response.url)).hostname, response.status_code
            raise EnvironmentFault(
                f"{where}: {host} ignores Range: it answers a request for {end - begin} bytes with the whole file "
                f"({status}): `hf download` the repository and give the folder"
            )
        etag = response.headers.get("ETag", "")
        known = self._etags.setdefault(str(response.url), etag)
        if etag != known:
            raise self._changed(file, f"its ETag is {etag} now, it was {known}")
        if encoding != "identity":
            raise EnvironmentFault(f"{where}: the answer is encoded as {encoding}, unasked")
        return _whole(response.iter_bytes(), end - begin)

    def _check_range(self, file: HubFile, content_range: str, begin: int, end: int) -> None:
        """Check the Content-Range of an answer."""
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", content_range)
        if not match or (int(match[1]), int(match[2])) != (begin, end - 1):
            asked = f"asked for bytes {begin}-{end - 1}, the answer is {content_range or 'no range'}"
            raise EnvironmentFault(f"{self._ref}: {file.name}: {asked}")
        if match[3] not in ("*", str(file.size)):
            raise self._changed(file, f"it is {match[3]} bytes now, it was listed with {file.size}")

    def _changed(self, file: HubFile, how: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._ref}: {file.name}: changed between two requests ({how}): start again")


def _whole(pieces: Iterator[bytes], nbytes: int) -> bytes:
    """The pieces joined, if they are `nbytes` together. Reading stops as soon as they are more."""
    data = bytearray()
    for piece in pieces:
        data += piece
        if len(data) > nbytes:
            break
    if len(data) != nbytes:
        raise WrongLength(f"{'more' if len(data) > nbytes else len(data)} bytes for a range of {nbytes}")
    return bytes(data)


@dataclass(frozen=True)
class RemoteFile:
    """A file that lies on the Hub; `head` are its first bytes, where they have been read."""

    file: HubFile
    ranges: Ranges
    head: bytes = b""

    @classmethod
    def with_head(cls, file: HubFile, ranges: Ranges) -> "RemoteFile":
        """The file with its safetensors header, read in one or two requests."""
        head = ranges.fetch(file, 0, min(file.size, HEAD_BYTES))
        end = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "little")
        if len(head) < end <= min(file.size, LENGTH_BYTES + MAX_HEADER_BYTES):
            head += ranges.fetch(file, len(head), end)
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

    def _read_ahead(self, ranges: list[tuple[int, int]]) -> "_ReadAhead":
        return _ReadAhead(ranges, lambda begin, end: self._ranges.submit(self._ranges.fetch, self._file, begin, end))

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


class _ReadAhead:
    """Blocks that cover some ranges, fetched in the order in which the ranges will be read.

    A block that has been read stays until its room is needed: it may be read twice.

    Not one of fsspec's caches: they fetch one block ahead, in the order of the file, and all that lies between two
    ranges; or they want all ranges in memory at once.
    """

    def __init__(
        self, ranges: list[tuple[int, int]], submit: "Callable[[int, int], Future[bytes]]", gap: int = GAP_BYTES
    ) -> None:
        self._submit = submit
        self._blocks = coalesced(ranges, gap)
        self._begins = [begin for begin, _ in self._blocks]
        self._unread = [0] * len(self._blocks)
        for begin, end in ranges:
            for i, part in self._parts(begin, end):
                self._unread[i] += part
        self._order = list(dict.fromkeys(i for begin, end in ranges for i, _ in self._parts(begin, end)))
        self._next = 0
        self._held: dict[int, Future[bytes]] = {}

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
        return future.result()

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
