"""Files that are not what their names say, by their first bytes."""

import bz2
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile

import pytest

from csf_tool.codes import Code
from csf_tool.disk.wrong_content import HEAD_BYTES, JSON, SAFETENSORS, wrong_content
from tests.building import LFS_POINTER, Tensor, shard_bytes


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("data.pkl"), b"x")  # without the time
    return file.getvalue()


def tarred() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.safetensors"))
    return file.getvalue()


@pytest.mark.parametrize(
    ("head", "reason", "code"),
    [
        (
            LFS_POINTER,
            "is a git-LFS pointer, not the file itself (it points to sha256:4d7a214614ab2935",
            Code.GIT_POINTER,
        ),
        (b"version https://git-lfs.github.com/spec/v1", "(it points to sha256:?, ? bytes)", Code.GIT_POINTER),
        (b"version https://git-lfs.github.com/spec/v9\n\xff", "(it points to sha256:?, ? bytes)", Code.GIT_POINTER),
        (
            b"# xet version 0\nfilesize = 12\nhash = 'ab'\n",
            "is a git-Xet pointer, not the file itself (it points to",
            Code.GIT_POINTER,
        ),
        (b"\n\n <!DOCTYPE html>", "is a web page (HTML or XML), not the file itself: download it again", Code.WEB_PAGE),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "is a web page", Code.WEB_PAGE),
        (zipped(), "is a ZIP archive, like torch's .bin and .pt files, not a safetensors file", Code.OTHER_FORMAT),
        (pickle.dumps({}, protocol=2), "is a Python pickle", Code.OTHER_FORMAT),
        (b"GGUF\3\0\0\0", "is a GGUF file", Code.OTHER_FORMAT),
        (tarred(), "is a tar archive, not a safetensors file: unpack it first", Code.OTHER_FORMAT),
        (
            gzip.compress(tarred(), mtime=0),
            "is gzip-compressed, not a safetensors file: unpack it first",
            Code.OTHER_FORMAT,
        ),
        (bz2.compress(tarred()), "is bzip2-compressed, not a safetensors file: unpack it first", Code.OTHER_FORMAT),
        (lzma.compress(tarred()), "is xz-compressed, not a safetensors file: unpack it first", Code.OTHER_FORMAT),
        (b"\x28\xb5\x2f\xfd\4\0\1", "is zstd-compressed, not a safetensors file: unpack it first", Code.OTHER_FORMAT),
        (
            bytes(HEAD_BYTES),
            "begins with zeros: a download reserved its space and never wrote its content",
            Code.NEVER_FILLED,
        ),
        (
            b"Entry not found\n",
            "is text, not a safetensors file: probably a saved error message. It begins 'Entry no",
            Code.SAVED_MESSAGE,
        ),
        (b"version 1", "is text, not a safetensors file", Code.SAVED_MESSAGE),
        (
            b'{"error":"gated"}',
            """is JSON text, not a safetensors file: probably a saved error message. It begins '{"e""",
            Code.SAVED_MESSAGE,
        ),
        ("Zugriff verweigert: ü".encode() * 40, "is text", Code.SAVED_MESSAGE),
    ],
)
def test_what_stands_in_a_shards_place(head: bytes, reason: str, code: Code) -> None:
    found = wrong_content(head[:HEAD_BYTES], SAFETENSORS)
    assert found is not None
    assert found.code is code
    assert reason in found.problem
    assert "\n" not in found.problem


@pytest.mark.parametrize(
    "head", [b"", b"\x10\0\0\0\0\0\0", b"\xff" * 64, shard_bytes([Tensor("a", "U8", (1,), b"x")]), b"\1\2\3 text"]
)
def test_nothing_is_said_of_other_bytes(head: bytes) -> None:
    assert wrong_content(head, SAFETENSORS) is None


@pytest.mark.parametrize("head", [b"{", b" [1, 2", b"\xef\xbb\xbf{}"])
def test_json_that_is_only_broken_is_no_wrong_content(head: bytes) -> None:
    assert wrong_content(head, JSON) is None


def test_long_messages_are_quoted_in_brief_and_on_one_line() -> None:
    found = wrong_content(b"Access denied. " * 30 + b"\nmore", SAFETENSORS)
    assert found is not None
    assert len(found.problem) < 220
