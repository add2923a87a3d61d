"""Lists of hashes: beside the shards and given with --manifest they are read alike, and no line is passed over."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from tests.building import change_json, mini_container, mini_hf, sha256, shard_name
from tests.commands import run, says

ONE, TWO = shard_name(1, 2), shard_name(2, 2)

Lines = list[str]


def lines_of(root: Path) -> Lines:
    """The right lines of a checkpoint's files, sorted by name: config, shards, index."""
    return [f"{sha256(path.read_bytes())}  {path.name}" for path in sorted(root.iterdir())]


def beside(root: Path, raw: bytes) -> Result:
    (root / "SHA256SUMS").write_bytes(raw)
    return run("verify", root)


def given(root: Path, raw: bytes) -> Result:
    (root.parent / "given.sha256").write_bytes(raw)
    return run("verify", root, "--manifest", root.parent / "given.sha256")


WAYS = pytest.mark.parametrize("verify", [beside, given])


def changed(line: int, change: Callable[[str], str]) -> Callable[[Lines], Lines]:
    return lambda lines: [change(text) if i == line else text for i, text in enumerate(lines)]


def tagged(text: str) -> str:
    return f"SHA256 ({text[66:]}) = {text[:64]}"


ANOTHER = f"line {{}} has another SHA-256 for '{ONE}' than line"

FAULTS: dict[str, tuple[Callable[[Lines], Lines], str]] = {
    "twice, the wrong one first": (lambda lines: [f"{'0' * 64}  {ONE}", *lines], ANOTHER.format(3)),
    "twice, the wrong one last": (lambda lines: [*lines, f"{'0' * 64}  {ONE}"], ANOTHER.format(5)),
    "twice, by ./": (lambda lines: [*lines, f"{'0' * 64}  ././{ONE}"], f"line 5 has another SHA-256 for '{ONE}' than"),
    "twice, in BSD style": (lambda lines: [*lines, f"SHA256 ({ONE}) = {'0' * 64}"], f"SHA-256 for '{ONE}' than line 2"),
    "twice, a config": (lambda lines: [*lines, f"{'0' * 64}  config.json"], "SHA-256 for 'config.json' than line 1"),
    "63 digits": (changed(1, lambda t: t[1:]), "line 2 is damaged"),
    "62 digits": (changed(1, lambda t: t[2:]), "line 2 is damaged"),
    "40 digits": (changed(1, lambda t: t[24:]), "line 2 is damaged"),
    "65 digits": (changed(1, lambda t: "0" + t), "line 2 is damaged"),
    "no digit": (changed(1, lambda t: "g" + t[1:]), "line 2 is damaged"),
    "three that are none": (changed(1, lambda t: "xyz" + t[3:]), "line 2 is damaged"),
    "a letter O in place of a 0": (changed(1, lambda t: "O" + t[1:]), "line 2 is damaged"),
    "one space": (changed(1, lambda t: t.replace("  ", " ")), "line 2 is damaged"),
    "no space": (changed(1, lambda t: t.replace("  ", "")), "line 2 is damaged"),
    "a tab": (changed(1, lambda t: t.replace("  ", "\t")), "line 2 is damaged"),
    "no name": (changed(1, lambda t: t[:64]), "line 2 is damaged"),
    "a bit lost, so that it begins a comment": (changed(1, lambda t: "#" + t[1:]), "line 2 is damaged"),
    "NUL in the name": (changed(1, lambda t: t[:-4] + "\0\0\0\0"), "line 2 is damaged"),
    "NUL in the digest": (changed(1, lambda t: "\0" + t[1:]), "line 2 is damaged"),
    "all NUL": (changed(1, lambda t: "\0" * len(t)), "line 2 is damaged"),
    "an escape that is none": (changed(1, lambda t: f"\\{t}\\x"), "line 2 is damaged"),
    "an escape without an end": (changed(1, lambda t: f"\\{t}\\"), "line 2 is damaged"),
    "BSD style, 63 digits": (changed(1, lambda t: tagged(t)[:-1]), "line 2 is damaged"),
    "BSD style, no digit": (changed(1, lambda t: tagged(t)[:-1] + "g"), "line 2 is damaged"),
    "BSD style, cut": (changed(1, lambda t: tagged(t)[:20]), "line 2 is damaged"),
    "BSD style, another word": (changed(1, lambda t: tagged(t).replace("SHA256", "SHB256")), "line 2 is damaged"),
    "a missing file": (lambda lines: [*lines, f"{'0' * 64}  gone.txt"], "gone.txt: is missing, but its hash is known"),
    "a missing shard": (changed(1, lambda t: t.replace("00001", "00009")), "line 2)"),
    "another case": (changed(0, str.upper), "CONFIG.JSON: is missing"),
    "outside": (lambda lines: [*lines, f"{'0' * 64}  ../x"], "line 5: file name '../x' leaves the checkpoint's folder"),
    "outside, by an escape": (lambda lines: [*lines, f"\\{'0' * 64}  ../x\\ny"], "line 5: file name '../x"),
    "absolute": (lambda lines: [*lines, f"{'0' * 64}  /etc/passwd"], "line 5: file name '/etc/passwd' leaves"),
    "a wrong digest": (changed(1, lambda t: "0" * 64 + t[64:]), ", line 2)"),
}  # fmt: skip


