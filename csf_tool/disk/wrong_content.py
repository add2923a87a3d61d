"""Recognising files that are not what their names say: a pointer, a web page, an error message, another format."""

import re

from csf_tool.codes import Code, Finding

HEAD_BYTES = 512
"""Bytes of a file's start that are looked at."""

JSON = "JSON"
SAFETENSORS = "a safetensors file"

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_XET_POINTER = b"# xet version"
_QUOTED_CHARACTERS = 80

_FORMATS = {
    b"PK\x03\x04": "a ZIP archive, like torch's .bin and .pt files",
    b"\x80\x02": "a Python pickle, like torch's old .bin files",
    b"GGUF": "a GGUF file (llama.cpp)",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a numpy .npy file",
    b"PAR1": "a Parquet file",
    b"%PDF-": "a PDF file",
}
"""Formats that are found under such names, by their first bytes."""

_PACKED = {
    b"\x1f\x8b": "gzip-compressed",
    b"\x28\xb5\x2f\xfd": "zstd-compressed",
    b"\xfd7zXZ\0": "xz-compressed",
    b"BZh": "bzip2-compressed",
    b"\x04\x22\x4d\x18": "lz4-compressed",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a RAR archive",
    b"LRZI": "lrzip-compressed",
}
"""Formats of packed files, by their first bytes; what is in them may well be what is wanted."""

_TAR, _TAR_BEGIN = b"ustar", 257
"""The mark in the header of a tar archive, and where it begins: the name of the first file stands before it."""


def wrong_content(head: bytes, wanted: str) -> Finding | None:
    """The content of a file whose first bytes are `head`, and the remedy; None if it may well be what is `wanted`.

    Only for files that cannot be read as what they should be: a good one may begin with any bytes.
    """
    if pointer := _pointer(head):
        return Finding(pointer, Code.GIT_POINTER)
    if head.lstrip()[:1] == b"<":
        return Finding("is a web page (HTML or XML), not the file itself: download it again", Code.WEB_PAGE)
    for magic, title in _FORMATS.items():
        if head.startswith(magic):
            return Finding(f"is {title}, not {wanted}", Code.OTHER_FORMAT)
    if packed := _packed(head):
        return Finding(f"is {packed}, not {wanted}: unpack it first", Code.OTHER_FORMAT)
    if len(head) >= 8 and not any(head):
        problem = "begins with zeros: a download reserved its space and never wrote its content; download it again"
        return Finding(problem, Code.NEVER_FILLED)
    message = _text(head, wanted)
    return Finding(message, Code.SAVED_MESSAGE) if message else None


def _packed(head: bytes) -> str | None:
    """The kind of archive or compression that a file's first bytes show."""
    if head[_TAR_BEGIN:].startswith(_TAR):
        return "a tar archive"
    return next((title for magic, title in _PACKED.items() if head.startswith(magic)), None)


def _pointer(head: bytes) -> str | None:
    """A git-LFS or Xet pointer, with what it promises."""
    lines = head.decode("ascii", "replace").splitlines()
    if head.startswith(_LFS_POINTER):
        fields = dict(line.split(" ", 1) for line in lines if " " in line)
        kind, promised = "git-LFS", f"{fields.get('oid', 'sha256:?')}, {fields.get('size', '?')} bytes"
        remedy = "run `git lfs pull`, or download the file again"
    elif head.startswith(_XET_POINTER):
        fields = dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines if "=" in line)
        kind, promised = "git-Xet", f"Xet hash {fields.get('hash', '?')}, {fields.get('filesize', '?')} bytes"
        remedy = "download the file again, with `hf download`"
    else:
        return None
    return f"is a {kind} pointer, not the file itself (it points to {promised}): {remedy}"


def _text(head: bytes, wanted: str) -> str | None:
    """An error message that was saved, in its own words."""
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # not just a last character that is cut
            return None
        text = head[: error.start].decode("utf-8")
    text = text.strip()
    is_json = text.startswith(("{", "["))
    if not text or not all(c.isprintable() or c.isspace() for c in text) or (is_json and wanted == JSON):
        return None
    quoted = text.splitlines()[0][:_QUOTED_CHARACTERS]
    what = "JSON text" if is_json else "text"
    return f"is {what}, not {wanted}: probably a saved error message. It begins {quoted!r}; download it again"
