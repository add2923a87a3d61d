"""Files that are not what their names say, by their first bytes."""

import gzip
import io
import pickle
import zipfile

import pytest

from csf_tool.disk.disguises import HEAD_BYTES, JSON, SAFETENSORS, disguise
from tests.building import LFS_POINTER, Tensor, shard_bytes


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", b"x")
    return file.getvalue()


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (LFS_POINTER, "is a git-LFS pointer, not the file itself (it stands for sha256:4d7a214614ab2935"),
        (b"version https://git-lfs.github.com/spec/v1", "(it stands for sha256:?, ? bytes)"),
        (b"version https://git-lfs.github.com/spec/v9\n\xff", "(it stands for sha256:?, ? bytes)"),
        (b"# xet version 0\nfilesize = 12\nhash = 'ab'\n", "is a git-Xet pointer, not the file itself (it stands for"),
        (b"\n\n <!DOCTYPE html>", "is a web page (HTML or XML), not the file itself: download it again"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "is a web page"),
        (zipped(), "is a ZIP archive, as torch's .bin and .pt files are, not a safetensors file"),
        (pickle.dumps({}, protocol=2), "is a Python pickle"),
        (b"GGUF\3\0\0\0", "is a GGUF file"),
        (gzip.compress(b"x", mtime=0), "is gzip-compressed, not a safetensors file"),
        (bytes(HEAD_BYTES), "begins with zeros: a download made room for it and never filled it"),
        (b"Entry not found\n", "is text, not a safetensors file: an error message that was saved? It begins 'Entry no"),
        (b"version 1", "is text, not a safetensors file"),
        (
            b'{"error":"gated"}',
            """is JSON text, not a safetensors file: an error message that was saved? It begins '{"e""",
        ),
        ("Zugriff verweigert: ü".encode() * 40, "is text"),
    ],
)
def test_what_stands_in_a_shards_place(head: bytes, reason: str) -> None:
    found = disguise(head[:HEAD_BYTES], SAFETENSORS)
    assert found is not None
    assert reason in found
    assert "\n" not in found


@pytest.mark.parametrize(
    "head", [b"", b"\x10\0\0\0\0\0\0", b"\xff" * 64, shard_bytes([Tensor("a", "U8", (1,), b"x")]), b"\1\2\3 text"]
)
def test_nothing_is_said_of_other_bytes(head: bytes) -> None:
    assert disguise(head, SAFETENSORS) is None


@pytest.mark.parametrize("head", [b"{", b" [1, 2", b"\xef\xbb\xbf{}"])
def test_json_that_is_only_broken_is_no_disguise(head: bytes) -> None:
    assert disguise(head, JSON) is None


def test_long_messages_are_quoted_in_brief_and_on_one_line() -> None:
    found = disguise(b"Access denied. " * 30 + b"\nmore", SAFETENSORS)
    assert found is not None
    assert len(found) < 220
