"""Lists of hashes in every form that is read: lines, PowerShell's tables, CSV, JSON listings, aria2's input files."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from csf_tool.checkpoint.hash_lines import DIGEST, Listed, Parsed, lines_of, parse_lines
from csf_tool.codes import Code
from csf_tool.disk.json_files import is_count, parse_json
from csf_tool.disk.wrong_content import HEAD_BYTES, wrong_content
from csf_tool.errors import CheckpointError
from csf_tool.text import brief

FORMS = (
    "csf-tool reads what sha256sum, shasum, openssl dgst, Get-FileHash, rclone, git lfs ls-files -l, aria2 and "
    "`hf models ls ORG/NAME -R --json` write (docs/identity.md)"
)
"""The end of a refusal."""

_HEX = re.compile(DIGEST)
_NAMED_AFTER_FILE = re.compile(r"(.+)\.sha-?256(?:sum)?(?:\.txt)?", re.IGNORECASE | re.DOTALL)
_GIT_SHA1 = re.compile(r"[0-9a-fA-F]{40}")
_SHA256 = re.compile(r"sha-?(?:2-)?256", re.IGNORECASE)

_TABLE_HEAD = re.compile(r"Algorithm +Hash +Path")
_TABLE_ROW = re.compile(rf"SHA256 +{DIGEST} +(?P<name>.+)")
_RULE = re.compile(r"[- ]*")
_PAIR = re.compile(r"(Algorithm|Hash|Path) *: (.*)")

_NAME_KEYS = ("rfilename", "Path", "path", "Name", "name", "file", "filename")
_DIGEST_KEYS = ("sha256", "SHA256", "sha-256")
_ENTRY_KEYS = ("siblings", "files")
_NAME_COLUMNS = ("path", "filename", "file", "name")
_DIGEST_COLUMNS = ("sha256", "sha-256", "hash")
_HASHDEEP = "%%%% "
_PREAMBLES = ("#", "%%%% HASHDEEP")
_LONGEST_HEAD = 1000


def parse_list(raw: bytes, where: str) -> Parsed:
    """The entries of a list in any form; `where` is its name, which is a file's where the list is a hash alone."""
    text = _decoded(raw)
    if (bare := _HEX.fullmatch(text.strip())) and (named := _NAMED_AFTER_FILE.fullmatch(where)):
        return Parsed([Listed(named[1], bare["digest"].lower(), 1)])
    lines = lines_of(text)
    if text.lstrip().startswith(("[", "{")):
        return _parse_json(text, where)
    for is_it, parse in _FORMS:
        if any(map(is_it, lines)):
            return parse(text, where)
    head = next((i for i, line in enumerate(lines) if line and not line.startswith(_PREAMBLES)), 0)
    if columns := _columns(text.split("\n")[head].strip("\r")) or _columns(lines[head]):
        return _parse_csv(text, where, head, *columns)
    return parse_lines(text, where)


def _decoded(raw: bytes) -> str:
    """The text: names keep bytes that are no UTF-8, as paths do; byte order marks go; PowerShell writes UTF-16.

    Where no line ends in a new line, the CRs of old systems end them.
    """
    text = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        with suppress(UnicodeDecodeError):
            text = raw.decode("utf-16")
    return text if "\n" in text or "\0" in text else text.replace("\r", "\n")


def what_it_is(raw: bytes) -> str:
    """The content of a file that is no list, as its start tells."""
    text = _decoded(raw)
    lines = [line for line in lines_of(text) if line and not line.startswith("#")]
    if not lines:
        return "holds only comments" if text.strip() else "is empty"
    found = wrong_content(raw[:HEAD_BYTES], "a list of hashes")
    if found and found.code is not Code.SAVED_MESSAGE:
        return found.problem
    if any(line.endswith((": OK", ": FAILED", ": FAILED open or read")) for line in lines):
        return "is a report of sha256sum --check, not a list of hashes"
    if re.fullmatch(r"[0-9a-f]{10} [*-] .+", lines[0]):
        return "has only the first 10 digits of each hash: run git lfs ls-files with -l"
    if re.search(r"(?:^|[ =])[0-9A-Za-z+/_-]{43}=(?: |$)", lines[0]):
        return "has its hashes in base64, but csf-tool reads hex digits"
    return f"begins with {brief(lines[0][:60])}, which is not a SHA-256 with a file name"


# PowerShell


