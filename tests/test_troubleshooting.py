"""docs/troubleshooting.md is kept true: every message in it is produced here, with the code that it has there.

CSF_TOOL_UPDATE_SNAPSHOTS=1 rewrites the page's table of the codes that have no entry of their own.
"""

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from csf_tool.checkpoint.problems import Problem
from csf_tool.codes import Code
from csf_tool.errors import CsfToolError
from tests.building import (
    GATE,
    INDEX,
    LFS_POINTER,
    MXFP4,
    NVFP4,
    Tensor,
    change_json,
    compressed,
    entry,
    home_made,
    matrix,
    mini_container,
    mini_dense,
    mini_hf,
    model,
    overwrite,
    raw_file,
    recipes_config,
    shard_name,
    span,
    streams,
    write_hf,
    write_json,
    write_shard,
)
from tests.commands import run
from tests.downloads import hf_download, hub_cache, of_schema, only, spoilt, without_shards

ONE, TWO = shard_name(1, 2), shard_name(2, 2)
FIXED, EXCEPTIONS = (f"{GATE}.weight_scale.nvfp4_csf_{kind}" for kind in ("fixed", "exceptions"))
PAGE = Path(__file__).parent.parent / "docs" / "troubleshooting.md"

Output = Callable[[Path], str]
"""Makes a checkpoint in a folder, runs commands on it, and gives what they print."""


def stats(make: Callable[[Path], object], name: str = "x") -> Output:
    def output(folder: Path) -> str:
        make(folder / name)
        return run("stats", folder / name).output

    return output


def verify(make: Callable[[Path], object], *options: str) -> Output:
    def output(folder: Path) -> str:
        make(folder / "x")
        return run("verify", folder / "x", *options).output

    return output


def expand(make: Callable[[Path], object], *options: str, to: Callable[[Path], object] = lambda _: None) -> Output:
    def output(folder: Path) -> str:
        make(folder / "x")
        to(folder / "out")
        return run("expand", folder / "x", folder / "out", *options).output

    return output


