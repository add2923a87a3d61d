"""Two codecs in one checkpoint: every command on NVFP4 experts beside MXFP4 experts of a draft layer.

What is right comes from the dense bytes and from the tests' own encoder and decoder.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from csf_tool import safe_open
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.look.plan import make_plan
from csf_tool.progress import Silent
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.selection import Rules
from tests import oracle
from tests.building import (
    DRAFT_EXPERTS,
    MAIN_EXPERTS,
    MXFP4,
    NVFP4,
    Tensor,
    compressed,
    csf_two_codecs,
    dense_two_codecs,
    is_scale,
    matrix,
    mini_container,
    overwrite,
    sha256,
    shard_name,
    span,
    tree,
    two_codecs,
    two_codecs_config,
    without_receipts,
    write_hf,
)
from tests.commands import run, says
from tests.fixture_types import Copied, Sample

Shards = dict[str, list[Tensor]]

DENSE, CSF = "two-codecs-dense", "two-codecs-csf-hf"
PLANES = {"nvfp4": 12, "mxfp4": 6}
SCALES = 16 * 8
STREAMS = {"nvfp4": 16 * (1 + 4) + 4 * 4, "mxfp4": 16 * (1 + 1) + 4 * 4}
"""Bytes of a plane of either codec: 16 rows of 8 columns, and four exceptions."""


@pytest.mark.parametrize(("name", "build"), [(DENSE, dense_two_codecs), (CSF, csf_two_codecs)])
def test_the_samples_are_those_of_the_builders(
    sample: Sample, tmp_path: Path, name: str, build: Callable[[Path], Path]
) -> None:
    assert tree(sample(name)) == tree(build(tmp_path / "built"))


def document(*args: object) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


# What is written


def same_files(out: Path, expected: Path) -> None:
    """The same shards byte for byte, and the same documents."""
    ours, theirs = tree(out), tree(expected)
    assert ours.keys() == theirs.keys()
    for name, content in ours.items():
        if name.endswith(".json"):
            assert json.loads(content) == json.loads(theirs[name]), name
        else:
            assert content == theirs[name], name


def test_both_are_compressed(sample: Sample, tmp_path: Path) -> None:
    found = document("compress", sample(DENSE), tmp_path / "out")
    same_files(tmp_path / "out", sample(CSF))
    assert (found["layout"], found["format"], found["formats"]) == ("hf", None, ["nvfp4", "mxfp4"])
    assert found["by_format"] == [
        {"format": name, "planes": n, "dense_bytes": n * SCALES, "csf_bytes": n * STREAMS[name]}
        for name, n in PLANES.items()
    ]
    assert (found["planes"], found["left_dense"]) == (18, [])
    [note] = found["notes"]
    assert note.startswith("no reader can find MXFP4 CSF in the Hugging Face layout")


def test_both_are_expanded(sample: Sample, tmp_path: Path) -> None:
    assert document("expand", sample(CSF), tmp_path / "out")["planes"] == 18
    same_files(tmp_path / "out", sample(DENSE))


def test_the_same_again_is_complete(sample: Sample, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = document("compress", sample(DENSE), out)
    again = document("compress", sample(DENSE), out)
    assert (again["was_complete"], again["by_format"]) == (True, before["by_format"])


def test_the_report_counts_each(sample: Sample, tmp_path: Path) -> None:
    says(run("compress", sample(DENSE), tmp_path / "out"), "12 NVFP4 planes and 6 MXFP4 planes, 2.25 KiB -> 1.")


REFUSED = {
    "compress --to container": [DENSE, "out", "--to", "container"],
    "convert --to container": [CSF, "out", "--to", "container"],
    "convert --to serving": [CSF, "out", "--to", "serving"],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_holds_one_codec_says_so_first(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    source, *rest = REFUSED[name]
    result = run(name.split()[0], sample(source), *rest)
    assert result.exit_code == 2
    says(result, f"--to {rest[-1]}: ", " one codec, but these scales are NVFP4 and MXFP4; ")
    assert [line for line in result.stderr.splitlines() if "on the CPU" not in line] == [result.stderr.splitlines()[-1]]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rules", "layout", "compressed"),
    [
        (["--exclude", "mtp.*"], "hf", "nvfp4"),
        (["--exclude", "mtp.*", "--to", "container"], "container", "nvfp4"),
        (["--exclude", "model.*"], "container", "mxfp4"),
        (["--include", "mtp.*"], "container", "mxfp4"),
    ],
)
def test_one_alone_goes_where_it_has_readers(
    sample: Sample, tmp_path: Path, rules: list[str], layout: str, compressed: str
) -> None:
    found = document("compress", sample(DENSE), tmp_path / "out", *rules)
    assert (found["layout"], found["format"], found["notes"]) == (layout, compressed, [])
    assert {entry["tensor"].partition(".")[0] for entry in found["left_dense"]} == {
        "mtp" if compressed == "nvfp4" else "model"
    }
    assert oracle.logical_tensors(tmp_path / "out") == oracle.stored_tensors(sample(DENSE))
    assert document("verify", tmp_path / "out", "--against", sample(DENSE))["verdict"] == "VERIFIED."


def test_the_gain_of_a_plane_is_that_of_its_own_codec(tmp_path: Path) -> None:
    """16 rows of 4 columns: 64 bytes are 64 as NVFP4 CSF, and 48 as MXFP4 CSF."""
    parts = ("gate_proj", "up_proj", "down_proj")
    main = [t for i, p in enumerate(parts) for t in matrix(f"{MAIN_EXPERTS.format(0)}.0.{p}", NVFP4, i, cols=4)]
    draft = [t for i, p in enumerate(parts) for t in matrix(f"{DRAFT_EXPERTS}.0.{p}", MXFP4, i, cols=4)]
    dense = write_hf(tmp_path / "dense", {"model.safetensors": main + draft}, config=two_codecs_config(csf=False))
    found = document("compress", dense, tmp_path / "out")
    assert (found["formats"], found["planes"]) == (["mxfp4"], 3)
    [reason] = {e["reason"].partition(" (")[0] for e in found["left_dense"]}
    assert reason.endswith("as a whole would not shrink: CSF would take 192 bytes, but dense 192")
    assert oracle.logical_tensors(tmp_path / "out") == oracle.stored_tensors(dense)


# Ways of mixing


def by_layer() -> Shards:
    """A layer of one codec, and one of the other, under the same names."""
    return {
        shard_name(i + 1, 2): [
            t
            for j, part in enumerate(("gate_proj", "up_proj", "down_proj"))
            for t in matrix(f"{MAIN_EXPERTS.format(i)}.0.{part}", codec, 10 * i + j, cols=8)
        ]
        for i, codec in enumerate((NVFP4, MXFP4))
    }


def by_projection() -> Shards:
    """Experts whose down projection is of another codec than gate and up."""
    codecs = {"gate_proj": NVFP4, "up_proj": NVFP4, "down_proj": MXFP4}
    experts = MAIN_EXPERTS.format(0)
    tensors = [
        t
        for expert in range(2)
        for i, (part, codec) in enumerate(codecs.items())
        for t in matrix(f"{experts}.{expert}.{part}", codec, 10 * expert + i, cols=8)
    ]
    return {"model.safetensors": tensors}


def by_expert() -> Shards:
    """Experts of one layer of either codec."""
    tensors = [
        t
        for expert, codec in enumerate((NVFP4, MXFP4, NVFP4))
        for i, part in enumerate(("gate_proj", "up_proj", "down_proj"))
        for t in matrix(f"{MAIN_EXPERTS.format(0)}.{expert}.{part}", codec, 10 * expert + i, cols=8)
    ]
    return {"model.safetensors": tensors}


def one_name(dtype: str = "F8_E8M0") -> Shards:
    """Scales of both codecs under ModelOpt's name."""

    def renamed(tensor: Tensor) -> Tensor:
        if not tensor.name.endswith(".scale"):
            return tensor
        return replace(tensor, name=tensor.name.replace(".scale", ".weight_scale"), dtype=dtype)

    return {name: list(map(renamed, tensors)) for name, tensors in two_codecs().items()}