@WAYS
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_with_its_line(tmp_path: Path, verify: Callable[[Path, bytes], Result], fault: str) -> None:
    spoil, text = FAULTS[fault]
    root = mini_hf(tmp_path / "in")
    result = verify(root, "\n".join(spoil(lines_of(root))).encode() + b"\n")
    assert result.exit_code == 1, result.output
    says(result, text)
    assert "VERIFIED" not in result.stdout


def test_a_list_with_a_fault_fails_in_seconds_too(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in")
    (tmp_path / "list").write_text("\n".join([*lines_of(root), f"{'0' * 64}  {ONE}"]))
    result = run("verify", root, "--manifest", tmp_path / "list", "--quick")
    assert result.exit_code == 1
    says(result, f"list: line 5 has another SHA-256 for '{ONE}' than line 2")


def test_sizes_are_claimed_only_of_files_that_have_one(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in")
    size = f"# size: {(root / ONE).stat().st_size} {ONE}"
    (tmp_path / "list").write_text("\n".join([size, *lines_of(root)]))
    result = run("verify", root, "--manifest", tmp_path / "list", "--quick")
    says(result, "sizes of 1 file, and presence of 3 files without a size, compared with list")
    (tmp_path / "list").write_text("\n".join([size, f"# size: 1 {ONE}", *lines_of(root)]))
    result = run("verify", root, "--manifest", tmp_path / "list", "--quick")
    assert result.exit_code == 1
    says(result, f"line 2 has another size for '{ONE}' than an earlier line")


STYLES: dict[str, Callable[[Lines], bytes]] = {
    "text": lambda lines: "\n".join(lines).encode(),
    "binary": lambda lines: "\n".join(f"{t[:64]} *{t[66:]}" for t in lines).encode(),
    "BSD": lambda lines: "\n".join(map(tagged, lines)).encode(),
    "openssl": lambda lines: "\n".join(f"SHA2-256({t[66:]})= {t[:64]}" for t in lines).encode(),
    "uppercase digits": lambda lines: "\n".join(t[:64].upper() + t[64:] for t in lines).encode(),
    "CRLF": lambda lines: "\r\n".join([*lines, ""]).encode(),
    "a BOM": lambda lines: b"\xef\xbb\xbf" + "\n".join(lines).encode(),
    "./": lambda lines: "\n".join(f"{t[:66]}./{t[66:]}" for t in lines).encode(),
    "escaped": lambda lines: "\n".join(f"\\{t}" for t in lines).encode(),
    "comments and blank lines": lambda lines: "\n".join(["# by hand", "", *lines, "", f"# {lines[0]}"]).encode(),
    "absolute": lambda lines: "\n".join(f"{t[:66]}/data/elsewhere/{t[66:]}" for t in lines).encode(),
    "the folder's name in front": lambda lines: "\n".join(f"{t[:66]}in/{t[66:]}" for t in lines).encode(),
    "Windows": lambda lines: "\r\n".join(f"{t[:66]}C:\\Models\\x\\{t[66:]}" for t in lines).encode(),
    "NUL at the end of each": lambda lines: "".join(f"{t}\0" for t in lines).encode(),
    "one blank": lambda lines: "\n".join(t.replace("  ", " ") for t in lines).encode(),
    "UTF-16": lambda lines: "\r\n".join(lines).encode("utf-16"),
    "JSON": lambda lines: json.dumps([{"path": t[66:], "sha256": t[:64]} for t in lines]).encode(),
    "indented": lambda lines: "\n".join(f"  {t} " for t in lines).encode(),
    "the same line twice": lambda lines: "\n".join(lines + lines).encode(),
    "beside other kinds": lambda lines: "\n".join([f"SHA512 (x) = {'0' * 128}", "MD5 (x) = 00", *lines]).encode(),
    "signed": lambda lines: "\n".join(
        ["-----BEGIN PGP SIGNED MESSAGE-----", "Hash: SHA256", "", *lines, "-----BEGIN PGP SIGNATURE-----", "",
         "iQIzBAEBCAAdFiEEyHYsbJvF4uRLrJqZ3Wm1hQ7bT0sFAmXYZQkACgkQ3Wm1hQ7b", "=bEd0", "-----END PGP SIGNATURE-----"]
    ).encode(),
}  # fmt: skip


@WAYS
@pytest.mark.parametrize("style", STYLES)
def test_a_style_is_understood(tmp_path: Path, verify: Callable[[Path, bytes], Result], style: str) -> None:
    root = mini_hf(tmp_path / "in")
    raw = STYLES[style](lines_of(root))
    good = verify(root, raw)
    assert good.exit_code == 0, good.output
    says(good, "the stored bytes are ", "4 files ")
    (root / "config.json").write_bytes((root / "config.json").read_bytes() + b" ")
    bad = verify(root, raw)
    assert bad.exit_code == 1
    says(bad, "config.json: sha256 is ")


@pytest.mark.skipif(sys.platform != "linux", reason="names that other systems refuse")
@WAYS
@pytest.mark.parametrize(
    "name", ["a\nb", "a\\b", "a\\nb", "a:b", "a\rb", "x\u2028y", os.fsdecode(b"caf\xe9")], ids=ascii
)
def test_names_are_escaped_as_sha256sum_does(
    tmp_path: Path, verify: Callable[[Path, bytes], Result], name: str
) -> None:
    root = mini_hf(tmp_path / "in")
    (root / name).write_text("x")
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    line = "\\" * (escaped != name) + f"{sha256(b'x')}  {escaped}"
    raw = "\n".join([*lines_of(mini_hf(tmp_path / "plain")), line]).encode("utf-8", "surrogateescape")
    good = verify(root, raw)
    assert good.exit_code == 0, good.output
    says(good, "5 files ")
    (root / name).write_text("y")
    assert verify(root, raw).exit_code == 1


def test_published_is_said_of_what_a_publisher_or_the_hub_recorded_alone(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "in")
    raw = "\n".join(lines_of(root)).encode()
    listed = given(root, raw)
    says(listed, "VERIFIED AS LISTED in given.sha256;", "the stored bytes are as listed in given.sha256 (4 files as")
    says(listed, "Not proved: that the stored bytes are the published ones (given.sha256 is a list that you gave)")
    assert "AS PUBLISHED" not in listed.stdout
    says(beside(root, raw), "VERIFIED AS PUBLISHED", "the stored bytes are the published ones (4 files by SHA256SUMS)")
    both = given(root, raw)
    says(both, "VERIFIED AS PUBLISHED", "the stored bytes are the published ones (4 files by SHA256SUMS)")
    (root / "SHA256SUMS").write_text(lines_of(root)[2])  # one shard alone
    mixed = given(root, raw)
    says(mixed, "VERIFIED AS LISTED in given.sha256;", "the stored bytes are as published or as listed in given.sha256")
    says(mixed, "(1 file by SHA256SUMS; 3 files as listed in given.sha256)")


def test_a_container_and_a_list_of_ones_own(tmp_path: Path) -> None:
    root = mini_container(tmp_path / "in")
    run("verify", root, "--save-hashes", tmp_path / "mine")
    result = run("verify", root, "--manifest", tmp_path / "mine")
    says(
        result, "VERIFIED.", "the stored bytes are the published ones (4 files by target_sha256, metadata_sha256), and "
    )
    says(result, "(4 files by target_sha256, metadata_sha256), and 5 files as listed in mine")


@pytest.mark.parametrize("kind", ["a list of shards alone", "SHA256SUMS of shards alone", "container"])
def test_files_that_no_hash_covers_are_named(tmp_path: Path, kind: str) -> None:
    name = "config.json"
    if kind == "container":
        root, name = mini_container(tmp_path / "in"), "metadata/config.json"
        change_json(root / "manifest.json", lambda manifest: manifest["metadata_sha256"].pop("config.json"))
        result = run("verify", root)
    else:
        root = mini_hf(tmp_path / "in")
        shards = "\n".join(line for line in lines_of(root) if line.endswith(".safetensors")).encode()
        result = given(root, shards) if "list" in kind else beside(root, shards)
    assert result.exit_code == 0
    says(result, " IN PART", f"the content of 1 file beside the shards: {name} (no hash)")
