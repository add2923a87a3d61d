"""convert: there and back is the identity on tensors/, and no plane is decoded. identity by its definition."""

import hashlib
import json
import os
import struct
from pathlib import Path

import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import IdentityBy, Target
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.errors import CheckpointError, UsageError
from csf_tool.progress import NOTHING, Amount, Silent
from csf_tool.prove.identity import Basis, find_identity
from csf_tool.prove.verify import verify
from csf_tool.write.convert import Converted, ConvertOptions, convert
from csf_tool.write.run import WriteOptions
from tests.building import tree
from tests.fixture_types import Copied, Sample

FIRST = "model-00001-of-00003.safetensors"


def run(source: Path, to: Path, target: Target, *, link: bool = False, checkpoint_root: str | None = None) -> Converted:
    options, how = ConvertOptions(checkpoint_root), WriteOptions(link=link)
    return convert(open_checkpoint(source), to, target, options, Silent(), how)


def test_there_and_back_is_the_identity_on_tensors(sample: Sample, tmp_path: Path) -> None:
    source = sample("nvfp4-csf-container")
    run(source, tmp_path / "hf", Target.HF)
    run(tmp_path / "hf", tmp_path / "back", Target.CONTAINER)
    assert tree(tmp_path / "back" / "tensors") == tree(source / "tensors")


@pytest.mark.parametrize(("csf", "target"), [("nvfp4-csf-container", Target.HF), ("nvfp4-csf-hf", Target.CONTAINER)])
def test_the_converted_checkpoint_is_sound_and_the_same(
    sample: Sample, tmp_path: Path, csf: str, target: Target
) -> None:
    run(sample(csf), tmp_path / "out", target)
    opened = open_checkpoint(tmp_path / "out")
    assert opened.layout.name == target.value
    assert verify(opened, open_checkpoint(sample("nvfp4-dense")), NumpyDecoder(), Silent()).ok