MIXES: dict[str, Callable[[], Shards]] = {
    "draft experts": two_codecs,
    "draft experts, the codecs exchanged": lambda: two_codecs(MXFP4, NVFP4),
    "by layer": by_layer,
    "by projection": by_projection,
    "by expert": by_expert,
    "one name": one_name,
}


@pytest.mark.parametrize("name", MIXES)
def test_every_mix_comes_back(tmp_path: Path, name: str) -> None:
    dense = write_hf(tmp_path / "dense", MIXES[name](), config={"model_type": "mini"})
    out, back = tmp_path / "out", tmp_path / "back"
    found = document("compress", dense, out)
    assert (sorted(found["formats"]), found["left_dense"]) == (["mxfp4", "nvfp4"], [])
    assert oracle.stored_tensors(out) == {
        t.name: oracle.Stored(t.dtype, t.shape, t.data) for ts in MIXES[name]().values() for t in compressed(ts, MXFP4)
    }
    for folder in (out, dense):
        assert [p for p in open_checkpoint(folder).problems if p.file != "config.json"] == []
    document("expand", out, back)
    assert oracle.stored_tensors(back) == oracle.stored_tensors(dense)
    checked = document("verify", out, "--against", dense)
    assert checked["verdict"] == "VERIFIED."
    assert [w["problem"] for check in checked["checks"] for w in check["warnings"] if w["file"] != "config.json"] == []


