"""Whether the files of a checkpoint hold CSF streams: a look at their headers' bytes, with nothing imported for it."""

import os
import re
from collections.abc import Iterable

_LENGTH_BYTES = 8
_MOST_BYTES = 256 << 20
"""Longest header that is looked into; safetensors itself reads none of 100 MB."""

_STREAM = re.compile(rb"\.([a-z0-9]+)_csf_(?:fixed|exceptions)\"")


def formats_in(files: Iterable[str | os.PathLike[str]]) -> set[str]:
    """The names of the formats whose streams these safetensors files have.

    A file that cannot be read has none here: vLLM will say what is wrong with it.
    """
    formats: set[str] = set()
    for path in files:
        header = _header_of(path)
        if b"_csf_" in header:  # a hundred times as fast as the expression
            formats |= {name.decode() for name in _STREAM.findall(header)}
    return formats


def _header_of(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            return file.read(length) if length <= _MOST_BYTES else b""
    except OSError:
        return b""
