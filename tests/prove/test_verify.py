"""verify: what it finds, what it proves, and that it never says more than it knows."""

import hashlib
import json
import random
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors import deserialize

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.errors import CheckpointError
from csf_tool.progress import Silent
from csf_tool.prove.options import VerifyOptions
from csf_tool.prove.verdict import Verified
from csf_tool.prove.verify import verify
from csf_tool.running import forked
from tests.building import overwrite, span
from tests.downloads import hub_cache
from tests.fixture_types import Copied, Sample
from tests.oracle import Tensors, Unsure, logical_tensors

GATE = "model.language_model.layers.0.mlp.experts.0.gate_proj"
FIRST = "model-00001-of-00003.safetensors"


def run(path: Path, against: Path | None = None) -> Verified:
    return verify(open_checkpoint(path), open_checkpoint(against) if against else None, NumpyDecoder(), Silent())


def statuses(verified: Verified) -> dict[str, str]:
    return {check.name: check.status.value for check in verified.checks}


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_a_container_proves_stored_and_source_bytes(sample: Sample, fmt: str) -> None:
    found = run(sample(f"{fmt}-csf-container"))
    assert statuses(found) == {
        "structure": "passed",
        "streams": "passed",
        "decode": "passed",
        "stored": "passed",
        "source": "passed",
        "against": "skipped",
    }
    assert found.unproved == []


def test_without_hashes_or_a_reference_nothing_is_said_of_the_original_bytes(sample: Sample) -> None:
    found = run(sample("nvfp4-csf-hf"))
    assert found.ok
    assert [statuses(found)[name] for name in ("stored", "source", "against")] == ["skipped"] * 3
    assert found.proved == ["36 planes are well-formed and can be decoded"]
    assert len(found.unproved) == 2


@pytest.mark.parametrize(
    ("csf", "dense"),
    [("nvfp4-csf-hf", "nvfp4-dense"), ("nvfp4-csf-container", "nvfp4-dense"), ("mxfp4-csf-container", "mxfp4-dense")],
)
def test_a_dense_reference_proves_every_tensor(sample: Sample, csf: str, dense: str) -> None:
    found = run(sample(csf), sample(dense))
    assert found.ok
    shards = [p.read_bytes() for p in sample(dense).glob("*.safetensors")]
    assert found.reference.checked == sum(len(tensors_of(shard)) for shard in shards)


def tensors_of(shard: bytes) -> dict[str, dict[str, Any]]:
    """Name to dtype, shape and data, by the safetensors library."""
    return dict(deserialize(shard))  # type: ignore[no-untyped-call]