def _parse_table(text: str, where: str) -> Parsed:
    """The table of `Get-FileHash`, which cuts long paths short."""
    parsed, is_inside = Parsed(), False
    for number, line in enumerate(lines_of(text), 1):
        if _TABLE_HEAD.fullmatch(line):
            is_inside = True
        elif not is_inside or _RULE.fullmatch(line) or _is_other_kind(line.split(" ")[0]):
            continue
        elif not (match := _TABLE_ROW.fullmatch(line)):
            parsed.damaged(number, where, "it is not a row of Get-FileHash's table")
        elif match["name"].endswith(("...", "\u2026")):
            parsed.damaged(number, where, "its path is cut short: write the list with `| Export-Csv FILE`")
        else:
            parsed.found.append(Listed(match["name"], match["digest"].lower(), number))
    return parsed


def _parse_pairs(text: str, where: str) -> Parsed:
    """The output of `Get-FileHash | Format-List`; long paths go on in the next line, indented."""
    parsed, row, first, key = Parsed(), dict[str, str](), 0, ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        if match := _PAIR.fullmatch(line.strip("\r")):
            key, row[match[1]], first = match[1], match[2], first or number
        elif row and line.startswith(" " * 12):
            row[key] += line.strip()
        elif row and not line.strip():
            _take_row(parsed, row.get("Algorithm", ""), row.get("Hash", ""), row.get("Path", ""), first, where)
            row, first = {}, 0
        elif line.strip():
            parsed.damaged(number, where)
    return parsed


def _is_other_kind(word: str) -> bool:
    return bool(re.fullmatch(r"(?:MD5|SHA1|SHA384|SHA512|MACTripleDES|RIPEMD160)", word, re.IGNORECASE))


def _take_row(parsed: Parsed, algorithm: str, digest: str, name: str, line: int, where: str) -> None:
    """Take a row of columns that may name the algorithm; one of another algorithm says nothing."""
    if _is_other_kind(algorithm):
        parsed.instead = f"holds {algorithm} hashes, not SHA-256"
    elif _HEX.fullmatch(digest.strip()) and name and (not algorithm or _SHA256.fullmatch(algorithm)):
        parsed.found.append(Listed(name, digest.strip().lower(), line))
    else:
        parsed.damaged(line, where)


# CSV


def _columns(line: str) -> tuple[str, list[str]] | None:
    """The delimiter and the columns of the head of a CSV file with hashes; None for any other line."""
    if len(line) > _LONGEST_HEAD or line.startswith("#"):
        return None
    for delimiter in (",", ";", "\t"):
        try:
            row = next(csv.reader([line.removeprefix(_HASHDEEP)], delimiter=delimiter), [])
        except csv.Error:  # a carriage return inside, say
            return None
        names = [name.strip().lower() for name in row]
        if len(names) > 1 and set(names) & set(_DIGEST_COLUMNS) and set(names) & set(_NAME_COLUMNS):
            return delimiter, names
    return None


def _parse_csv(text: str, where: str, begin: int, delimiter: str, names: list[str]) -> Parsed:
    """Rows under a head that names the columns, as of `Export-Csv`; hashdeep's have no quotes, and comments."""
    parsed, lines = Parsed(), text.split("\n")
    at = {role: next((names.index(name) for name in wanted if name in names), -1) for role, wanted in _ROLES.items()}
    if lines[begin].startswith(_HASHDEEP):
        numbered = enumerate(lines[begin + 1 :], begin + 2)
        rows = [(i, line.strip("\r").split(",", len(names) - 1)) for i, line in numbered if line[:1] not in ("", "#")]
    else:
        reader = csv.reader(io.StringIO("\n".join(lines[begin + 1 :])), delimiter=delimiter)
        try:
            rows = [(begin + 1 + reader.line_num, row) for row in reader if row]
        except csv.Error as error:
            parsed.damaged(begin + 1 + reader.line_num, where, str(error))
            return parsed
    for line, row in rows:
        cells = {role: row[i] if 0 <= i < len(row) else "" for role, i in at.items()}
        _take_row(parsed, cells["algorithm"], cells["digest"], cells["name"], line, where)
    return parsed


_ROLES = {"algorithm": ("algorithm",), "digest": _DIGEST_COLUMNS, "name": _NAME_COLUMNS}
"""The columns of a CSV file that are read, by what they are called."""


# aria2


def _parse_aria2(text: str, where: str) -> Parsed:
    """An input file of aria2: addresses, and below them, indented, the name and the checksum."""
    parsed, options, uri = Parsed(), dict[str, str](), ""
    for number, line in enumerate([*text.split("\n"), "end:"], 1):
        key, is_option, value = line.strip().partition("=")
        if line[:1] in (" ", "\t") and is_option:
            options[key] = value
            if key == "checksum":
                options["line"] = str(number)
        elif line.strip() and not line.startswith("#"):
            _take_download(parsed, uri, options, where)
            options, uri = {}, line.split("\t")[0].strip()
    return parsed


