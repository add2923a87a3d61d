"""compress against another encoder's checkpoints, and its rules for what stays dense."""

import json
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.published import StatedOrigin
from csf_tool.choices import CompressTo
from csf_tool.coders.coded import CodedPlane, PlaneScales
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.coders.encoder import NumpyEncoder
from csf_tool.disk.new_file import NewFile
from csf_tool.disk.reader import RandomReader
from csf_tool.errors import CheckpointError, EnvironmentFault, UsageError
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.compress import Compressed, CompressOptions, compress
from csf_tool.write.expand import expand
from csf_tool.write.run import Share, WriteOptions
from csf_tool.write.selection import Rules
from csf_tool.write.targets import TARGETS
from tests.building import tree
from tests.fixture_types import Copied, Sample

INDEX = "model.safetensors.index.json"


def run(
    source: Path,
    to: Path,
    layout: CompressTo | None = None,
    rules: Rules | None = None,
    origin: StatedOrigin | None = None,
) -> Compressed:
    options = CompressOptions(layout, rules or Rules(), origin or StatedOrigin())
    how = WriteOptions(jobs=2)
    return compress(open_checkpoint(source), to, options, NumpyEncoder(), NumpyDecoder(), Silent(), how)


def meaning(folder: Path) -> dict[str, object]:
    """Every file of a folder; JSON by what it says and the order of its keys, not by its indentation."""
    return {
        name: json.dumps(json.loads(data)) if name.endswith(".json") else data for name, data in tree(folder).items()
    }


@pytest.mark.parametrize(
    ("dense", "csf", "layout"),
    [
        ("nvfp4-dense", "nvfp4-csf-hf", CompressTo.HF),
        ("nvfp4-dense", "nvfp4-csf-container", CompressTo.CONTAINER),
        ("mxfp4-dense", "mxfp4-csf-container", CompressTo.CONTAINER),
    ],
)
def test_the_result_is_that_of_another_encoder(
    sample: Sample, tmp_path: Path, dense: str, csf: str, layout: CompressTo
) -> None:
    """Shards byte for byte, headers and all; JSON files say the same."""
    origin = StatedOrigin(f"minilm_{dense[:5]}", f"example/minilm-{dense[:5]}", "0" * 40)
    run(sample(dense), tmp_path / "out", layout, origin=origin)
    ours, theirs = meaning(tmp_path / "out"), meaning(sample(csf))
    if layout is CompressTo.HF:  # an index is a map: its order says nothing
        ours[INDEX], theirs[INDEX] = (json.loads(str(side.pop(INDEX))) for side in (ours, theirs))
    assert ours == theirs


@pytest.mark.parametrize(("dense", "layout"), [("nvfp4-dense", CompressTo.HF), ("mxfp4-dense", CompressTo.CONTAINER)])
def test_the_default_layout_is_the_one_that_readers_exist_for(
    sample: Sample, tmp_path: Path, dense: str, layout: CompressTo
) -> None:
    assert run(sample(dense), tmp_path / "out").target is TARGETS[layout]
    assert open_checkpoint(tmp_path / "out").layout.name == layout


@pytest.mark.parametrize("dense", ["nvfp4-dense", "nvfp4-ct-dense", "mxfp4-dense"])
def test_expand_gives_back_the_folder_from_a_container(sample: Sample, tmp_path: Path, dense: str) -> None:
    run(sample(dense), tmp_path / "csf", CompressTo.CONTAINER)
    expand(open_checkpoint(tmp_path / "csf"), tmp_path / "back", NumpyDecoder(), Silent())
    assert tree(tmp_path / "back") == tree(sample(dense))