def test_scales_whose_label_only_receipts_keep_are_named(tmp_path: Path) -> None:
    dense = write_hf(tmp_path / "dense", one_name("U8"), config=two_codecs_config(csf=False))
    found = document("compress", dense, tmp_path / "out")
    assert any("6 block scales stored as U8 will be F8_E8M0 when they are expanded" in note for note in found["notes"])
    assert run("verify", tmp_path / "out", "--against", dense).exit_code == 0


FAULTS: dict[str, tuple[Callable[[Tensor], Tensor | None], str]] = {
    "another label": (
        lambda scale: replace(scale, dtype="F8_E4M3"),
        "is F8_E4M3, but MXFP4 scales are F8_E8M0/U8",
    ),
    "rows lost": (lambda s: replace(s, shape=(8, 8), data=s.data[:64]), "scale is 8x8, but its weight needs 16x8"),
    "columns lost": (lambda s: replace(s, shape=(16, 4), data=s.data[:64]), "scale is 16x4, but its weight needs 16x8"),
    "no scale": (lambda _: None, "has no block scale, but"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("mix", ["draft experts", "by layer", "by projection", "by expert"])
def test_a_fault_is_told_by_siblings_of_its_own_codec(tmp_path: Path, mix: str, fault: str) -> None:
    shards = MIXES[mix]()
    change, text = FAULTS[fault]
    first = next(t for tensors in shards.values() for t in tensors if t.dtype == "F8_E8M0")
    for tensors in shards.values():
        tensors[:] = [kept for t in tensors if (kept := change(t) if t is first else t)]
    checkpoint = open_checkpoint(write_hf(tmp_path / "dense", shards, config={"model_type": "mini"}))
    [problem] = [p for p in checkpoint.problems if p.file != "config.json"]
    assert problem.problem.startswith(text), problem


# What looks


def test_stats_count_each(sample: Sample) -> None:
    for name in (DENSE, CSF):
        found = document("stats", sample(name))
        csf = name == CSF
        assert found["by_format"] == [
            {
                "format": fmt,
                "planes": n,
                "dense_bytes": n * SCALES,
                "csf_bytes": n * STREAMS[fmt] if csf else None,
                "exceptions": 4 * n if csf else None,
            }
            for fmt, n in PLANES.items()
        ]
        text = run("stats", sample(name)).stdout
        for title, projection in (("NVFP4", "4"), ("MXFP4", "2")):
            assert re.search(rf"^{title}\t", text, re.MULTILINE)
            assert re.search(rf"^down_proj 16x8 {title}\t{projection}\t", text, re.MULTILINE), text


def test_stats_of_bytes_go_by_layer_and_format(sample: Sample) -> None:
    found = document("stats", sample(CSF), "--scales")["scale_bytes"]
    assert [(group["layer"], group["format"], group["scales"]) for group in found] == [
        ("model.layers.0", "nvfp4", 6 * SCALES),
        ("model.layers.1", "nvfp4", 6 * SCALES),
        ("mtp.layers.0", "mxfp4", 6 * SCALES),
    ]


def test_plan_has_stacks_of_each(sample: Sample) -> None:
    stacks = make_plan(open_checkpoint(sample(CSF))).stacks
    assert [(s.layer, s.format.name, s.experts, s.rows, s.cols) for s in stacks] == [
        (layer, fmt, 2, rows, 8)
        for layer, fmt in (("model.layers.0", "nvfp4"), ("model.layers.1", "nvfp4"), ("mtp.layers.0", "mxfp4"))
        for rows in (32, 16)
    ]
    says(run("plan", sample(CSF)), "down_proj, NVFP4", "down_proj, MXFP4", "gate_proj and up_proj, MXFP4")


@pytest.mark.parametrize("name", [DENSE, CSF])
def test_inspect_looks_into_either(sample: Sample, name: str) -> None:
    scales = {t.name: t.data for tensors in two_codecs().values() for t in tensors if is_scale(t)}
    for scale, fmt in (
        (f"{MAIN_EXPERTS.format(1)}.1.up_proj.weight_scale", "nvfp4"),
        (f"{DRAFT_EXPERTS}.1.up_proj.scale", "mxfp4"),
    ):
        found = document("inspect", sample(name), scale)
        assert (found["format"], found["rows"], found["cols"], found["exceptions"]) == (fmt, 16, 8, 4)
        assert found["byte_counts"] == np.bincount(np.frombuffer(scales[scale], np.uint8), minlength=256).tolist()


def test_identity_is_that_of_the_format_note(sample: Sample) -> None:
    files, hasher = tree(sample(CSF)), hashlib.sha256(b"lil-fp4-csf-hf-v1\0")
    for name in ("config.json", "model.safetensors.index.json"):
        hasher.update(files[name] + b"\0")
    for name in sorted(n for n in files if n.endswith(".safetensors")):
        hasher.update(f"{name}\0{sha256(files[name])}\0".encode())
    assert document("identity", sample(CSF), "--hash")["identity"] == hasher.hexdigest()


def test_verify_checks_both(sample: Sample) -> None:
    found = document("verify", sample(CSF), "--against", sample(DENSE), "--cross-check", "all")
    assert found["verdict"] == "VERIFIED."
    says(run("verify", sample(CSF)), "NVFP4 and MXFP4 CSF")


@pytest.mark.parametrize(
    "scale", [f"{MAIN_EXPERTS.format(1)}.0.up_proj.weight_scale", f"{DRAFT_EXPERTS}.0.up_proj.scale"]
)
def test_verify_finds_a_damage_of_either(copied: Copied, sample: Sample, scale: str) -> None:
    root = copied(CSF)
    shard = root / shard_name(2, 2)
    suffix = ".mxfp4_csf_fixed" if scale.startswith("mtp") else ".nvfp4_csf_fixed"
    begin, _ = span(shard, scale + suffix)
    overwrite(shard, begin + 1, bytes([shard.read_bytes()[begin + 1] ^ 1]))
    result = run("verify", root, "--against", sample(DENSE))
    assert result.exit_code == 1
    says(result, scale)


@pytest.mark.slow  # imports torch
def test_safe_open_gives_the_dense_bytes(sample: Sample) -> None:
    torch = pytest.importorskip("torch")
    expected = oracle.stored_tensors(sample(DENSE))
    with safe_open(sample(CSF), "pt") as file:
        assert set(file.keys()) == expected.keys()
        for name, stored in expected.items():
            tensor = file.get_tensor(name)
            assert tensor.shape == stored.shape
            assert bytes(tensor.reshape(-1).view(torch.uint8).numpy()) == stored.data, name


def test_safe_open_as_numpy(sample: Sample) -> None:
    pytest.importorskip("ml_dtypes")
    expected = oracle.stored_tensors(sample(DENSE))
    with safe_open(sample(CSF) / shard_name(2, 2), "numpy") as file:
        for name in file.keys():
            assert file.get_tensor(name).tobytes() == expected[name].data, name


# A container that holds both all the same


def test_a_container_that_states_one_codec_is_read_and_warned_of(sample: Sample, tmp_path: Path) -> None:
    """The suffixes of the streams say the codec, whatever the manifest states."""
    root = without_receipts(mini_container(tmp_path / "container", NVFP4, content=two_codecs()))
    checkpoint = open_checkpoint(root)
    [problem] = [p for p in checkpoint.problems if "names NVFP4 only" in p.problem]
    assert problem.problem == "names NVFP4 only: readers that go by it will not find the MXFP4 planes"
    document("expand", root, tmp_path / "back")
    assert oracle.stored_tensors(tmp_path / "back") == oracle.stored_tensors(sample(DENSE))
    document("convert", root, tmp_path / "hf", "--to", "hf")
    assert oracle.stored_tensors(tmp_path / "hf") == oracle.stored_tensors(sample(CSF))


def test_the_source_is_consumed(tmp_path: Path) -> None:
    dense = dense_two_codecs(tmp_path / "dense")
    found = document("compress", dense, tmp_path / "out", "--consume-source", "--yes", "--jobs", "1")
    assert len(found["removed_sources"]) == 2
    same_files(tmp_path / "out", csf_two_codecs(tmp_path / "expected"))


def test_the_python_operation_gives_totals(sample: Sample, tmp_path: Path) -> None:
    options = CompressOptions(rules=Rules(keep_larger=True))
    done = compress(open_checkpoint(sample(DENSE)), tmp_path / "out", options, NumpyEncoder(), NumpyDecoder(), Silent())
    assert {of.format.name: of.planes for of in done.by_format} == PLANES
    assert (done.planes, done.dense_bytes) == (18, 18 * SCALES)
    assert done.csf_bytes == sum(n * STREAMS[name] for name, n in PLANES.items())
