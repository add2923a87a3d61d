"""expand against the dense originals, and its rules for the destination."""

import hashlib
import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from safetensors import safe_open

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.disk.reader import CHUNK_BYTES
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.progress import NOTHING, Amount, Silent
from csf_tool.write.expand import Expanded, expand
from tests.fixture_types import Copied, Sample


def run(source: Path, destination: Path) -> Expanded:
    return expand(open_checkpoint(source), destination, NumpyDecoder(), Silent())


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, without an unfinished run's journal."""
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.startswith(".csf-tool/")}


def header(path: Path) -> dict[str, dict[str, object]]:
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return dict(json.loads(raw[8 : 8 + length]))


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_a_container_gives_back_the_original_folder_byte_for_byte(sample: Sample, tmp_path: Path, fmt: str) -> None:
    done = run(sample(f"{fmt}-csf-container"), tmp_path / "out")
    assert tree(tmp_path / "out") == tree(sample(f"{fmt}-dense"))
    assert done.proved_shards == done.shards


def test_the_hf_layout_gives_every_tensor_of_the_original(sample: Sample, tmp_path: Path) -> None:
    run(sample("nvfp4-csf-hf"), tmp_path / "out")
    dense = sample("nvfp4-dense")
    for path in sorted(dense.glob("*.safetensors")):
        with safe_open(path, "pt") as theirs, safe_open(tmp_path / "out" / path.name, "pt") as ours:
            assert list(ours.offset_keys()) == list(theirs.offset_keys())
            assert ours.metadata() == theirs.metadata()
            for name in theirs.keys():
                mine, other = ours.get_tensor(name), theirs.get_tensor(name)
                assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
                assert mine.reshape(-1).view(dtype_bytes()).tolist() == other.reshape(-1).view(dtype_bytes()).tolist()


def dtype_bytes() -> object:
    import torch

    return torch.uint8


def test_the_hf_layout_gives_the_original_config_and_index(sample: Sample, tmp_path: Path) -> None:
    run(sample("nvfp4-csf-hf"), tmp_path / "out")
    dense = sample("nvfp4-dense")
    assert (tmp_path / "out" / "config.json").read_bytes() == (dense / "config.json").read_bytes()
    mine, theirs = (json.loads((d / "model.safetensors.index.json").read_text()) for d in (tmp_path / "out", dense))
    assert mine == theirs  # the sample's own total_size is that of the streams: the true one is written


def test_no_trace_of_csf_is_left(sample: Sample, tmp_path: Path) -> None:
    run(sample("nvfp4-csf-hf"), tmp_path / "out")
    for name, data in tree(tmp_path / "out").items():
        assert b"csf" not in (
            json.dumps(header(tmp_path / "out" / name)).encode() if "safetensors" in name[-12:] else data
        )