@pytest.mark.parametrize("dense", ["nvfp4-dense", "nvfp4-ct-dense"])
def test_expand_gives_back_every_shard_from_the_hf_layout(sample: Sample, tmp_path: Path, dense: str) -> None:
    run(sample(dense), tmp_path / "csf", CompressTo.HF)
    expand(open_checkpoint(tmp_path / "csf"), tmp_path / "back", NumpyDecoder(), Silent())
    ours, theirs = tree(tmp_path / "back"), tree(sample(dense))
    assert {n: d for n, d in ours.items() if n != INDEX} == {n: d for n, d in theirs.items() if n != INDEX}


def test_the_container_says_the_same_everywhere_that_a_loader_looks(sample: Sample, tmp_path: Path) -> None:
    run(sample("mxfp4-dense"), tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    contract = json.loads((tmp_path / "out" / "build-contract.json").read_text())
    for key in ("schema", "codec", "family"):
        assert manifest[key] == contract[key]
    files = {row["file"] for row in manifest["shards"]}
    assert set(contract["source_names"].values()) == files == {p.name for p in (tmp_path / "out" / "tensors").iterdir()}
    assert all("/" not in name and name.endswith(".safetensors") for name in files)
    assert verify(open_checkpoint(tmp_path / "out"), None, NumpyDecoder(), Silent()).unproved == []


def test_mxfp4_in_the_hf_layout_is_refused(sample: Sample, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no reader can find MXFP4 CSF"):
        run(sample("mxfp4-dense"), tmp_path / "out", CompressTo.HF)
    assert not (tmp_path / "out").exists()


def write_checkpoint(folder: Path, tensors: dict[str, tuple[str, list[int], bytes]], config: object = None) -> Path:
    """A checkpoint of one shard, by struct and json alone."""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    raw = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    data = b"".join(data for *_, data in tensors.values())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def nvfp4(stem: str, rows: int, cols: int, scales: bytes | None = None) -> dict[str, tuple[str, list[int], bytes]]:
    """A weight of an NVFP4 matrix with its block scales, all equal unless given."""
    return {
        f"{stem}.weight": ("U8", [rows, 8 * cols], bytes([0x21]) * (rows * 8 * cols)),
        f"{stem}.weight_scale": ("F8_E4M3", [rows, cols], scales or bytes([0x38]) * (rows * cols)),
    }


def reasons(done: Compressed) -> dict[str, str]:
    return {entry.plane.name.removesuffix(".weight_scale"): entry.reason for entry in done.left}


def test_every_scale_left_dense_has_its_reason(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 32 * 8).astype(np.uint8).tobytes()
    tensors = {
        **nvfp4("m.0.experts.0.good", 32, 8),
        **nvfp4("m.1.experts.0.rows", 24, 8),
        **nvfp4("m.2.experts.0.odd", 32, 9),
        **nvfp4("m.3.experts.0.noise", 32, 8, noise),
        **nvfp4("m.0.shared_expert.up", 32, 8),
        **nvfp4("m.0.self_attn.q_proj", 32, 8),
    }
    done = run(write_checkpoint(tmp_path / "in", tensors), tmp_path / "out", CompressTo.CONTAINER)
    assert done.planes == 1
    assert reasons(done) == {
        "m.1.experts.0.rows": "24 rows are not a positive multiple of 16",
        "m.2.experts.0.odd": "9 columns are not a positive multiple of 2",
        "m.3.experts.0.noise": reasons(done)["m.3.experts.0.noise"],
        "m.0.shared_expert.up": "not the scale of a routed expert",
        "m.0.self_attn.q_proj": "not the scale of a routed expert",
    }
    assert "dense 256 (--keep-larger forces it)" in reasons(done)["m.3.experts.0.noise"]


def test_keep_larger_forces_planes_that_grow(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 32 * 8).astype(np.uint8).tobytes()
    source = write_checkpoint(tmp_path / "in", nvfp4("m.0.experts.0.noise", 32, 8, noise))
    with pytest.raises(UsageError, match="0 planes matched"):
        run(source, tmp_path / "out")
    done = run(source, tmp_path / "out", rules=Rules(keep_larger=True))
    assert done.csf_bytes > done.dense_bytes
    assert verify(open_checkpoint(tmp_path / "out"), open_checkpoint(source), NumpyDecoder(), Silent()).ok


def test_include_and_exclude_take_globs(tmp_path: Path) -> None:
    stems = ("m.0.experts.0.up", "m.0.experts.1.up", "m.0.self_attn.q_proj")
    tensors = {name: tensor for stem in stems for name, tensor in nvfp4(stem, 32, 8).items()}
    source = write_checkpoint(tmp_path / "in", tensors)
    done = run(source, tmp_path / "a", CompressTo.CONTAINER, Rules(include=("*.self_attn.*",)))
    assert (done.planes, set(reasons(done).values())) == (1, {"not included by --include"})
    done = run(source, tmp_path / "b", CompressTo.CONTAINER, Rules(exclude=("*experts.1.*",)))
    assert (done.planes, reasons(done)["m.0.experts.1.up"]) == (1, "excluded by --exclude")


def recipe_config(*modules: str) -> dict[str, object]:
    recipe = {"quant_algo": "NVFP4", "group_size": 16}
    layers = dict.fromkeys(modules, recipe)
    return {"quantization_config": {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}}


def test_a_module_is_marked_whole_or_left_dense_whole(tmp_path: Path) -> None:
    tensors = {
        **nvfp4("m.0.mlp.experts.0.up", 32, 8),
        **nvfp4("m.0.mlp.experts.1.up", 24, 8),  # cannot be CSF: so its neighbour is left, too
        **nvfp4("m.1.mlp.experts.0.up", 32, 8),
    }
    source = write_checkpoint(tmp_path / "in", tensors, recipe_config("m.0.mlp.experts", "m.1.mlp.experts"))
    done = run(source, tmp_path / "out", CompressTo.HF)
    assert reasons(done)["m.0.mlp.experts.0.up"] == (
        "m.0.mlp.experts stays dense as a whole because of m.0.mlp.experts.1.up.weight_scale: "
        "24 rows are not a positive multiple of 16"
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    layers = config["quantization_config"]["quantized_layers"]
    assert ["weight_scale_encoding" in layers[m] for m in ("m.0.mlp.experts", "m.1.mlp.experts")] == [False, True]
    assert verify(open_checkpoint(tmp_path / "out"), open_checkpoint(source), NumpyDecoder(), Silent()).ok


def test_modules_without_a_recipe_are_noted(sample: Sample, tmp_path: Path) -> None:
    done = run(sample("nvfp4-ct-dense"), tmp_path / "out", CompressTo.HF)
    assert "readers that go by recipes will not find its CSF planes" in done.notes[0]


def test_u8_scales_are_mxfp4_beside_a_packed_weight(tmp_path: Path) -> None:
    scales = bytes(range(120, 122)) * 64
    tensors = {
        "m.0.experts.0.w1.weight": ("I8", [16, 128], bytes(16 * 128)),
        "m.0.experts.0.w1.scale": ("U8", [16, 8], scales),
        "m.1.experts.0.w1.weight": ("F8_E4M3", [16, 256], bytes(16 * 256)),  # MXFP8: its scales are left alone
        "m.1.experts.0.w1.scale": ("U8", [16, 8], scales),
    }
    done = run(write_checkpoint(tmp_path / "in", tensors), tmp_path / "out")
    assert (done.planes, done.left) == (1, [])
    expand(open_checkpoint(tmp_path / "out"), tmp_path / "back", NumpyDecoder(), Silent())
    assert tree(tmp_path / "back") == tree(tmp_path / "in")


def test_stacked_expert_tensors_are_left_alone(tmp_path: Path) -> None:
    tensors = {
        "m.experts.0.w.weight": ("U8", [4, 32, 64], bytes(4 * 32 * 64)),
        "m.experts.0.w.weight_scale": ("F8_E4M3", [4, 32, 8], bytes(4 * 32 * 8)),
    }
    with pytest.raises(UsageError, match=r"1 block scale stays dense \(.*, 4 matrices per tensor"):
        run(write_checkpoint(tmp_path / "in", tensors), tmp_path / "out")


def test_a_csf_checkpoint_is_not_compressed_again(sample: Sample, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="already holds CSF planes"):
        run(sample("nvfp4-csf-hf"), tmp_path / "out")


def test_a_broken_checkpoint_is_refused(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-dense")
    (source / "model-00001-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match="not compressed"):
        run(source, tmp_path / "out")


def test_all_other_files_are_carried(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-dense")
    (source / "tokenizer").mkdir()
    (source / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    run(source, tmp_path / "hf", CompressTo.HF)
    run(source, tmp_path / "container", CompressTo.CONTAINER)
    assert (tmp_path / "hf" / "tokenizer" / "vocab.txt").read_text() == "a\nb\n"
    manifest = json.loads((tmp_path / "container" / "manifest.json").read_text())
    assert "tokenizer/vocab.txt" in manifest["metadata_sha256"]
    expand(open_checkpoint(tmp_path / "container"), tmp_path / "back", NumpyDecoder(), Silent())
    assert tree(tmp_path / "back") == tree(source)


def test_no_manifest_appears_when_the_rebuilt_shard_is_not_the_original(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csf_tool.codec.reference.decode", lambda *_, rows, cols: np.zeros((rows, cols), np.uint8))
    with pytest.raises(CheckpointError, match="do not decode to the original"):
        run(sample("mxfp4-dense"), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert not (tmp_path / "out" / "verification.json").exists()


def test_the_origin_is_read_from_a_hub_cache(copied: Copied, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / ("d" * 40)
    shutil.copytree(copied("mxfp4-dense"), snapshot)
    run(snapshot, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["source_model_id"], manifest["source_revision"]) == ("org/name", "d" * 40)


@pytest.mark.parametrize(
    ("dense", "layout"),
    [("nvfp4-dense", CompressTo.HF), ("nvfp4-dense", CompressTo.CONTAINER), ("mxfp4-dense", CompressTo.CONTAINER)],
)
def test_every_byte_of_the_source_is_read_once(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dense: str, layout: CompressTo
) -> None:
    source = open_checkpoint(sample(dense))
    read: dict[str, list[tuple[int, int]]] = {shard.name: [] for shard in source.shards}

    def read_into(self: RandomReader, view: memoryview, begin: int) -> None:
        if self.name in read:  # not what was written, which a container reads to prove it
            read[self.name].append((begin, begin + len(view)))
        really_read(self, view, begin)

    def copy(self: NewFile, reader: RandomReader, begin: int, end: int, on_bytes: Callable[[int], None]) -> None:
        for piece in reader.chunks(begin, end):
            self.write(piece)
            on_bytes(len(piece))

    really_read = RandomReader.read_into
    monkeypatch.setattr(RandomReader, "read_into", read_into)
    monkeypatch.setattr(NewFile, "copy", copy)
    options = CompressOptions(layout, Rules(keep_larger=True))
    how = WriteOptions(jobs=2)
    compress(source, tmp_path / "out", options, NumpyEncoder(), NumpyDecoder(), Silent(), how)
    for shard in source.shards:
        at = shard.header.data_start
        for begin, end in sorted(r for r in read[shard.name] if r != (0, at)):
            assert begin == at, f"{shard.name}: read from {begin} to {end}, after what ended at {at}"
            at = end
        assert at == shard.size


def test_streams_that_do_not_give_back_the_scales_are_not_written(sample: Sample, tmp_path: Path) -> None:
    """An encoder that is wrong is found before a receipt states anything of its planes."""

    class Wrong(NumpyEncoder):
        def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
            for encoded in super().encode(planes):
                encoded.streams.fixed[0, 0] ^= 1
                yield encoded

    options = CompressOptions(CompressTo.CONTAINER)
    with pytest.raises(
        CheckpointError, match=r"weight_scale: the encoded streams do not decode to the original scales"
    ):
        compress(open_checkpoint(sample("nvfp4-dense")), tmp_path / "out", options, Wrong(), NumpyDecoder(), Silent())
    assert not list((tmp_path / "out").rglob("*.safetensors"))


@pytest.mark.parametrize("wrong", ["scales", "order"])
@pytest.mark.parametrize("to", CompressTo)
def test_a_device_that_encodes_wrongly_is_called_wrong(
    sample: Sample, tmp_path: Path, to: CompressTo, wrong: str
) -> None:
    """Also where its streams decode to the scales, but break a rule: other decoders may read them otherwise."""

    class Gpu(NumpyEncoder):
        device = "cuda:0 (a GPU)"

        def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
            for encoded in super().encode(planes):
                streams = encoded.streams
                if wrong == "scales":
                    streams.fixed[0, 0] ^= 1
                elif len(streams.exceptions) > 1:
                    streams.exceptions[:] = streams.exceptions[::-1].copy()
                    assert streams.decode().tobytes() == encoded.scales.tobytes()
                yield encoded

    dense = open_checkpoint(sample("nvfp4-dense"))
    with pytest.raises(EnvironmentFault, match=r"do not trust cuda:0 \(a GPU\); --device cpu works") as found:
        compress(dense, tmp_path / "out", CompressOptions(to), Gpu(), NumpyDecoder(), Silent())
    assert "break a rule" in found.value.problem or wrong == "scales"
    assert not list((tmp_path / "out").rglob("*.safetensors"))


class Expecting(NumpyEncoder):
    """An encoder that notes what it is to expect, and what it gets."""

    def __init__(self) -> None:
        self.expected: list[tuple[int, int]] = []
        self.got = 0

    def expect(self, nbytes: int, jobs: int) -> None:
        if nbytes:
            self.expected.append((nbytes, jobs))

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        for encoded in super().encode(planes):
            self.got += encoded.plane.dense_bytes
            yield encoded


def test_an_encoder_knows_what_is_left_to_do(sample: Sample, tmp_path: Path) -> None:
    """The bytes that will be encoded and the shards at a time, on each of which it depends whether a GPU pays."""

    def told(to: str, how: WriteOptions) -> list[tuple[int, int]]:
        encoder = Expecting()
        options = CompressOptions(CompressTo.CONTAINER)
        compress(open_checkpoint(dense), tmp_path / to, options, encoder, NumpyDecoder(), Silent(), how)
        assert encoder.got == sum(nbytes for nbytes, _ in encoder.expected)
        return encoder.expected

    dense = sample("nvfp4-dense")
    planes = open_checkpoint(dense).dense_planes
    everything, shards = sum(plane.dense_bytes for plane in planes), len({p.scale.shard.name for p in planes})
    assert told("out", WriteOptions(jobs=64)) == [(everything, shards)]
    assert told("out", WriteOptions(jobs=64)) == []  # it is there
    assert told("dry", WriteOptions(jobs=2, dry_run=True)) == [(everything, 2)]
    for part in (1, 2, 3):  # each measures all planes
        assert told("parts", WriteOptions(jobs=1, share=Share(part, 3))) == [(everything, 1)]


def test_streams_leave_no_file_behind(sample: Sample, tmp_path: Path) -> None:
    for layout in (CompressTo.HF, CompressTo.CONTAINER):
        run(sample("nvfp4-dense"), tmp_path / "new" / layout.value, layout)
    with pytest.raises(UsageError, match="0 planes matched"):
        run(sample("nvfp4-dense"), tmp_path / "nothing", rules=Rules(exclude=("*",)))
    assert [p.name for p in tmp_path.iterdir()] == ["new"]
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["container", "hf"]
