"""Lists as tools write them: the tools themselves where they are here, their documented output where they are not."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csf_tool.checkpoint.hash_list import read_hash_list
from csf_tool.checkpoint.hash_places import Place
from csf_tool.errors import UsageError
from tests.building import sha256

FILES = {"config.json": b"{}", "model-00001-of-00002.safetensors": b"one", "sub/a b.json": b"[]"}
HASHES = {name: sha256(data) for name, data in FILES.items()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def read(root: Path, raw: bytes | str, name: str = "list") -> dict[str, str]:
    path = root.parent / name
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    found = read_hash_list(path, Place(root))
    assert not found.faults, found.faults
    return found.digests


# The tools themselves

TOOLS = {
    "sha256sum": "sha256sum",
    "in binary": "sha256sum -b",
    "tags": "sha256sum --tag",
    "NUL": "sha256sum -z",
    "NUL and tags": "sha256sum --tag -z",
    "shasum": "shasum -a 256",
    "shasum in binary": "shasum -a 256 -b",
    "shasum's tags": "shasum -a 256 --tag",
    "openssl": "openssl dgst -sha256",
    "openssl -r": "openssl dgst -r -sha256",
    "cksum": "cksum -a sha256",
    "cksum without tags": "cksum -a sha256 --untagged",
}
PATHS: dict[str, Callable[[Path], tuple[Path, str]]] = {
    "names": lambda root: (root, ""),
    "./": lambda root: (root, "./"),
    "the folder's name": lambda root: (root.parent, "model/"),
    "./ and the folder's name": lambda root: (root.parent, "./model/"),
    "absolute": lambda root: (root, f"{root}/"),
    "doubled strokes": lambda root: (root, f"{root}//./"),
    "by way of another folder": lambda root: (root / "sub", "../"),
}


@pytest.mark.parametrize("paths", PATHS)
@pytest.mark.parametrize("tool", TOOLS)
def test_a_list_of_a_tool_that_is_here(root: Path, tool: str, paths: str) -> None:
    words = TOOLS[tool].split()
    if not shutil.which(words[0]):
        pytest.skip(f"no {words[0]} here")
    folder, before = PATHS[paths](root)
    command = [*words, *(before + name for name in FILES)]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this {words[0]} knows no such option")
    assert read(root, done.stdout) == HASHES


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="no sha256sum here")
@pytest.mark.parametrize("tool", ["sha256sum", "sha256sum --tag", "sha256sum -z"])
def test_names_with_every_escape(root: Path, tool: str) -> None:
    names = ["a\nb", "a\\b", "a\\nb", "a\rb", " a", "a ", "ü", f"x\n{'0' * 64} y"]
    for name in names:
        (root / name).write_bytes(b"x")
    done = subprocess.run([*tool.split(), *names], cwd=root, capture_output=True, check=True)
    wanted = {name: sha256(b"x") for name in names if name != "a " or tool != "sha256sum"}
    found = read(root, done.stdout)
    assert {n: d for n, d in found.items() if n not in ("a", "a ")} == {n: wanted[n] for n in names if n != "a "}


def test_the_listing_of_the_hub_by_its_own_command(root: Path) -> None:
    """`hf models ls -R --json`, the model's info, and the tree, as the Hub and huggingface_hub 2 give them."""
    git = "ce013625030ba8dba906f756967f9e9ca394464a"
    shard = "model-00001-of-00002.safetensors"
    lfs = {"sha256": HASHES[shard], "size": 3, "pointer_size": 134}
    by_command = [{"path": "config.json", "size": 2, "blob_id": git}, {"path": shard, "size": 3, "lfs": lfs}]
    siblings = [
        {"rfilename": "config.json", "size": 2, "blobId": git},
        {"rfilename": shard, "size": 3, "blobId": "0" * 40, "lfs": lfs},
    ]
    tree = [
        {"type": "directory", "oid": "0" * 40, "size": 0, "path": "sub"},
        {"type": "file", "oid": git, "size": 2, "path": "config.json"},
        {"type": "file", "oid": "0" * 40, "size": 3, "path": shard, "lfs": {"oid": HASHES[shard], "size": 3}},
    ]
    for document in (by_command, {"id": "org/x", "sha": "1" * 40, "siblings": siblings}, tree):
        (root.parent / "list").write_text(json.dumps(document))
        found = read_hash_list(root.parent / "list", Place(root))
        assert (found.digests, found.git_digests) == ({shard: HASHES[shard]}, {"config.json": git})
        assert found.sizes == {"config.json": 2, shard: 3}
        assert {h.algorithm for h in found.hashes()} == {"sha256", "git-sha1"}