def test_no_plane_is_decoded(sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.codec.reference.decode", lambda *_, **__: 1 / 0)
    run(sample("nvfp4-csf-container"), tmp_path / "hf", Target.HF)
    run(sample("nvfp4-csf-hf"), tmp_path / "container", Target.CONTAINER)


def test_config_and_index_of_the_hf_layout_are_those_of_the_sample(sample: Sample, tmp_path: Path) -> None:
    run(sample("nvfp4-csf-container"), tmp_path / "out", Target.HF)
    for name in ("config.json", "model.safetensors.index.json"):
        ours, theirs = (json.loads((d / name).read_text()) for d in (tmp_path / "out", sample("nvfp4-csf-hf")))
        assert ours == theirs


def test_originals_that_nobody_recorded_are_said_to_be_unknown(sample: Sample, tmp_path: Path) -> None:
    done = run(sample("nvfp4-csf-hf"), tmp_path / "out", Target.CONTAINER)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["source_headers"].startswith("unknown")
    assert not any(key.startswith("source_") and key.endswith("sha256") for row in manifest["shards"] for key in row)
    assert not (tmp_path / "out" / "receipts").exists()
    assert "unknown" in done.notes[0]


def flatten_fixed_streams(shard: Path) -> None:
    """Store every fixed stream 1-D, as MXFP4 writers do."""
    raw = shard.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    for name, entry in header.items():
        if name.endswith("_csf_fixed"):
            entry["shape"] = [entry["shape"][0] * entry["shape"][1]]
    new = json.dumps(header).encode()
    shard.write_bytes(struct.pack("<Q", len(new)) + new + raw[8 + length :])


def test_one_dimensional_streams_become_two_dimensional_in_the_hf_layout(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-hf", "flat")
    for shard in source.glob("*.safetensors"):
        flatten_fixed_streams(shard)
    run(source, tmp_path / "container", Target.CONTAINER)
    run(tmp_path / "container", tmp_path / "hf", Target.HF)
    shapes = {t.name: t.shape for s in open_checkpoint(tmp_path / "hf").shards for t in s.header if "_fixed" in t.name}
    assert set(shapes.values()) == {(24, 208)}
    found = verify(open_checkpoint(tmp_path / "hf"), open_checkpoint(copied("nvfp4-dense")), NumpyDecoder(), Silent())
    assert found.ok


def test_unchanged_shards_are_linked(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-container")
    done = run(source, tmp_path / "out", Target.HF, link=True)
    assert done.linked == done.shards
    assert (source / "tensors" / FIRST).samefile(tmp_path / "out" / FIRST)


@pytest.mark.parametrize("link", [True, False])
def test_progress_adds_up_and_links_are_not_written_bytes(copied: Copied, tmp_path: Path, link: bool) -> None:
    class Count(Silent):
        total = done = 0

        def start(self, what: str, total: Amount, there: Amount = NOTHING) -> None:
            assert (what, there) == ("convert", NOTHING)
            self.total = total.nbytes

        def advance(self, nbytes: int) -> None:
            self.done += nbytes

    progress, how = Count(), WriteOptions(link=link)
    source = open_checkpoint(copied("nvfp4-csf-container"))
    done = convert(source, tmp_path / "out", Target.HF, ConvertOptions(), progress, how)
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    assert progress.total == progress.done == sum(sizes.values())
    assert done.bytes_written == sum(size for name, size in sizes.items() if name not in done.linked)


def test_what_cannot_be_linked_is_copied_and_said(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    source = copied("nvfp4-csf-container")
    done = run(source, tmp_path / "out", Target.HF, link=True)
    assert (done.linked, "3 shards copied, not linked" in done.notes[0]) == ([], True)
    assert tree(source / "tensors")[FIRST] == (tmp_path / "out" / FIRST).read_bytes()


@pytest.mark.parametrize("fmt", ["nvfp4", "mxfp4"])
def test_a_serving_directory_is_a_config_that_points_to_the_container(sample: Sample, tmp_path: Path, fmt: str) -> None:
    source = sample(f"{fmt}-csf-container")
    run(source, tmp_path / "out", Target.SERVING, checkpoint_root="/models/csf")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert (config.pop("quant_method"), config.pop("format_version")) == (f"{fmt}_csf", 1)
    assert config.pop("checkpoint_root") == "/models/csf"
    original = json.loads((source / "metadata" / "config.json").read_text())["quantization_config"]
    if fmt == "nvfp4":
        assert config == {"source_quantization_config": original}
    else:
        del original["quant_method"]
        assert config == original


def test_a_serving_directory_leads_to_its_container(sample: Sample, tmp_path: Path) -> None:
    run(sample("nvfp4-csf-container"), tmp_path / "out", Target.SERVING)
    assert open_checkpoint(tmp_path / "out").root == sample("nvfp4-csf-container").resolve()


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("mxfp4-csf-container", Target.HF, "no reader can find MXFP4"),
        ("nvfp4-csf-hf", Target.HF, "already"),
        ("nvfp4-csf-container", Target.CONTAINER, "already"),
        ("nvfp4-csf-hf", Target.SERVING, "a serving directory needs a container"),
        ("nvfp4-dense", Target.HF, "holds no CSF planes"),
    ],
)
def test_what_does_not_go_together_is_refused(
    sample: Sample, tmp_path: Path, source: str, target: Target, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        run(sample(source), tmp_path / "out", target)
    assert not (tmp_path / "out").exists()


def hf_identity(folder: Path, contents: dict[str, str]) -> str:
    """The scheme, word for word from the format's description."""
    digest = hashlib.sha256(b"lil-fp4-csf-hf-v1\0")
    digest.update((folder / "config.json").read_bytes() + b"\0")
    digest.update((folder / "model.safetensors.index.json").read_bytes() + b"\0")
    for name in sorted(contents):
        digest.update(name.encode() + b"\0" + contents[name].encode() + b"\0")
    return digest.hexdigest()


def test_a_containers_identity_is_its_manifests(sample: Sample) -> None:
    folder = sample("mxfp4-csf-container")
    expected = hashlib.sha256(b"lil-fp4-csf-v1\0" + (folder / "manifest.json").read_bytes()).hexdigest()
    found = find_identity(open_checkpoint(folder), IdentityBy.DIGESTS, Silent())
    assert (found.digest, found.basis) == (expected, Basis.MANIFEST)


def test_an_identity_by_sizes_is_asked_for(sample: Sample) -> None:
    folder = sample("nvfp4-csf-hf")
    sizes = {p.name: str(p.stat().st_size) for p in folder.glob("*.safetensors")}
    found = find_identity(open_checkpoint(folder), IdentityBy.SIZES, Silent())
    assert (found.digest, found.basis) == (hf_identity(folder, sizes), Basis.SIZES)
    with pytest.raises(
        UsageError, match=r"no SHA-256 is recorded for 3 shards, for example .*: --hash reads every byte"
    ):
        find_identity(open_checkpoint(folder), IdentityBy.DIGESTS, Silent())


def test_a_download_a_cache_and_a_hashed_copy_have_one_identity(copied: Copied, tmp_path: Path) -> None:
    bare = copied("nvfp4-csf-hf", "bare")
    digests = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in bare.glob("*.safetensors")}
    download = copied("nvfp4-csf-hf", "download")
    notes = download / ".cache" / "huggingface" / "download"
    notes.mkdir(parents=True)
    for name, digest in digests.items():
        (notes / f"{name}.metadata").write_text(f"{'b' * 40}\n{digest}\n1767225600.0\n")
    cache = copied("nvfp4-csf-hf", "cache")
    (tmp_path / "blobs").mkdir()
    for name, digest in digests.items():
        (cache / name).rename(tmp_path / "blobs" / digest)
        (cache / name).symlink_to(tmp_path / "blobs" / digest)
    found = [find_identity(open_checkpoint(folder), IdentityBy.DIGESTS, Silent()) for folder in (download, cache)]
    found.append(find_identity(open_checkpoint(bare), IdentityBy.DIGESTS, Silent(), compute_hashes=True))
    assert {f.digest for f in found} == {hf_identity(bare, digests)}
    assert {f.basis for f in found} == {Basis.DIGESTS}


def test_shards_without_their_index_have_no_identity(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"index\.json: missing"):
        find_identity(open_checkpoint(folder), IdentityBy.DIGESTS, Silent())
