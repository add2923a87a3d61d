"""Files of one commit on the Hub, in byte ranges or whole: fetched in parallel, checked to be what was asked for.

Every range is one GET that names its bytes, of one commit. A file's address is asked for once: the Hub answers
with a redirect to where the bytes lie, which is used until it is refused, so that reading a file in a thousand
pieces is one request to the Hub and a thousand to its storage.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

from huggingface_hub import constants, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session

from csf_tool.cancel import CancelToken
from csf_tool.errors import EnvironmentFault
from csf_tool.hub.errors import HubRef, Refused, RetryPolicy, WrongLength, with_retries
from csf_tool.hub.threads import Answer, NetworkThreads
from csf_tool.version import __version__

CONNECTIONS = 16
"""Ranges in flight together, of all files of a repository."""

MAX_ANSWER_BYTES = 32 << 20
"""Longest listing that is read: one of more than a hundred thousand files, and ten times what real ones have."""

_MAX_REFUSAL_BYTES = 64 << 10
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
    """Fetches what one repository has: ranges of the files of a commit, whole small files, the listing."""

    def __init__(self, ref: HubRef, policy: RetryPolicy) -> None:
        self._ref = ref
        self._policy = policy
        self._addresses: dict[str, str] = {}
        self._etags: dict[str, str] = {}
        self._threads = NetworkThreads(CONNECTIONS)
        self._lock = threading.Lock()
        self.bytes_fetched = 0

    @property
    def cancel(self) -> CancelToken:
        """Cancelled, what waits for an answer or a retry gives up: an interrupted process would wait for it."""
        return self._threads.cancel

    def submit(self, work: Callable[..., Any], *args: Any) -> Answer:
        """Have `work` done beside others."""
        return self._threads.submit(work, *args)

    def at(self, commit: str) -> "Ranges":
        """The same of a commit that is known by now."""
        return Ranges(replace(self._ref, revision=commit), self._policy)

    def listing(self, url: str) -> bytes:
        """All of an answer that is no file.

        Raises:
            UsageError: there is no such repository or revision.
            EnvironmentFault: it cannot be had, or is longer than any.
        """
        return bytes(self._retried(self._ref, lambda: self._listing_once(url)))

    def fetch(self, file: HubFile, begin: int, end: int) -> bytes:
        """The bytes `begin` to `end` of a file; not to be called in a thread of these.

        Raises:
            CheckpointError: the Hub lists the file and does not have it.
            EnvironmentFault: they cannot be had, or are no longer those of the file that was listed.
        """
        return bytes(self.ask(file, begin, end).result())

    def ask(self, file: HubFile, begin: int, end: int) -> Answer:
        """The same, once it is there."""
        return self.submit(self.fetch_here, file, begin, end)

    def fetch_here(self, file: HubFile, begin: int, end: int, *, whole: bool = False) -> bytes:
        """The same in this thread, which is one of these; with `whole` by a request that names no range."""
        if begin == end:
            return b""
        ref = replace(self._ref, file=file.name)
        data: bytes = with_retries(
            lambda: self._fetch_once(file, begin, end, whole), ref, self._policy, self.cancel.wait
        )
        if not whole:
            with self._lock:
                self.bytes_fetched += len(data)
        return data

    def _retried(self, ref: HubRef, action: Callable[[], bytes]) -> bytes:
        answer = self.submit(lambda: with_retries(action, ref, self._policy, self.cancel.wait))
        return bytes(answer.result())

    def _listing_once(self, url: str) -> bytes:
        for _ in range(_REDIRECTS):
            with self._get(url, {}, constants.HF_HUB_ETAG_TIMEOUT) as response:
                if not response.has_redirect_location:
                    self._require_success(response)
                    return self._read(response, MAX_ANSWER_BYTES)
                url = urljoin(url, response.headers["Location"])
        raise self._redirected("")

    def _fetch_once(self, file: HubFile, begin: int, end: int, whole: bool) -> bytes:
        headers = {} if whole else {"Range": f"bytes={begin}-{end - 1}"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        if address := self._addresses.get(file.name):
            with self._get(address, headers, timeout) as response:
                if response.status_code not in _EXPIRED and not response.has_redirect_location:
                    return self._body(file, response, begin, end)
            self._addresses.pop(file.name, None)
        url = hf_hub_url(self._ref.repo_id, file.name, revision=self._ref.revision, endpoint=self._ref.endpoint)
        for _ in range(_REDIRECTS):
            with self._get(url, headers, timeout) as response:
                if not response.has_redirect_location:
                    data = self._body(file, response, begin, end)
                    self._addresses[file.name] = url
                    return data
                self._check_listed(file, response)
                url = urljoin(url, response.headers["Location"])
        raise self._redirected(f": {file.name}")

    def _redirected(self, file: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._ref}{file}: redirected more than {_REDIRECTS} times")

    @contextmanager
    def _get(self, url: str, headers: dict[str, str], timeout: float) -> Iterator[Any]:
        """The open answer to a request. Only the Hub itself is told who asks."""
        is_hub = urlsplit(url)[:2] == urlsplit(self._ref.endpoint)[:2]
        mine = build_hf_headers(token=None if is_hub else False, library_name="csf-tool", library_version=__version__)
        if not mine.get("authorization", "").isascii() or not mine.get("authorization", "").isprintable():
            problem = (
                "the token (HF_TOKEN, or of `hf auth login`) contains characters that are not allowed: set it again"
            )
            raise EnvironmentFault(f"{self._ref}: {problem}")
        headers = mine | {"Accept-Encoding": "identity"} | headers
        asked = get_session().stream("GET", url, headers=headers, follow_redirects=False, timeout=timeout)
        with self._threads.awaited(f"{self._ref}: {urlsplit(url).hostname}"):
            response = asked.__enter__()
        try:
            yield response
        finally:
            asked.__exit__(None, None, None)

    def _require_success(self, response: Any) -> None:
        """Check that a server answers with what was asked for. Of what else it says a little is read."""
        status = response.status_code
        if status not in (200, 206):
            body = self._read(response, _MAX_REFUSAL_BYTES, cut=True) if status >= 400 else b""
            raise Refused(status, response.headers, body)
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise EnvironmentFault(
                f"{self._ref}: the answer is encoded as {encoding[:40]}, which csf-tool did not ask for"
            )

    def _read(self, response: Any, most: int, *, cut: bool = False) -> bytes:
        """The body of an answer, up to `most` bytes; of what is longer no more is read."""
        data, policy = bytearray(), self._policy
        since, had = time.monotonic(), 0
        for piece in response.iter_raw():
            data += piece
            if len(data) > most:
                break
            self.cancel.check()
            if time.monotonic() - since > policy.slow_seconds:
                if len(data) - had < policy.slowest_bytes:
                    raise WrongLength(f"{len(data) - had} bytes in {policy.slow_seconds:.0f} seconds")
                since, had = time.monotonic(), len(data)
        if len(data) > most and not cut:
            raise EnvironmentFault(
                f"{self._ref}: {self._ref.endpoint} answers with more than {most} bytes, which csf-tool does not read"
            )
        return bytes(data[:most])

    def _check_listed(self, file: HubFile, response: Any) -> None:
        """Check that a redirect is one to the file that was listed, as far as its headers say."""
        expected = {
            constants.HUGGINGFACE_HEADER_X_REPO_COMMIT: self._ref.revision,
            constants.HUGGINGFACE_HEADER_X_LINKED_SIZE: str(file.size),
            constants.HUGGINGFACE_HEADER_X_LINKED_ETAG: file.sha256,
        }
        for header, wanted in expected.items():
            found = response.headers.get(header)
            if found is not None and wanted is not None and found.removeprefix("W/").strip('"') != wanted:
                raise self._changed(file, f"{header} is {found[:100]}, but the listing has {wanted}")

    def _body(self, file: HubFile, response: Any, begin: int, end: int) -> bytes:
        """The body of an answer, once its headers promise exactly the range. Of any other nothing is read."""
        self._require_success(response)
        where = f"{self._ref}: {file.name}"
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
            raise self._changed(file, f"its ETag is {etag[:100]} now, but was {known[:100]}")
        data = self._read(response, end - begin + 1, cut=True)
        if len(data) != end - begin:
            found = "more" if len(data) > end - begin else len(data)
            raise WrongLength(f"{found} bytes arrived for a range of {end - begin}")
        return data

    def _check_range(self, file: HubFile, said: str, begin: int, end: int) -> None:
        """Check what an answer says that it is a part of."""
        match = re.fullmatch(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", said)
        if not match or (int(match[1]), int(match[2])) != (begin, end - 1):
            asked = f"the answer to a request for bytes {begin}-{end - 1} is {said[:100] or 'no range'}"
            raise EnvironmentFault(f"{self._ref}: {file.name}: {asked}")
        if match[3] not in ("*", str(file.size)):
            raise self._changed(file, f"it has {match[3]} bytes now, but was listed with {file.size}")

    def _changed(self, file: HubFile, how: str) -> EnvironmentFault:
        return EnvironmentFault(f"{self._ref}: {file.name}: changed between two requests ({how}): start again")