# As documented


def windows(name: str) -> str:
    return "C:\\Models\\model\\" + name.replace("/", "\\")


def table(end: str = "\r\n") -> str:
    head = ["", "Algorithm" + " " * 7 + "Hash" + " " * 67 + "Path", "---------" + " " * 7 + "----" + " " * 67 + "----"]
    return end.join([*head, *(f"SHA256          {d.upper()}       {windows(n)}" for n, d in HASHES.items()), "", ""])


def pairs() -> str:
    rows = [f"Algorithm : SHA256\r\nHash      : {d.upper()}\r\nPath      : {windows(n)}\r\n" for n, d in HASHES.items()]
    return "\r\n" + "\r\n".join(rows) + "\r\n"


def a_csv(delimiter: str = ",") -> str:
    rows = [["Algorithm", "Hash", "Path"], *(["SHA256", d.upper(), windows(n)] for n, d in HASHES.items())]
    return "\r\n".join(delimiter.join(f'"{cell}"' for cell in row) for row in rows) + "\r\n"


def aria2() -> str:
    return "".join(
        f"https://example.org/org/x/resolve/main/{n.replace(' ', '%20')}\thttps://mirror.example.org/{n}\n"
        f"  dir=/data/model\n  out={n}\n  checksum=sha-256={d}\n"
        for n, d in HASHES.items()
    )


