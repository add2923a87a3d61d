"""Running commands on a folder that may be anything, and what must hold whatever it is."""

import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType

from safetensors import safe_open
from typer.testing import CliRunner

from csf_tool.cli import app
from tests.building import BITS
from tests.fuzz import folders
from tests.fuzz.folders import Folder, Link
from tests.oracle import (
    Stored,
    Tensors,
    is_container,
    left_aside,
    logical_tensors,
    shard_names,
    stored_tensors,
    tensors_of_file,
)

MOST_SECONDS = 20
"""No command on a checkpoint of a few kilobytes takes a hundredth of it: what does has hung."""

MOST_BYTES = 1 << 30
"""Address space that a command may take beyond what the interpreter has: a claimed size is not believed."""

COMMANDS = {
    "stats": "stats SOURCE",
    "stats by layer": "stats SOURCE --by layer",
    "stats by shard as JSON": "stats SOURCE --by shard --json",
    "stats for cards": "stats SOURCE --by shard --markdown",
    "ls": "ls SOURCE",
    "ls stored": "ls SOURCE --stored",
    "ls as JSON": "ls SOURCE --json",
    "verify": "verify SOURCE --device cpu --jobs 2",
    "verify as JSON": "verify SOURCE --device cpu --json",
    "verify by a list": "verify SOURCE --manifest LIST --device cpu --jobs 2",
    "verify by a list in seconds": "verify SOURCE --manifest LIST --quick --json",
    "verify against": "verify SOURCE --against REFERENCE --tensors-only --device cpu --jobs 2",
    "verify the reference against": "verify REFERENCE --against SOURCE --tensors-only --device cpu --jobs 2",
    "verify against everything": "verify SOURCE --against REFERENCE --device cpu --jobs 2",
    "expand": "expand SOURCE DEST --device cpu --jobs 2",
    "expand part": "expand SOURCE DEST --shards 1/2 --device cpu --json",
    "expand as dry run": "expand SOURCE DEST --dry-run --device cpu",
    "compress as dry run": "compress SOURCE DEST --keep-larger --dry-run --json --device cpu",
    "finish": "finish SOURCE DEST",
    "compress": "compress SOURCE DEST --keep-larger --device cpu",
    "compress all": "compress SOURCE DEST --include * --to container --device cpu --json",
    "to hf": "convert SOURCE DEST --to hf",
    "to hf by links": "convert SOURCE DEST --to hf --link --json",
    "to container": "convert SOURCE DEST --to container",
    "to serving": "convert SOURCE DEST --to serving",
    "inspect": "inspect SOURCE",
    "inspect one plane": "inspect SOURCE *layers.0.*gate_proj* --values",
    "inspect one plane as JSON": "inspect SOURCE *layers.0.*down_proj* --json",
    "plan": "plan SOURCE --tp 2 --gpu-memory 1GiB",
    "identity": "identity SOURCE",
    "identity by hashes": "identity SOURCE --hash --json",
    "identity by sizes": "identity SOURCE --by sizes",
}


class Hang(BaseException):
    """Raised in a command that does not end."""


@dataclass(frozen=True)
class Workplace:
    """The folders that commands run among; `outside` holds what hostile links and names point at."""

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "source"

    @property
    def reference(self) -> Path:
        return self.root / "reference"

    @property
    def destination(self) -> Path:
        return self.root / "destination"

    def surroundings(self) -> Folder:
        """Everything but the destination."""
        found = folders.read(self.root)
        return {name: entry for name, entry in found.items() if name.partition("/")[0] != "destination"}