def of(make: Callable[[Path], object], *then: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A checkpoint, and what is done to it."""

    def made(root: Path) -> Path:
        make(root)
        for step in then:
            step(root)
        return root

    return made


def gone(name: str) -> Callable[[Path], None]:
    return lambda root: (root / name).unlink()


def zeroed(*names: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for name in names:
            begin, end = span(root / ONE, name)
            overwrite(root / ONE, begin, bytes(end - begin))

    return change


def first_bytes(tensor: str, data: bytes, file: str = ONE) -> Callable[[Path], None]:
    return lambda root: overwrite(root / file, span(root / file, tensor)[0], data)


def one_file(*tensors: Tensor) -> Callable[[Path], Path]:
    return lambda root: write_shard(root / "model.safetensors", list(tensors))


def one_raw(header: object, data: bytes) -> Callable[[Path], Path]:
    return only("model.safetensors", raw_file(header, data))


def config(document: object) -> Callable[[Path], Path]:
    return lambda root: write_json(root / "config.json", document)


def changed(change: Callable[[Tensor], list[Tensor]]) -> Callable[[Path], Path]:
    """A dense checkpoint with the tensors of its first matrix changed."""

    def made(root: Path) -> Path:
        shards = model(NVFP4).items()
        return write_hf(root, {name: [new for t in shard for new in change(t)] for name, shard in shards})

    return made


def without(last: str) -> Callable[[Tensor], list[Tensor]]:
    return lambda tensor: [] if tensor.name == f"{GATE}.{last}" else [tensor]


def narrower(tensor: Tensor) -> list[Tensor]:
    if tensor.name != f"{GATE}.weight_scale":
        return [tensor]
    return [replace(tensor, shape=(16, 2), data=tensor.data[:32])]


def unquantised(root: Path) -> Path:
    quantised = matrix("model.layers.0.mlp.up_proj", NVFP4, 1)
    plain = Tensor("model.layers.1.mlp.up_proj.weight", "BF16", (16, 2), bytes(64))
    write_hf(root, {ONE: [*quantised, plain]}, config={"quantization_config": {"quant_algo": "NVFP4"}})
    return root


def cut(root: Path) -> None:
    (root / ONE).write_bytes((root / ONE).read_bytes()[:-7])


def two_revisions(root: Path) -> None:
    hf_download(root)
    note = root / ".cache" / "huggingface" / "download" / f"{ONE}.metadata"
    note.write_text(note.read_text().replace("b" * 40, "c" * 40))


def serving(root: Path) -> None:
    write_json(root / "config.json", {"quantization_config": {"quant_method": "nvfp4_csf", "checkpoint_root": "/gone"}})


def of_another_source(root: Path) -> None:
    """A container whose receipts and manifest agree on other scales than its streams give."""
    mini_container(root)
    receipt = root / "receipts" / f"{ONE}.json"
    change_json(receipt, lambda r: next(iter(r["scales"].values())).update(source_sha256="0" * 64))


def redundant(root: Path) -> None:
    """The first exception moves into its row's window."""
    fixed, _ = span(root / ONE, FIXED)
    begin, _ = span(root / ONE, EXCEPTIONS)
    overwrite(root / ONE, begin + 3, (root / ONE).read_bytes()[fixed : fixed + 1])


def lists(folder: Path) -> str:
    ours = hub_cache(mini_hf(folder / "in"), folder)
    other = hub_cache(mini_hf(folder / "other", 1), folder, "c" * 40)
    run("verify", ours, "--save-hashes", folder / "list")
    return run("verify", other, "--manifest", folder / "list").output


def shrinking(folder: Path) -> str:
    """A shard of which another process has cut the end since its header was read."""
    from csf_tool.checkpoint.open import open_checkpoint
    from csf_tool.coders.decoder import NumpyDecoder
    from csf_tool.progress import Silent
    from csf_tool.prove.verify import verify

    opened = open_checkpoint(mini_hf(folder))
    (folder / ONE).write_bytes((folder / ONE).read_bytes()[:-2000])
    found = verify(opened, None, NumpyDecoder(), Silent())
    return "\n".join(str(problem) for check in found.checks for problem in check.failures)


def begun_elsewhere(folder: Path) -> str:
    journal = {"schema": "csf-tool.journal/1", "tool": "csf-tool", "operation": "expand", "source": "0", "options": {}}
    write_json(folder / "out" / ".csf-tool" / "journal.json", journal)
    return run("expand", mini_hf(folder / "x"), folder / "out").output


def linked(folder: Path) -> str:
    snapshot = hub_cache(mini_hf(folder / "x"), folder)
    return run("expand", snapshot, folder / "out", "--consume-source", "--yes").output


def full(folder: Path) -> str:
    usage = shutil.disk_usage(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
        return expand(mini_hf)(folder)


def ranks(root: Path) -> None:
    for rank in range(2):
        write_shard(root / f"model-rank-{rank}-part-0.safetensors", PAIR)


def plain_recipes(root: Path) -> None:
    write_json(root / "config.json", recipes_config(2, csf=False))


SCALE = matrix("m", NVFP4, 1)[2]
LONE = streams(matrix("m", MXFP4, 1)[0], MXFP4)
PAIR = compressed(matrix("m", NVFP4, 1), NVFP4)
OVERLAP = {"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}
HOLE = {"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}
TWICE = {"quantization_config": {"quant_algo": "NVFP4"}, "text_config": {"quantization_config": {"quant_algo": "FP8"}}}

MESSAGES: dict[str, Output] = {
    "not a checkpoint: no manifest.json, no *.safetensors.index.json and no .safetensors file": stats(only("a.csf")),
    "none of … shards can be read: all shards that … lists are missing": stats(without_shards),
    "an incomplete download (…)": stats(only("x.incomplete")),
    "from an unfinished download or copy": stats(of(mini_hf, lambda r: (r / "a.aria2").write_bytes(b"x"))),
    "a csf-tool run into this folder is not finished": stats(
        of(mini_hf, lambda root: write_json(root / ".csf-tool" / "journal.json", {}))
    ),
    "is a git-LFS pointer, not the file itself": stats(spoilt(LFS_POINTER, ONE)),
    "is a web page (HTML or XML), not the file itself": stats(spoilt(b"<html>", ONE)),
    "is JSON text, not a safetensors file: probably a saved error message": stats(spoilt(b'{"error": 401}', ONE)),
    "begins with zeros: a download reserved its space and never wrote its content": stats(spoilt(bytes(900), ONE)),
    "has schema …, which csf-tool cannot read (…): an older or newer container": stats(
        of_schema("lil-nvfp4-csf-checkpoint/0")
    ),
    "a container and a Hugging Face checkpoint seem to be in one folder": stats(
        lambda root: mini_hf(mini_container(root))
    ),
    "is a serving directory, not a checkpoint": stats(serving),
    "no index lists the shards": stats(of(mini_hf, gone(INDEX))),
    "names …, but the tensors are …": stats(of(mini_dense, config({"quantization_config": {"format": "mxfp4-pack"}}))),
    "quantization_config is at the top and in text_config, and they differ": stats(of(mini_dense, config(TWICE))),
    "its layout is unknown, because …: it may be padded or in tiles": stats(
        lambda root: write_shard(root / "x.safetensors", matrix("m", NVFP4, 1), {"_quantization_metadata": ""})
    ),
    "scales of stacked experts": stats(one_file(Tensor("m.w_scales", "U8", (2, 2, 2), bytes(8)))),
    "has no block scale, but … has one: the values of this weight are lost": stats(changed(without("weight_scale"))),
    "is a scale without a weight: …": stats(changed(without("weight"))),
    "scale is …, but its weight needs …": stats(changed(narrower)),
    "with one scale per … values, but NVFP4 has F8_E4M3 per 16, and MXFP4 F8_E8M0 per 32": stats(
        one_file(*[replace(t, dtype="U8") if t.name.endswith("weight_scale") else t for t in matrix("m", NVFP4, 1)])
    ),
    "…, but a weight_scale_2 is a floating-point number": stats(
        one_file(*[replace(t, dtype="I32") if t.name.endswith("weight_scale_2") else t for t in matrix("m", NVFP4, 1)])
    ),
    "…, although its siblings have one": stats(changed(without("weight_scale_2"))),
    "… has … experts, but … states …": stats(of(mini_dense, config({"num_experts": 4}))),
    "is stored as …, but the config says that it is FP4": stats(unquantised),
    "is missing, or is a link to a missing file": stats(of(mini_hf, gone(ONE))),
    "does not list this shard": stats(of(mini_hf, lambda root: write_shard(root / "more.safetensors", []))),
    "does not list this shard: … left out": stats(
        of(mini_hf, lambda root: shutil.copy(root / ONE, root / "model-00001-of-00002 (1).safetensors"))
    ),
    "one file per rank (tensor parallel)": stats(ranks),
    "all … tensors are also in …: remove one of the two files": stats(
        of(mini_hf, lambda r: shutil.copy(r / ONE, r / TWO))
    ),
    "leaves the checkpoint's folder or is not a plain path": stats(
        of(mini_hf, lambda root: change_json(root / INDEX, lambda i: i["weight_map"].update(x="../x.safetensors")))
    ),
    "… bytes are missing": stats(of(mini_hf, cut)),
    "its data overlaps the data of …": stats(one_raw(OVERLAP, bytes(6))),
    "a gap of … bytes before its data": stats(one_raw(HOLE, bytes(6))),
    "weight tensor is entirely zero": verify(of(mini_hf, zeroed(f"{GATE}.weight"))),
    "its fixed stream is entirely zero, but its exceptions are not": verify(of(mini_hf, zeroed(FIXED))),
    "sha256 is …, expected …": verify(of(mini_container, first_bytes(f"{GATE}.weight", b"\1\2\3", f"tensors/{ONE}"))),
    "the files come from different revisions": verify(of(mini_hf, two_revisions)),
    "decodes to SHA-256 …, but the original's is …": verify(of_another_source),
    "it became shorter while csf-tool read it": shrinking,
    "NO FAULT FOUND, but nothing to compare with": verify(mini_hf),
    "no SHA-256 is recorded for …": lambda folder: run("identity", mini_hf(folder)).output,
    "VERIFIED IN PART": verify(of(mini_container, lambda root: (root / "metadata" / "x.py").write_text("pass"))),
    "size-based: other bytes of the same size have the same identity": lambda folder: (
        run("identity", mini_hf(folder), "--by", "sizes").output
    ),
    "is a list of revision …": lists,
    "base … is above …": verify(of(mini_hf, first_bytes(FIXED, b"\xff"))),
    "has no … exception list beside …": stats(one_file(PAIR[2])),
    "its rows and columns are unknown: the fixed stream is 1-D, and there is no weight and no receipt": stats(
        one_file(*LONE)
    ),
    "its rows and columns are contradictory: …": stats(
        one_file(*streams(SCALE, NVFP4), Tensor("m.weight", "U8", (16, 64), bytes(1024)))
    ),
    "is stored both dense and in CSF streams": stats(one_file(*PAIR, SCALE)),
    "is a stream of a codec that this version of csf-tool does not know": stats(
        one_file(*PAIR, Tensor("n.weight_scale.nvfp6_csf_fixed", "U8", (4,), bytes(4)))
    ),
    "is inside its row's window": verify(of(mini_hf, redundant)),
    "receipts: missing": verify(home_made),
    "the manifest has …": verify(
        of(mini_container, lambda root: change_json(root / "build-contract.json", lambda c: c.update(family="other")))
    ),
    "has CSF streams, but its recipe is not marked weight_scale_encoding: csf": stats(of(mini_hf, plain_recipes)),
    "not expanded: …": expand(of(mini_hf, gone(ONE))),
    "holds no CSF planes, so there is nothing to expand": expand(mini_dense),
    "0 planes matched": lambda folder: run("compress", mini_dense(folder / "x"), folder / "out").output,
    "needed, … free": full,
    "is not empty; give a new or empty folder": expand(mini_hf, to=only("a")),
    "does not belong there: remove the wrong files, and run the command again": expand(
        mini_hf, "--adopt", to=only("config.json")
    ),
    "holds an unfinished run of something else": begun_elsewhere,
    "must not be inside one another": lambda folder: run("expand", mini_hf(folder), folder / "out").output,
    "is a link (into a Hub cache?), not a file of its own": linked,
}


NO_FAULTS = {
    "NO FAULT FOUND, but nothing to compare with",
    "VERIFIED IN PART",
    "size-based: other bytes of the same size have the same identity",
}
"""Messages that say how much was proved, and have no code."""

OTHERS = "\n| code | what it means |\n| --- | --- |\n"


def entries() -> dict[str, str]:
    """The entries of the page by their messages, each with its anchor, which lies in the heading."""
    pattern = r'^### (<a id="[^"]+"></a>)?`([^\n]+)`$(.*?)(?=^##)'
    found = re.findall(pattern, PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
    return {message: anchor + text for anchor, message, text in found}


def anchors(text: str) -> list[str]:
    return re.findall(r'<a id="(.*?)"></a>', text)


def recorded_faults(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Code]]:
    """A list that fills with the words and the code of every problem and error that is shown from here on."""
    found: list[tuple[str, Code]] = []

    def record(cls: type[Problem | CsfToolError]) -> None:
        words: Callable[[Any], str] = cls.__str__

        def recorded(self: Any) -> str:
            found.append((words(self), self.code))
            return words(self)

        monkeypatch.setattr(cls, "__str__", recorded)

    record(Problem)
    record(CsfToolError)
    return found


@pytest.mark.parametrize("message", MESSAGES)
def test_the_message_is_what_a_user_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    pattern = ".+".join(re.escape(part) for part in message.split("…"))
    recorded = recorded_faults(monkeypatch)
    output = MESSAGES[message](tmp_path)
    assert re.search(pattern, output), output
    codes = {code.value for text, code in recorded if re.search(pattern, text)}
    assert codes == set(anchors(entries()[message]))
    assert bool(codes) == (message not in NO_FAULTS)


def test_the_page_has_exactly_these_messages() -> None:
    assert list(entries()) == list(MESSAGES)


def test_every_code_stands_on_the_page_once_and_every_anchor_is_a_code() -> None:
    before, head, _ = PAGE.read_text().partition(OTHERS)
    rows = [f'| <a id="{c}"></a>`{c}` | {c.meaning} |\n' for c in Code if c not in anchors(before)]
    if os.environ.get("CSF_TOOL_UPDATE_SNAPSHOTS"):
        PAGE.write_text(before + head + "".join(rows))
    assert PAGE.read_text() == before + head + "".join(rows)
    assert sorted(anchors(PAGE.read_text())) == sorted(Code)


def test_every_entry_names_the_code_that_is_its_anchor() -> None:
    for text in entries().values():
        assert re.findall(r"Code `(.*?)`\.", text) == anchors(text)