FORMS: dict[str, Callable[[], str | bytes]] = {
    "BSD's sha256 -r, one blank": lambda: "\n".join(f"{d} {n}" for n, d in HASHES.items()),
    "a tab": lambda: "\n".join(f"{d}\t{n}" for n, d in HASHES.items()),
    "git lfs ls-files -l": lambda: "\n".join(f"{d} {'*-'[i % 2]} {n}" for i, (n, d) in enumerate(HASHES.items())),
    "git lfs ls-files -l -s": lambda: "\n".join(f"{d} - {n} (4.9 GB)" for n, d in HASHES.items()),
    "git lfs ls-files -j": lambda: json.dumps(
        {"files": [{"name": n, "size": 3, "checkout": True, "oid_type": "sha256", "oid": d} for n, d in HASHES.items()]}
    ),
    "rclone lsjson --hash": lambda: json.dumps(
        [{"Path": n, "Name": n[-3:], "IsDir": False, "Hashes": {"md5": "0", "sha256": d}} for n, d in HASHES.items()]
    ),
    "an object of names and hashes": lambda: json.dumps(HASHES),
    "an object a line": lambda: "\n".join(json.dumps({"file": n, "sha256": d}) for n, d in HASHES.items()),
    "Get-FileHash": table,
    "Get-FileHash > list": lambda: table().encode("utf-16"),
    "Format-List": pairs,
    "Format-List in UTF-8 with a mark": lambda: b"\xef\xbb\xbf" + pairs().encode(),
    "Export-Csv": a_csv,
    "Export-Csv of PowerShell 5": lambda: "#TYPE Microsoft.PowerShell.Commands.FileHashInfo\r\n" + a_csv(),
    "Export-Csv -UseCulture": lambda: a_csv(";"),
    "ConvertTo-Json": lambda: json.dumps(
        [{"Algorithm": "SHA256", "Hash": d.upper(), "Path": windows(n)} for n, d in HASHES.items()]
    ),
    "Windows' paths in sha256sum's lines": lambda: "\n".join(f"\\{d} *{windows(n)}" for n, d in HASHES.items()).replace(
        "\\M", "\\\\M").replace("\\m", "\\\\m").replace("\\s", "\\\\s").replace("\\c", "\\\\c").replace("\\a", "\\\\a"),
    "Windows' paths, not escaped": lambda: "\n".join(f"{d}  {windows(n)}" for n, d in HASHES.items()),
    ".\\": lambda: "\n".join(f"{d}  .\\{n}" for n, d in HASHES.items()).replace("/", "\\"),
    "aria2": aria2,
    "hashdeep": lambda: "%%%% HASHDEEP-1.0\n%%%% size,md5,sha256,filename\n## Invoked from: /x\n## \n"
    + "\n".join(f"3,{'0' * 32},{d},/x/model/{n}" for n, d in HASHES.items()),
    "7z h -scrcSHA256": lambda: "\n".join(
        ["Scanning", "", "SHA256" + " " * 68 + "Size  Name", f"{'-' * 64} {'-' * 13}  {'-' * 12}"]
        + [f"{d} {len(FILES[n]):13}  {n}" for n, d in HASHES.items()] + [f"{'-' * 64} {'-' * 13}  {'-' * 12}", "Ok"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_read(root: Path, form: str) -> None:
    assert read(root, FORMS[form]()) == HASHES


@pytest.mark.parametrize("form", [form for form in FORMS if isinstance(FORMS[form](), str)])
def test_a_hash_that_lost_a_digit_is_a_fault_in_every_form(root: Path, form: str) -> None:
    text = FORMS[form]()
    assert isinstance(text, str)
    digest = next(d for d in (HASHES["config.json"], HASHES["config.json"].upper()) if d in text)
    (root.parent / "list").write_text(text.replace(digest, digest[:-1]))
    found = read_hash_list(root.parent / "list", Place(root))
    assert ["is damaged" in fault.problem for fault in found.faults] == [True]
    assert found.digests == {name: d for name, d in HASHES.items() if name != "config.json"}


REFUSED = {
    "b2sum": (f"{'0' * 128}  x\n{'1' * 128}  y\n", r"holds SHA-512 or BLAKE2b hashes \(128 hex digits\), not SHA-256"),
    "md5sum": (f"{'0' * 32}  x\n", r"holds MD5 hashes \(32 hex digits\), not SHA-256"),
    "sha1sum": (f"{'0' * 40} *x\n", r"holds SHA-1 hashes \(40 hex digits\), not SHA-256"),
    "tags": (f"SHA512 (x) = {'0' * 128}\n", "holds SHA512 hashes, not SHA-256"),
    "openssl's SHA2-512": (f"SHA2-512(x)= {'0' * 128}\n", "holds SHA2-512 hashes, not SHA-256"),
    "BLAKE2b of 256 bits": (f"BLAKE2b-256 (x) = {'0' * 64}\n", "holds BLAKE2b-256 hashes, not SHA-256"),
    "Get-FileHash's MD5": (f'"Algorithm","Hash","Path"\n"MD5","{"0" * 32}","C:\\x"\n', "holds MD5 hashes, not SHA-256"),
    "git lfs ls-files": ("0123456789 * x\n", "has only the first 10 digits of each hash: run git lfs ls-files with -l"),
    "an LFS pointer": (
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 3\n", "is a git-LFS pointer"
    ),
    "a report": ("config.json: OK\nx: FAILED\n", "is a report of sha256sum --check, not a list of hashes"),
    "base64": (f"{'A' * 43}=  x\n", "has its hashes in base64"),
    "a page": ("<!doctype html><p>", "is a web page"),
    "nothing": ("", "is empty"),
    "comments": ("# nothing\n", "holds only comments"),
    "prose": ("nothing of the kind\n", "begins with 'nothing of the kind', which is not a SHA-256 with a file name"),
    "JSON": ('{"a": {"b": 1}}', "is JSON, but has no file name with its SHA-256"),
    "broken JSON": ('{"a": ', "is not valid JSON"),
    "a bare digest": ("0" * 64, "begins with '0000"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_list_is_refused_in_one_line_that_says_what_it_is(root: Path, kind: str) -> None:
    text, said = REFUSED[kind]
    with pytest.raises(UsageError, match=said) as error:
        read(root, text)
    assert "csf-tool reads what sha256sum, " in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("ending", [".sha256", ".sha256sum", ".SHA256.txt"])
def test_a_hash_alone_is_of_the_file_that_the_list_is_named_after(root: Path, ending: str) -> None:
    assert read(root, HASHES["config.json"] + "\n", f"config.json{ending}") == {"config.json": HASHES["config.json"]}


def test_a_path_that_powershell_cut_short_is_a_fault(root: Path) -> None:
    (root.parent / "list").write_text(table().replace("config.json", "con...", 1))
    [fault] = read_hash_list(root.parent / "list", Place(root)).faults
    assert fault.problem == "line 4 is damaged: its path is cut short: write the list with `| Export-Csv FILE`"


@pytest.mark.parametrize("text", ["x,hash\n" + "y" * 200_000, '"hash","path"\n"' + "y" * 200_000, "[" * 100_000, "\0"])
def test_a_file_that_is_made_to_break_readers_is_refused(root: Path, text: str) -> None:
    with pytest.raises(UsageError):
        read(root, text)


@pytest.mark.parametrize("blank", ["\t", "\t\r", "\r\t", "  ", "\n\t\r", "#\n \r"])
def test_blanks_before_the_head_of_a_csv_list_do_no_harm(root: Path, blank: str) -> None:
    assert read(root, blank + a_csv()) == HASHES


def test_a_first_column_without_a_name_counts(root: Path) -> None:
    rows = "".join(f"{i}\t{digest}\t{name}\n" for i, (name, digest) in enumerate(HASHES.items()))
    assert read(root, "\thash\tpath\n" + rows) == HASHES


PIECES = [
    table(), pairs(), a_csv(), "a" * 64, "A" * 63, "config.json", "sub/a b.json", "SHA256", "MD5", "sha256", "path",
    "hash", f"\n  checksum=sha-256={'a' * 64}\n", "  out=", "Algorithm : SHA256", "Hash      : ", "Path      : ",
    "%%%% HASHDEEP-1.0", "%%%% size,sha256,filename", "https://[host/x", "http://h/%ff%2f..%2fx", '{"sha256": ', "[",
    "]", "}", "null", "1e999", "1" * 5000, "\n", "\r\n", "\r", "\r\\", "\x85", "\u2028", "\x0c", "\0", "\t", "  ",
    " *", ",", ";", '"', "'", "\\", ": ", "= ", "\ufeff", "\udcff", "\U0001f40e", "#", "...", "(", ")", "/", "..", "~",
]  # fmt: skip


@pytest.mark.slow
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@settings(deadline=None, max_examples=1000)
def test_whatever_a_list_holds_it_is_read_or_refused(text: str) -> None:
    """No other exception leaves."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.sha256")
        for raw in (text.encode("utf-8", "surrogateescape"), b"\xff\xfe" + text.encode("utf-16-le", "surrogatepass")):
            path.write_bytes(raw)
            with suppress(UsageError):
                read_hash_list(path, Place(Path(folder)))


# Lists that are damaged, or of other systems


def test_a_list_whose_last_line_is_cut_is_never_taken_for_whole(root: Path) -> None:
    lines = [f"{digest}  {name}" for name, digest in HASHES.items()]
    whole = "\n".join(lines)
    for end in range(len(lines[0]) + 1, len(whole)):
        path = root.parent / "list"
        path.write_text(whole[:end])
        found = read_hash_list(path, Place(root))
        is_between = whole[end - 1] == "\n" or whole[end] == "\n"
        names = [name for name in found.names if name not in HASHES]
        assert is_between or found.faults or names, whole[:end]


def test_lines_that_end_in_carriage_returns_alone(root: Path) -> None:
    assert read(root, "".join(f"{digest}  {name}\r" for name, digest in HASHES.items())) == HASHES


@pytest.mark.parametrize("address", ["http://[::1/x", "https://[/", "http://]:x/y"])
def test_an_address_that_is_none(root: Path, address: str) -> None:
    name = "config.json"
    raw = f"{address}\n  checksum=sha-256={'0' * 64}\nhttp://host/{name}\n  checksum=sha-256={HASHES[name]}\n"
    (root.parent / "list").write_text(raw)
    found = read_hash_list(root.parent / "list", Place(root))
    assert found.digests[name] == HASHES[name]


def test_a_carriage_return_within_a_line(root: Path) -> None:
    name = "config.json"
    assert read(root, f"# a\rb,c\n{HASHES[name]}  {name}\n") == {name: HASHES[name]}
    with pytest.raises(UsageError):
        read(root, "a\rsha256,name\nb\n")