def test_a_container_without_receipts_is_expanded_to_an_ordinary_checkpoint(copied: Copied, tmp_path: Path) -> None:
    source = copied("mxfp4-csf-container")
    shutil.rmtree(source / "receipts")
    done = run(source, tmp_path / "out")
    assert done.proved_shards == []
    for path in sorted(Path(copied("mxfp4-dense", "theirs")).glob("*.safetensors")):
        ours = (tmp_path / "out" / path.name).read_bytes()
        assert header(tmp_path / "out" / path.name) == header(path)
        assert hashlib.sha256(ours).hexdigest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_tensor_is_carried_indexed_or_not(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-hf")
    index_path = source / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    name = "model.language_model.embed_tokens.weight"
    del index["weight_map"][name]
    index_path.write_text(json.dumps(index))
    extra = source / "amax.safetensors"
    extra.write_bytes(struct.pack("<Q", 2) + b"{}")
    (source / "notes").mkdir()
    (source / "notes" / "read.me").write_text("kept")
    run(source, tmp_path / "out")
    with safe_open(tmp_path / "out" / "model-00003-of-00003.safetensors", "pt") as ours:
        assert name in ours.keys()
    assert (tmp_path / "out" / "amax.safetensors").exists()
    assert (tmp_path / "out" / "notes" / "read.me").read_text() == "kept"
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert name not in written["weight_map"]


def test_a_missing_index_is_written_anew(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-hf")
    (source / "model.safetensors.index.json").unlink()
    run(source, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert written == json.loads((copied("nvfp4-dense") / "model.safetensors.index.json").read_text())


def test_one_file_is_expanded_to_one_file(sample: Sample, tmp_path: Path) -> None:
    name = "model-00001-of-00003.safetensors"
    run(sample("nvfp4-csf-hf") / name, tmp_path / "out")
    assert tree(tmp_path / "out") == {name: (sample("nvfp4-dense") / name).read_bytes()}


def test_links_into_a_cache_become_ordinary_files(copied: Copied, tmp_path: Path) -> None:
    source, blobs = copied("nvfp4-csf-hf"), tmp_path / "blobs"
    blobs.mkdir()
    for path in list(source.iterdir()):
        shutil.move(path, blobs / path.name)
        path.symlink_to(blobs / path.name)
    run(source, tmp_path / "out")
    assert not any(p.is_symlink() for p in (tmp_path / "out").iterdir())
    assert header(tmp_path / "out" / "model-00001-of-00003.safetensors")


def test_new_files_have_the_mode_that_the_umask_gives(sample: Sample, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run(sample("nvfp4-csf-hf"), tmp_path / "out")
    finally:
        os.umask(before)
    assert {oct(p.stat().st_mode & 0o777) for p in (tmp_path / "out").iterdir()} == {"0o640"}


@pytest.mark.parametrize("where", ["", "inside", "../nvfp4-csf-hf"])
def test_a_destination_inside_the_source_is_refused(copied: Copied, where: str) -> None:
    source = copied("nvfp4-csf-hf")
    before = tree(source)
    with pytest.raises(UsageError, match="must not be inside one another"):
        run(source, source / where)
    assert tree(source) == before


def test_a_link_to_the_source_is_refused(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-hf")
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(UsageError, match="must not be inside one another"):
        run(source, tmp_path / "link" / "out")


def test_a_source_inside_the_destination_is_refused(copied: Copied, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must not be inside one another"):
        run(copied("nvfp4-csf-hf"), tmp_path)


def test_nothing_is_overwritten(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        run(sample("nvfp4-csf-hf"), tmp_path)
    assert tree(tmp_path) == {"precious": b"mine"}


def test_lack_of_space_is_said_before_the_first_byte(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = sum(len(data) for data in tree(sample("nvfp4-dense")).values())
    usage = shutil.disk_usage(tmp_path)._replace(free=needed - 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(EnvironmentFault, match="missing"):
        run(sample("nvfp4-csf-hf"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_that_is_not_the_original_never_gets_its_name(copied: Copied, tmp_path: Path) -> None:
    source = copied("mxfp4-csf-container")
    shard = source / "tensors" / "model-00002-of-00002.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1  # in a weight: well-formed, but not the original
    shard.write_bytes(raw)
    with pytest.raises(CheckpointError, match="the rebuilt shard's SHA-256"):
        run(source, tmp_path / "out")
    assert "model-00002-of-00002.safetensors" not in tree(tmp_path / "out")


def test_broken_streams_are_refused(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-hf")
    shard = source / "model-00001-of-00003.safetensors"
    raw = bytearray(shard.read_bytes())
    (length,) = struct.unpack("<Q", raw[:8])
    name = "model.language_model.layers.0.mlp.experts.0.gate_proj.weight_scale.nvfp4_csf_fixed"
    offsets = header(shard)[name]["data_offsets"]
    assert isinstance(offsets, list)
    raw[8 + length + offsets[0]] = 241
    shard.write_bytes(raw)
    with pytest.raises(CheckpointError, match="row 0: base 241 is above 240"):
        run(source, tmp_path / "out")
    assert not any(name.startswith("model-00001") or name.endswith(".json") for name in tree(tmp_path / "out"))


def test_an_incomplete_checkpoint_is_refused_before_writing(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-hf")
    (source / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors: is missing"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_stored_tensor_that_no_source_header_has_is_not_dropped(copied: Copied, tmp_path: Path) -> None:
    """The original cannot be restored bit for bit and every tensor be carried as well: neither is done halfway."""
    source = copied("mxfp4-csf-container")
    (source / "build-contract.json").unlink()
    shard = source / "tensors" / "model-00001-of-00002.safetensors"
    raw = shard.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    entries, data = header(shard), raw[8 + length :]
    entries["extra"] = {"dtype": "U8", "shape": [4], "data_offsets": [len(data), len(data) + 4]}
    new = json.dumps(entries).encode()
    shard.write_bytes(struct.pack("<Q", len(new)) + new + data + b"only")
    for path in (source / "manifest.json", source / "receipts" / f"{shard.name}.json"):
        document = json.loads(path.read_text())
        for row in document.get("shards", [document]):
            if row["file"] == shard.name:
                del row["target_file_bytes"], row["target_sha256"]
        path.write_text(json.dumps({k: v for k, v in document.items() if k not in ("compressed_weight_file_bytes",)}))
    with pytest.raises(CheckpointError, match="extra: no source header lists it"):
        run(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dense", ["nvfp4-dense", "mxfp4-dense"])
def test_a_dense_checkpoint_has_nothing_to_expand(sample: Sample, tmp_path: Path, dense: str) -> None:
    with pytest.raises(UsageError, match="nothing to expand"):
        run(sample(dense), tmp_path / "out")


def test_progress_adds_up_to_what_is_written(sample: Sample, tmp_path: Path) -> None:
    class Count(Silent):
        total = done = 0

        def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:
            assert (what, there) == ("expand", NOTHING)
            self.total = total.nbytes

        def advance(self, nbytes: int) -> None:
            assert nbytes <= CHUNK_BYTES
            self.done += nbytes

    progress = Count()
    result = expand(open_checkpoint(sample("nvfp4-csf-hf")), tmp_path / "out", NumpyDecoder(), progress)
    written = sum(len(data) for data in tree(tmp_path / "out").values())
    assert progress.total == progress.done == result.bytes_written == written


@pytest.mark.parametrize("damage", ["other bytes", "missing"])
def test_a_container_whose_config_is_not_the_sources_is_refused(copied: Copied, tmp_path: Path, damage: str) -> None:
    folder = copied("mxfp4-csf-container")
    config = folder / "metadata" / "config.json"
    if damage == "missing":
        config.unlink()
    else:
        config.write_bytes(config.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(CheckpointError, match=r"metadata/config.json: (not expanded: its SHA-256|is missing)"):
        run(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_config_that_is_at_fault_stops_nothing_and_is_spoken_of(copied: Copied, tmp_path: Path) -> None:
    folder = copied("nvfp4-csf-hf")
    config = folder / "config.json"
    config.write_bytes(config.read_bytes().replace(b'"csf"', b'"brf"', 1))
    done = run(folder, tmp_path / "out")
    assert [(p.file, p.severity.value) for p in done.excused] == [("config.json", "warning")]


def test_sums_of_the_source_are_not_carried_over(copied: Copied, tmp_path: Path) -> None:
    """Its shards are others: a copy of the sums would call every one of them damaged."""
    folder = copied("nvfp4-csf-hf")
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}" for p in sorted(folder.glob("*.safetensors"))]
    (folder / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    run(folder, tmp_path / "out")
    assert not (tmp_path / "out" / "SHA256SUMS").exists()


def test_a_link_to_a_missing_blob_is_the_checkpoints_fault(copied: Copied, tmp_path: Path) -> None:
    folder = copied("nvfp4-csf-hf")
    (folder / "tokenizer.json").symlink_to("../blobs/gone")
    with pytest.raises(CheckpointError, match=r"^tokenizer.json: is missing"):
        run(folder, tmp_path / "out")