@contextmanager
def workplace(source: Folder, reference: Folder) -> Iterator[Workplace]:
    """A workplace in memory where that can be."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        place = Workplace(Path(folder))
        folders.write(place.source, source)
        folders.write(place.reference, reference)
        folders.write(place.root / "outside", {"secret": b"not the checkpoint's", "x.safetensors": b"x"})
        yield place


@contextmanager
def _bounded() -> Iterator[None]:
    import resource  # here, so that Windows can import this module to skip its tests

    def stop(_: int, __: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    taken = _address_space() if sys.platform == "linux" else 0
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    if taken:
        resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, hard))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def _address_space() -> int:
    """Bytes of address space that this process has."""
    return int(Path("/proc/self/status").read_text().partition("VmSize:")[2].split()[0]) * 1024


def run(place: Workplace, name: str, file: str = "") -> int:
    """Run a command of COMMANDS, on the folder or on one file of it; its exit code.

    Whatever the source is, this holds: an exit code of the contract that blames no machine, no traceback, nothing on
    the terminal that acts on it, and nothing written outside the destination. What it calls equal is equal.
    """
    folders.remove(place.destination)
    words = {"SOURCE": str(place.source / file), "REFERENCE": str(place.reference), "DEST": str(place.destination)}
    words["LIST"] = str(place.source / "SHA256SUMS")
    arguments = [words.get(word, word) for word in COMMANDS[name].split()]
    before = place.surroundings()
    with _bounded():
        result = CliRunner().invoke(app, arguments)
    output = result.stdout + result.stderr
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    assert "Traceback" not in output, output
    assert "internal error" not in output, output
    assert result.exit_code in (0, 1, 2) or _is_not_here(name, output), f"exit code {result.exit_code}: {output}"
    assert (result.exit_code == 0) or output.strip(), "a failure without a word"
    assert not (acting := {c for c in output if acts_on_a_terminal(c)}), (acting, output)
    assert not (raw := [tabbed for tabbed in tabbed_texts(place) if tabbed in output]), (raw, output)
    assert all(len({line.count("\t") for line in table}) == 1 for table in _tables(output)), output
    assert place.surroundings() == before, "something outside the destination changed"
    assert "dry run" not in name or not place.destination.exists(), "a dry run has written"
    written = folders.read(place.destination) if place.destination.is_dir() else {}
    assert not any(isinstance(entry, Link) for entry in written.values()), "a link in the destination"
    if result.exit_code == 0:
        _hold_to_its_word(place, name, place.source / file, output)
    return result.exit_code


def _is_not_here(name: str, output: str) -> bool:
    """Whether a command says rightly that it could not do its work here: parts are missing, a new name is too long."""
    return (name == "finish" and "not complete: " in output) or "cannot be written: File name too long" in output


def tabbed_texts(place: Workplace) -> set[str]:
    """Names of files and texts of JSON with a tab in them, which would make two cells of one in a table."""
    found = {name for root in (place.source, place.reference) for name in folders.read(root) if "\t" in name}
    parts = {part for name in found for part in name.split("/") if "\t" in part}
    for root in (place.source, place.reference):
        for entry in folders.read(root).values():
            if isinstance(entry, bytes):
                parts |= {text for raw in _TABBED.findall(entry) if "\t" in (text := _text_of(raw))}
    return {part for part in parts if part.strip()}


_TABBED = re.compile(rb'"[^"\\\n]{0,99}(?:\\t|\\u0009|\t)(?:[^"\\\n]|\\.){0,99}"')
"""A text of JSON that has a tab, as an escape or as it is."""


def _text_of(raw: bytes) -> str:
    try:
        return str(json.loads(raw, strict=False))
    except ValueError:
        return ""


def _tables(output: str) -> list[list[str]]:
    """The lines of each table: those with tabs between their cells that follow one another."""
    blocks = (list(block) for is_row, block in groupby(output.split("\n"), lambda line: "\t" in line) if is_row)
    return list(blocks)


def acts_on_a_terminal(char: str) -> bool:
    """Whether a character is a control other than a new line, hides text, or turns its direction.

    A tab stands between the cells of tables; `tabbed_texts` and `_tables` look for others.
    """
    return char not in "\n\t" and (unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp"))


def _hold_to_its_word(place: Workplace, name: str, source: Path, output: str) -> None:
    """A command that ended well: what it says, or what it wrote, must be so by the oracle."""
    if "by a list" in name:
        listed = right_hashes(place.source / "SHA256SUMS")
        assert listed, "a list that says nothing was believed"
        if name == "verify by a list":
            assert all(hashlib.sha256((place.source / n).read_bytes()).hexdigest() == d for n, d in listed.items())
    elif "against" in name:
        _same(logical_tensors(source), logical_tensors(place.reference))
        if name == "verify against everything" and source.is_dir():  # a file has nothing beside it
            assert _beside(source) == _beside(place.reference)
            assert all(Path(shard).name in output for shard in left_aside(source)), "left aside without a word"
    elif name in ("expand", "compress", "compress all"):
        written = _written(place, source)
        _same(logical_tensors(place.destination, written), logical_tensors(source))
        for path in (place.destination / shard for shard in written):
            tensors = tensors_of_file(path.read_bytes())
            assert name != "expand" or not any("_csf_" in tensor.rpartition(".")[2] for tensor in tensors)
            if all(tensor.dtype in BITS for tensor in tensors.values()):  # the library knows no others
                with safe_open(path, "numpy") as file:
                    assert set(file.keys()) == tensors.keys()
    elif name in ("to hf", "to hf by links", "to container"):  # without a look at what the streams say
        ours = stored_tensors(place.destination, _written(place, source))
        theirs = stored_tensors(source)
        assert {n: (t.dtype, t.data) for n, t in ours.items()} == {n: (t.dtype, t.data) for n, t in theirs.items()}


def right_hashes(path: Path) -> dict[str, str]:
    """What a list that verify believed says of files, in lines of `sha256sum` and of BSD: read by other code than ours.

    No file may have two digests in it.
    """
    found: dict[str, str] = {}
    for raw in path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = os.fsdecode(raw).strip(" \t\r")
        is_escaped, line = line.startswith("\\"), line.removeprefix("\\")
        digest, sep, name = line[:64], line[64:66], line[66:]
        if line.startswith("SHA") and line.count("(") and ("= " in line):
            name, _, digest = line.partition("(")[2].rpartition("= ")
            name, sep = name.rstrip(" ")[:-1], "  "
        is_plain = len(digest) == 64 and set(digest.lower()) <= set("0123456789abcdef") and sep in ("  ", " *")
        if is_plain and name:
            parts = name.split("\\\\") if is_escaped else [name]
            name = "\\".join(p.replace("\\n", "\n").replace("\\r", "\r") if is_escaped else p for p in parts)
            while name.startswith("./"):
                name = name[2:]
            assert found.setdefault(name, digest.lower()) == digest.lower(), f"{name} has two digests"
    return found


def _beside(root: Path) -> dict[str, object]:
    """What the files say that a runtime takes beside the shards."""
    model = root / "metadata" if is_container(root) and (root / "metadata").is_dir() else root
    ours = {*shard_names(root), *left_aside(root)}
    ours |= {"model.safetensors.index.json", "manifest.json", "build-contract.json"}
    paths = {path.relative_to(model).as_posix(): path for path in model.rglob("*") if path.is_file()}
    taken = {n: p for n, p in paths.items() if n.endswith((".json", ".jinja", ".py", ".bin", ".safetensors"))}
    plain = {n: p for n, p in taken.items() if n not in ours and not f"/{n}".count("/.") and "index.json" not in n}
    own = ("tensors/", "receipts/", "verification.json") if model == root else ()
    return {n: _said(p) for n, p in plain.items() if not n.startswith(own)}


def _said(path: Path) -> object:
    """A file's bytes; of JSON without a repeated key its values with their types, the marks of CSF left out."""
    raw = path.read_bytes()

    def an_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        is_config = path.name in ("config.json", "hf_quant_config.json")
        return {k: v for k, v in pairs if not (is_config and (k, v) == ("weight_scale_encoding", "csf"))}

    def number(kind: type) -> Callable[[str], object]:
        return lambda text: (kind.__name__, repr(kind(text)) if len(text) < 100 else text)

    try:
        return json.loads(raw, parse_int=number(int), parse_float=number(float), object_pairs_hook=an_object)
    except (ValueError, RecursionError):
        return raw


def _written(place: Workplace, source: Path) -> list[str]:
    """What the source's shards are called in the destination: their folder stays, or is left out, or is tensors/."""
    found = []
    for name in [source.name] if source.is_file() else shard_names(source):
        file = name.rpartition("/")[2]
        found.append(next(n for n in (name, file, f"tensors/{file}") if (place.destination / n).is_file()))
    return found


def _same(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert _facts(tensor) == _facts(theirs[name]), name


def _facts(tensor: Stored) -> tuple[str, tuple[int, ...], bytes]:
    """What must be equal; MXFP4 scales have either of two dtypes."""
    return tensor.dtype.replace("F8_E8M0", "U8"), tensor.shape, tensor.data