_ADDRESS = re.compile(r"[a-z]+://[^/?#]*([^?#]*).*")
"""Any address and its path; `urlsplit` refuses some."""


def _take_download(parsed: Parsed, uri: str, options: dict[str, str], where: str) -> None:
    kind, is_there, digest = options.get("checksum", "").partition("=")
    if not is_there or not _SHA256.fullmatch(kind):
        return
    name = options.get("out") or unquote(_ADDRESS.sub(r"\1", uri)).rpartition("/")[2]
    path = f"{options['dir'].rstrip('/')}/{name}" if options.get("dir") and name else name
    _take_row(parsed, "", digest, path, int(options["line"]), where)


# JSON


def _parse_json(text: str, where: str) -> Parsed:
    """A listing: of the Hub, of rclone or git-lfs, of PowerShell's ConvertTo-Json, or an object of name and hash."""
    parsed = Parsed()
    try:
        document = parse_json(text.encode("utf-8", "surrogateescape"), where)
    except CheckpointError as error:
        try:  # an object a line
            raws = [line.encode("utf-8", "surrogateescape") for line in text.split("\n") if line.strip()]
            document = [parse_json(raw, where) for raw in raws]
        except CheckpointError:
            parsed = parse_lines(text, where)
            parsed.instead = parsed.instead or ("" if parsed.found else f"is {error.problem}")
            return parsed
    for number, entry in enumerate(_entries(document), 1):
        if listed := _entry(entry):
            parsed.found.append(listed)
        elif _hints_at_sha256(entry):
            parsed.damaged(number, where, "it has no file name or no valid hash", "entry")
    if not parsed.found:
        parsed.instead = "is JSON, but has no file name with its SHA-256"
    return parsed


def _entries(document: Any) -> list[Any]:
    """The entries of a listing, which may stand in an object that says more."""
    if isinstance(document, dict):
        inside = next((document[key] for key in _ENTRY_KEYS if isinstance(document.get(key), list)), None)
        if inside is not None:
            return list(inside)
        if all(isinstance(value, str) for value in document.values()) and not set(document) & set(_NAME_KEYS):
            return [{"name": name, "sha256": digest} for name, digest in document.items()]
        return [document]
    return list(document) if isinstance(document, list) else []


def _entry(entry: Any) -> Listed | None:
    """An entry with a name and a SHA-256, or the hash that git gives small files on the Hub."""
    if not isinstance(entry, dict):
        return None
    name = next((entry[key] for key in _NAME_KEYS if isinstance(entry.get(key), str) and entry[key]), None)
    size = entry.get("size", entry.get("Size"))
    size = size if is_count(size) else None
    for digest in _digests(entry):
        if name and isinstance(digest, str) and _HEX.fullmatch(digest):
            return Listed(name, digest.lower(), 0, size=size)
        return None
    git = next((entry[key] for key in ("blobId", "blob_id", "oid") if isinstance(entry.get(key), str)), "")
    is_file = entry.get("type", "file") == "file" and not entry.get("lfs")
    if name and is_file and _GIT_SHA1.fullmatch(git):
        return Listed(name, git.lower(), 0, "git-sha1", size)
    return None


def _digests(entry: dict[str, Any]) -> Iterator[Any]:
    """The values that stand where a SHA-256 belongs, in the entries of each program."""
    for inside in (entry, entry.get("lfs"), entry.get("Hashes"), entry.get("hashes")):
        if isinstance(inside, dict):
            yield from (inside[key] for key in _DIGEST_KEYS if key in inside)
    if isinstance(lfs := entry.get("lfs"), dict) and "oid" in lfs:
        yield lfs["oid"]
    if entry.get("oid_type") == "sha256":
        yield entry.get("oid")
    if isinstance(kind := entry.get("Algorithm"), str) and _SHA256.fullmatch(kind):
        yield entry.get("Hash")


def _hints_at_sha256(entry: Any) -> bool:
    return isinstance(entry, dict) and any(True for _ in _digests(entry))


_FORMS: tuple[tuple[Callable[[str], object], Callable[[str, str], Parsed]], ...] = (
    (_TABLE_HEAD.fullmatch, _parse_table),
    (re.compile(r"Algorithm *: \S+").fullmatch, _parse_pairs),
    (re.compile(r"checksum=\S+").fullmatch, _parse_aria2),
)
"""Forms by a line that no other form has; without one, it is lines of a hash and a name."""