def test_a_zeroed_stream_is_well_formed_but_warned_of(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    begin, end = span(folder / FIRST, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    overwrite(folder / FIRST, begin, bytes(end - begin))
    alone = run(folder)
    assert alone.ok  # its exceptions are not zero, so the plane is not all zero: no structure can find it
    [warning] = alone.streams.warnings
    assert "its fixed stream is entirely zero, but its exceptions are not" in str(warning)
    assert not run(folder, copied("nvfp4-dense")).ok


def test_an_all_zero_weight_is_a_warning(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    begin, end = span(folder / FIRST, f"{GATE}.weight")
    overwrite(folder / FIRST, begin, bytes(end - begin))
    found = run(folder)
    assert [(p.file, p.tensor) for p in found.streams.warnings] == [(FIRST, f"{GATE}.weight")]


def test_the_first_differing_row_and_column_are_named(copied: Copied, sample: Sample) -> None:
    folder = copied("nvfp4-csf-hf")
    begin, _ = span(folder / FIRST, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    raw = (folder / FIRST).read_bytes()
    row, codes = 18, begin + 208 + 16 + 2 * 12  # row 2 of the second slab; 12 code bytes a row
    overwrite(folder / FIRST, codes + 3, bytes([raw[codes + 3] ^ 0x10]))  # the high nibble: column 7
    found = run(folder, sample("nvfp4-dense"))
    assert [str(p) for p in found.reference.failures] == [
        f"{FIRST}: {GATE}.weight_scale: differs first at row {row}, column 7; wrong bytes: 1 of 9216 (0.0109%)"
    ]


def test_a_fault_in_one_tensor_does_not_hide_the_next(copied: Copied, sample: Sample) -> None:
    folder = copied("nvfp4-csf-hf")
    for projection in ("gate_proj", "up_proj", "down_proj"):
        begin, _ = span(folder / FIRST, f"{GATE[:-9]}{projection}.weight_scale.nvfp4_csf_fixed")
        overwrite(folder / FIRST, begin + 5, b"\xff")
    begin, _ = span(folder / FIRST, f"{GATE}.weight")
    overwrite(folder / FIRST, begin, bytes([(folder / FIRST).read_bytes()[begin] ^ 1]))
    found = run(folder, sample("nvfp4-dense"))
    assert [p.tensor.rsplit(".", 2)[1] for p in found.streams.failures] == ["down_proj", "gate_proj", "up_proj"]
    assert all("row 5: base 255 is above 240" in p.problem for p in found.streams.failures)
    assert len(found.decode.failures) == 3
    assert [p.tensor for p in found.reference.failures] == [f"{GATE}.weight"]


def test_missing_and_extra_tensors_are_named(copied: Copied, sample: Sample) -> None:
    reference = copied("nvfp4-dense")
    (reference / "model-00003-of-00003.safetensors").unlink()
    index = json.loads((reference / "model.safetensors.index.json").read_text())
    index["weight_map"] = {k: v for k, v in index["weight_map"].items() if "00003-of" not in v}
    (reference / "model.safetensors.index.json").write_text(json.dumps(index))
    found = run(sample("nvfp4-csf-hf"), reference)
    names = {p.tensor for p in found.reference.failures}
    assert "model.language_model.embed_tokens.weight" in names
    assert all(p.problem == "the reference does not have it" for p in found.reference.failures)
    back = run(reference, sample("nvfp4-csf-hf"))
    assert all(p.problem.startswith("missing; the reference has it in") for p in back.reference.failures)
    assert {p.tensor for p in back.reference.failures} == names


def test_floats_are_compared_as_bytes(tmp_path: Path) -> None:
    """NaN equals itself, and -0 is not +0."""

    def write(folder: str, values: bytes) -> Path:
        header = json.dumps({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + values)
        return tmp_path / folder

    a = write("a", struct.pack("<ff", float("nan"), 0.0))
    b = write("b", struct.pack("<ff", float("nan"), 0.0))
    c = write("c", struct.pack("<ff", float("nan"), -0.0))
    assert run(a, b).ok
    assert "differs first at element 1" in str(run(a, c).reference.failures[0])


@pytest.mark.slow
@pytest.mark.parametrize("container", ["mxfp4-csf-container", "nvfp4-csf-container"])
def test_one_flipped_bit_anywhere_in_a_container_is_reported(copied: Copied, container: str) -> None:
    folder = copied(container)
    rng = random.Random(container)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        original = path.read_bytes()
        for _ in range(12):
            bit = rng.randrange(8 * len(original))
            overwrite(path, bit // 8, bytes([original[bit // 8] ^ 1 << bit % 8]))
            assert not passes(folder), f"bit {bit} of {path.name}"
            path.write_bytes(original)
    assert passes(folder)


def passes(folder: Path, against: Path | None = None) -> bool:
    try:
        return run(folder, against).ok
    except CheckpointError:
        return False


def test_a_flipped_code_under_an_exception_breaks_stored_but_not_source(copied: Copied) -> None:
    """The two statements are different ones: here the decoded bytes are still the source's."""
    folder = copied("nvfp4-csf-container")
    shard = folder / "tensors" / FIRST
    begin, _ = span(shard, f"{GATE}.weight_scale.nvfp4_csf_exceptions")
    position = struct.unpack("<I", shard.read_bytes()[begin : begin + 4])[0] & 0xFFFFFF
    row, col = divmod(position, 24)
    fixed, _ = span(shard, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    code = fixed + row // 16 * 208 + 16 + row % 16 * 12 + col // 2
    overwrite(shard, code, bytes([shard.read_bytes()[code] ^ (0x10 if col % 2 else 0x01)]))
    found = run(folder)
    assert (statuses(found)["stored"], statuses(found)["source"]) == ("failed", "passed")


def test_a_reencoded_container_passes_source_but_not_stored(copied: Copied) -> None:
    folder = copied("mxfp4-csf-container")
    manifest = json.loads((folder / "manifest.json").read_text())
    row = manifest["shards"][0]
    row["target_sha256"] = "0" * 64
    (folder / "manifest.json").write_text(json.dumps(manifest))
    receipt_path = folder / "receipts" / f"{row['file']}.json"
    receipt = json.loads(receipt_path.read_text())
    receipt["target_sha256"] = "0" * 64
    receipt_path.write_text(json.dumps(receipt))
    found = run(folder)
    assert (statuses(found)["stored"], statuses(found)["source"]) == ("failed", "passed")


def decoded(path: Path) -> Tensors | None:
    """Every dense tensor of a shard by the oracle; None where it has no certain meaning."""
    try:
        return logical_tensors(path)
    except Unsure:
        return None


@pytest.mark.slow
def test_whatever_changes_a_decoded_byte_is_found_against_a_reference(copied: Copied, sample: Sample) -> None:
    folder, reference = copied("nvfp4-csf-hf"), sample("nvfp4-dense")
    path = folder / FIRST
    original = path.read_bytes()
    expected = decoded(path)
    assert expected is not None
    (length,) = struct.unpack("<Q", original[:8])
    rng = random.Random(7)
    streams = [span(path, f"{GATE}.weight_scale.nvfp4_csf_{kind}") for kind in ("fixed", "exceptions")]
    for i in range(60):
        begin, end = [(8 + length, len(original)), *streams][i % 3]
        bit = rng.randrange(8 * begin, 8 * end)
        overwrite(path, bit // 8, bytes([original[bit // 8] ^ 1 << bit % 8]))
        assert decoded(path) == expected or not passes(folder, reference), f"bit {bit}"
        path.write_bytes(original)
    assert passes(folder, reference)


def test_a_sums_file_proves_the_stored_bytes(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in sorted(folder.glob("*.safetensors"))]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    assert statuses(run(folder))["stored"] == "passed"
    overwrite(folder / FIRST, -1, b"\x55")
    assert [p.file for p in run(folder).stored.failures] == [FIRST]


def test_a_hub_cache_proves_the_stored_bytes_by_the_names_of_its_blobs(copied: Copied, tmp_path: Path) -> None:
    snapshot = hub_cache(copied("nvfp4-csf-hf"), tmp_path / "cache")
    found = run(snapshot)
    assert (found.stored.status.value, found.stored.checked) == ("passed", 6)
    overwrite((snapshot / "config.json").resolve(), 0, b" {")
    overwrite((snapshot / FIRST).resolve(), 20_000, b"\x00\x01\x02")
    assert [p.file for p in run(snapshot).stored.failures] == ["config.json", FIRST]


def test_what_hf_download_recorded_proves_the_stored_bytes(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    notes = folder / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    for path in folder.glob("*.safetensors"):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        (notes / f"{path.name}.metadata").write_text(f"{'b' * 40}\n{digest}\n1767225600.0\n")
    found = run(folder)
    assert (found.stored.status.value, found.stored.note) == ("passed", "3 files by the hash that hf download recorded")
    (notes / f"{FIRST}.metadata").write_text(f"{'c' * 40}\n{'0' * 64}\n1767225600.0\n")
    found = run(folder)
    assert [p.file for p in found.stored.failures] == [FIRST]
    assert "different revisions" in found.stored.warnings[0].problem


def test_an_all_zero_plane_is_a_warning(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    path = folder / FIRST
    begin, end = span(path, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    overwrite(path, begin, bytes(end - begin))
    begin, end = span(path, f"{GATE}.weight_scale.nvfp4_csf_exceptions")
    words = struct.unpack(f"<{(end - begin) // 4}I", path.read_bytes()[begin:end])
    overwrite(path, begin, struct.pack(f"<{len(words)}I", *(word & 0xFFFFFF for word in words)))
    found = run(folder)
    zero = [p for p in found.streams.warnings if "scale plane is entirely zero" in p.problem]
    assert [p.tensor for p in zero] == [f"{GATE}.weight_scale"]


def test_an_exception_inside_its_window_is_a_warning(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    path = folder / FIRST
    fixed, _ = span(path, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    begin, _ = span(path, f"{GATE}.weight_scale.nvfp4_csf_exceptions")
    raw = path.read_bytes()
    position = struct.unpack("<I", raw[begin : begin + 4])[0] & 0xFFFFFF
    row = position // 24
    base = raw[fixed + row // 16 * 208 + row % 16]
    overwrite(path, begin + 3, bytes([base + 1]))
    found = run(folder)
    assert found.ok
    assert "is inside its row's window" in found.streams.warnings[0].problem


def test_a_shard_that_shrinks_meanwhile_is_an_error_and_not_a_signal(copied: Copied) -> None:
    folder = copied("nvfp4-csf-container")
    opened = open_checkpoint(folder)
    shard = folder / "tensors" / FIRST
    with open(shard, "r+b") as file:
        file.truncate(shard.stat().st_size // 2)
    found = verify(opened, None, NumpyDecoder(), Silent())
    assert not found.ok
    failures = found.streams.failures + found.structure.failures
    assert any("it became shorter while csf-tool read it" in str(p) for p in failures)
    assert found.decode.checked > 20  # the other shards were still verified


def test_a_truncated_download_is_reported_with_the_missing_bytes(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    with open(folder / FIRST, "r+b") as file:
        file.truncate((folder / FIRST).stat().st_size - 100_000)
    found = run(folder)
    assert "100000 bytes are missing" in str(found.structure.failures[0])
    assert len({p.tensor for p in found.structure.failures}) > 1


@pytest.mark.parametrize("receipt_field", ["source_sha256", "source_header_base64"])
def test_a_missing_receipt_field_leaves_the_source_unproved(copied: Copied, receipt_field: str) -> None:
    folder = copied("mxfp4-csf-container")
    path = next((folder / "receipts").iterdir())
    receipt = json.loads(path.read_text())
    del receipt[receipt_field]
    path.write_text(json.dumps(receipt))
    found = run(folder)
    assert not found.ok
    assert not found.source.holds


def test_tensors_that_cannot_be_had_leave_the_reference_unproved(copied: Copied, sample: Sample) -> None:
    """Every tensor that could be compared is equal, and yet not every tensor is."""
    folder = copied("nvfp4-csf-hf")
    begin, _ = span(folder / FIRST, f"{GATE}.weight_scale.nvfp4_csf_fixed")
    overwrite(folder / FIRST, begin, b"\xff")
    found = run(folder, sample("nvfp4-dense"))
    assert statuses(found)["against"] == "skipped"
    assert "except 1 tensor that cannot be read or decoded" in found.reference.note
    assert not any("every tensor equals" in statement for statement in found.proved)


def test_a_missing_shard_leaves_source_and_stored_unproved(copied: Copied) -> None:
    """What there is may be right: it is not the whole."""
    folder = copied("nvfp4-csf-container")
    (folder / "tensors" / FIRST).unlink()
    found = run(folder)
    assert statuses(found)["source"] == "skipped"
    assert found.source.note.startswith("24 of 36 planes and 2 of 3 rebuilt shards")
    assert not any("original ones" in statement for statement in found.proved)
    partly = copied("nvfp4-csf-hf")
    shards = sorted(partly.glob("*.safetensors"))[1:]
    sums = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in shards)
    (partly / "SHA256SUMS").write_text(sums)
    (partly / FIRST).unlink()
    assert run(partly).stored.note == f"no published hash for 1 shard, {FIRST}"


def test_a_file_that_is_gone_is_missed_where_its_hash_is_known(copied: Copied, tmp_path: Path) -> None:
    snapshot = hub_cache(copied("nvfp4-csf-hf"), tmp_path / "cache")
    (snapshot / "generation_config.json").resolve().unlink()
    text = "is missing, but its hash is known (the blob's name in the Hub cache)"
    assert [str(p) for p in run(snapshot).stored.failures] == [f"generation_config.json: {text}"]


def test_a_sums_file_with_a_damaged_line_fails(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    digest = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
    (folder / "SHA256SUMS").write_text(f"{digest[:-1]}q  config.json\n")
    assert [p.file for p in run(folder).stored.failures] == ["SHA256SUMS"]


def test_tensors_alone_may_be_held_against_a_reference_of_another_config(copied: Copied, sample: Sample) -> None:
    config = copied("nvfp4-csf-hf") / "config.json"
    config.write_text(config.read_text().replace('"model_type"', '"transformers_version": "5.0", "model_type"', 1))
    assert "transformers_version" in config.read_text()
    assert not run(config.parent, sample("nvfp4-dense")).ok
    opened, reference = open_checkpoint(config.parent), open_checkpoint(sample("nvfp4-dense"))
    found = verify(opened, reference, NumpyDecoder(), Silent(), VerifyOptions(tensors_only=True))
    assert found.ok
    assert "beside" not in found.reference.note


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux alone")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # a library's threads, which no shard touches
@pytest.mark.parametrize("reference", [True, False])
def test_forked_workers_find_what_threads_find(
    copied: Copied, sample: Sample, monkeypatch: pytest.MonkeyPatch, reference: bool
) -> None:
    folder = copied("nvfp4-csf-hf")
    for shard in sorted(folder.glob("*.safetensors")):
        overwrite(shard, shard.stat().st_size - 3, b"\xff\xff\xff")
    against = sample("nvfp4-dense") if reference else None
    used: list[int] = []

    def found(may_fork: bool) -> Verified:
        monkeypatch.setattr("csf_tool.prove.verify.may_fork", lambda _: may_fork)
        options = VerifyOptions(jobs=2, save_hashes="sums")
        reference = open_checkpoint(against) if against else None
        return verify(open_checkpoint(folder), reference, NumpyDecoder(), Silent(), options)

    def run_forked(*args: Any) -> None:
        used.append(1)
        forked.run_forked(*args)

    monkeypatch.setattr("csf_tool.prove.verify.run_forked", run_forked)
    by_workers = found(True)
    assert used == [1]
    assert by_workers == found(False)
    assert used == [1]
    assert bool(by_workers.reference.failures) == reference
