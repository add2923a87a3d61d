"""Hashing bytes in a thread of its own, beside whatever reads, writes or compares them."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for


class Hashing:
    """SHA-256 of bytes as they pass, computed beside the reading of the next ones.

    A piece must stay as it is until the next but one is given, as `RandomReader.chunks` keeps it.
    """

    def __init__(self) -> None:
        self._hasher = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="csf-tool-hash")
        self._last = self._thread.submit(lambda: None)

    def update(self, data: memoryview) -> None:
        """Take in the next bytes."""
        self._last.result()
        self._last = self._thread.submit(self._hasher.update, data)

    def hexdigest(self) -> str:
        """The digest of all bytes given; nothing can follow."""
        wait_for([self._last])
        self._thread.shutdown()
        return self._hasher.hexdigest()
