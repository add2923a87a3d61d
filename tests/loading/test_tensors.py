"""safe_open, load_file and iter_tensors: the dense checkpoint's tensors, as safetensors itself gives them."""

import importlib
import pickle
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError

import csf_tool
from csf_tool.checkpoint.logical import logical_tensors
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.streams import Readers
from csf_tool.disk.reader import RandomReader
from csf_tool.errors import CheckpointError, CsfToolError, EnvironmentFault, StreamError, UsageError
from csf_tool.loading.torch_loader import TorchLoader
from tests.building import (
    MXFP4,
    NVFP4,
    Tensor,
    compressed,
    home_made,
    layer,
    mini_container,
    mini_dense,
    mini_hf,
    model,
    write_hf,
    write_shard,
)
from tests.fixture_types import Copied, Sample

PAIRS = [
    ("nvfp4-csf-hf", "nvfp4-dense"),
    ("nvfp4-csf-container", "nvfp4-dense"),
    ("mxfp4-csf-container", "mxfp4-dense"),
]


def originals(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a dense folder, by safetensors."""
    found: dict[str, torch.Tensor] = {}
    for shard in sorted(folder.glob("*.safetensors")):
        found |= safetensors.torch.load_file(shard)
    return found


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Bit for bit: NaN equals itself, -0 is not 0."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    got, want = (tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (got, want))
    assert torch.equal(got, want)


@pytest.mark.parametrize(("csf", "dense"), PAIRS, ids=[csf for csf, _ in PAIRS])
def test_a_folder_reads_as_the_dense_original_does(sample: Sample, csf: str, dense: str) -> None:
    want = originals(sample(dense))
    with csf_tool.safe_open(sample(csf), framework="pt", device="cpu") as f:
        assert f.keys() == sorted(want)
        assert sorted(f.offset_keys()) == sorted(want)
        assert f.metadata() == {"format": "pt"}
        for name in f.keys():
            assert_same(f.get_tensor(name), want[name])
            part = f.get_slice(name)
            assert part.get_shape() == list(want[name].shape)
            assert_same(part[...], want[name])
        tensors = f.get_tensors()
    assert list(tensors) == f.offset_keys()


@pytest.mark.parametrize("name", ["nvfp4-dense", "nvfp4-ct-dense", "mxfp4-dense"])
def test_a_dense_shard_reads_as_with_safetensors(sample: Sample, name: str) -> None:
    for shard in sample(name).glob("*.safetensors"):
        with csf_tool.safe_open(shard) as ours, safetensors.safe_open(shard, "pt") as theirs:
            assert ours.keys() == theirs.keys()
            assert ours.offset_keys() == theirs.offset_keys()
            assert ours.metadata() == theirs.metadata()
            for tensor in theirs.keys():
                assert ours.get_slice(tensor).get_dtype() == theirs.get_slice(tensor).get_dtype()
                assert_same(ours.get_tensor(tensor), theirs.get_tensor(tensor))


def test_a_shard_of_a_csf_checkpoint_reads_as_the_shard_it_was(sample: Sample) -> None:
    for shard in sample("nvfp4-dense").glob("*.safetensors"):
        with (
            csf_tool.safe_open(sample("nvfp4-csf-hf") / shard.name) as ours,
            safetensors.safe_open(shard, "pt") as theirs,
        ):
            assert ours.keys() == theirs.keys()
            assert ours.metadata() == theirs.metadata()
            for name in theirs.keys():
                assert_same(ours.get_tensor(name), theirs.get_tensor(name))


INDICES: list[Any] = [
    slice(None), (slice(1, 3), slice(0, 4)), 1, (1, 2), -1, ..., (..., 1), (slice(0, 4, 2),), (slice(-2, None),),
    (slice(3, 1),), (), (slice(1, 100),), slice(2, 3), None, True, (0, slice(1, 3)),
]  # fmt: skip
GATHERING: list[Any] = [[0, 2], (slice(0, 2), [1, 3]), ([0, 1], [1, 2])]  # which torch cannot do for float8
SCALE = "plane.weight_scale"


@pytest.mark.parametrize(
    ("name", "index"), [(name, i) for name in ("stored", SCALE) for i in INDICES] + [("stored", i) for i in GATHERING]
)
def test_slices_are_those_of_safetensors(tmp_path: Path, name: str, index: object) -> None:
    tensors = {
        "stored": torch.arange(24, dtype=torch.int32).reshape(4, 6),
        SCALE: torch.arange(64, dtype=torch.uint8).reshape(16, 4).view(torch.float8_e4m3fn),
    }
    path = write_shard(tmp_path / "model.safetensors", compressed([as_built(n, t) for n, t in tensors.items()], NVFP4))
    safetensors.torch.save_file(tensors, tmp_path / "dense.safetensors")
    with csf_tool.safe_open(path) as ours, safetensors.safe_open(tmp_path / "dense.safetensors", "pt") as theirs:
        got = ours.get_slice(name)[index]
        assert_same(got, theirs.get_slice(name)[index])
        assert got.untyped_storage().nbytes() == got.nbytes  # what was not asked for is not kept


def as_built(name: str, tensor: torch.Tensor) -> Tensor:
    dtype = {torch.int32: "I32", torch.float8_e4m3fn: "F8_E4M3"}[tensor.dtype]
    return Tensor(name, dtype, tuple(tensor.shape), tensor.view(torch.uint8).numpy().tobytes())


def test_leading_rows_are_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_shard(tmp_path / "model.safetensors", [Tensor("x", "I32", (4, 6), bytes(96))])
    read: list[int] = []
    real = RandomReader.read_into_each

    def counting(self: RandomReader, views: Sequence[memoryview], begin: int) -> None:
        read.extend(map(len, views))
        real(self, views, begin)

    with csf_tool.safe_open(path) as f:
        monkeypatch.setattr(RandomReader, "read_into_each", counting)
        assert f.get_slice("x")[1:3].shape == (2, 6)
        assert f.get_slice("x")[-1, 2:4].shape == (2,)
    assert read == [48, 24]


@pytest.mark.parametrize(("csf", "dense"), PAIRS, ids=[csf for csf, _ in PAIRS])
def test_numpy_arrays_have_the_same_bytes(sample: Sample, csf: str, dense: str) -> None:
    want = originals(sample(dense))
    with csf_tool.safe_open(sample(csf), "np") as f:
        for name in f.keys():
            got = f.get_tensor(name)
            assert got.dtype.name == str(want[name].dtype).removeprefix("torch.")
            assert got.shape == want[name].shape
            assert got.tobytes() == want[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            got[...] = 0  # each is its caller's own


def test_numpy_slices(tmp_path: Path) -> None:
    values = np.arange(24, dtype="<i4").reshape(4, 6)
    path = write_shard(tmp_path / "model.safetensors", [Tensor("x", "I32", (4, 6), values.tobytes())])
    with csf_tool.safe_open(path, "np") as f:
        for index in (1, slice(1, 3), (slice(None), slice(2, 4)), ..., (3, 5), (slice(None, None, -1),), slice(0, 0)):
            got = f.get_slice("x")[index]
            assert isinstance(got, np.ndarray)
            assert np.array_equal(got, values[index])
        with pytest.raises(IndexError):
            f.get_slice("x")[4]


def test_numpy_alone_has_neither_bf16_nor_float8(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with csf_tool.safe_open(sample("nvfp4-csf-hf"), "np") as f:
        scale = next(name for name in f.keys() if name.endswith("weight_scale"))
        assert f.get_slice(scale).get_dtype() == "F8_E4M3"
        with pytest.raises(UsageError, match=r"no dtype for F8_E4M3: install ml_dtypes, or use framework 'pt'"):
            f.get_tensor(scale)
        assert f.get_tensor(scale.removesuffix("_scale")).dtype == np.uint8


def test_numpy_needs_no_torch(sample: Sample) -> None:
    code = f"""
import sys, csf_tool
with csf_tool.safe_open({str(sample("nvfp4-csf-hf"))!r}, "np") as f:
    print(len(f.get_tensors()))
assert "torch" not in sys.modules
sys.modules["torch"] = None
from csf_tool.errors import EnvironmentFault
try:
    csf_tool.safe_open({str(sample("nvfp4-csf-hf"))!r})
except EnvironmentFault as error:
    print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    count, error = out.splitlines()
    assert int(count) == len(originals(sample("nvfp4-dense")))
    assert error == "torch is not installed: pip install torch"


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F8_E5M2", "BF16", "BOOL", "C64", "U64"])
def test_every_dtype_is_what_safetensors_makes_of_it(tmp_path: Path, dtype: str) -> None:
    nbytes = {"F4": 8, "F6_E2M3": 12, "BF16": 32, "C64": 128, "U64": 128}.get(dtype, 16)
    path = write_shard(
        tmp_path / "model.safetensors", [Tensor("x", dtype, (2, 8), bytes(i % 2 for i in range(nbytes)))]
    )
    with csf_tool.safe_open(path) as ours, safetensors.safe_open(path, "pt") as theirs:
        assert ours.get_slice("x").get_shape() == theirs.get_slice("x").get_shape()
        if dtype == "F6_E2M3":
            with pytest.raises(UsageError, match="torch has no dtype for F6_E2M3"):
                ours.get_tensor("x")
        else:
            assert_same(ours.get_tensor("x"), theirs.get_tensor("x"))


def test_streams_in_two_shards_are_found_in_the_folder(tmp_path: Path) -> None:
    """The folder gives the scale; one shard alone says where to look."""
    tensors = compressed(layer(0, NVFP4), NVFP4)
    moved = [t for t in tensors if t.name.endswith("gate_proj.weight_scale.nvfp4_csf_exceptions")]
    first = [t for t in tensors if t not in moved]
    root = write_hf(tmp_path / "csf", {"a.safetensors": first, "b.safetensors": moved})
    want = {t.name: t.data for t in layer(0, NVFP4)}
    with csf_tool.safe_open(root) as f:
        assert set(f.keys()) == set(want)
        for name, data in want.items():
            assert f.get_tensor(name).reshape(-1).view(torch.uint8).numpy().tobytes() == data
    assert {name: tensor.nbytes for name, tensor in csf_tool.load_file(root).items()} == {
        n: len(d) for n, d in want.items()
    }
    with pytest.raises(CheckpointError, match=r"has no NVFP4 exception list beside.*open the folder"):
        csf_tool.safe_open(root / "a.safetensors")


def test_containers_of_users_and_configs_without_marks(tmp_path: Path) -> None:
    for root in (home_made(tmp_path / "home", NVFP4), mini_hf(tmp_path / "unmarked", config={"model_type": "mini"})):
        tensors = csf_tool.load_file(root)
        for shard in model(NVFP4).values():
            for tensor in shard:
                assert tensors[tensor.name].reshape(-1).view(torch.uint8).numpy().tobytes() == tensor.data


def test_a_receipt_decides_on_the_dtype(tmp_path: Path) -> None:
    """Some repositories store UE8M0 scales as U8; their containers' receipts say so."""
    content = {name: [as_u8(t) for t in tensors] for name, tensors in model(MXFP4).items()}
    root = mini_container(tmp_path / "container", MXFP4, content=content)
    dtypes = {str(t.dtype) for name, t in csf_tool.load_file(root).items() if name.endswith(".scale")}
    assert dtypes == {"torch.uint8"}


def as_u8(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, "U8", tensor.shape, tensor.data) if tensor.dtype == "F8_E8M0" else tensor


# What safetensors would raise is caught by code that was written for it.


def test_errors_are_those_of_safetensors_as_well(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "csf")
    with csf_tool.safe_open(root) as f:
        for ask in (f.get_tensor, f.get_slice):
            with pytest.raises(safetensors.SafetensorError, match="has no tensor nope") as caught:
                ask("nope")
            assert isinstance(caught.value, UsageError)
        part = f.get_slice(f.keys()[0])
    for read in (lambda: f.get_tensor(f.keys()[0]), lambda: part[...], f.get_tensors):
        with pytest.raises(safetensors.SafetensorError, match="is closed"):
            read()
    with pytest.raises(FileNotFoundError, match="no such file or folder") as gone:
        csf_tool.safe_open(tmp_path / "gone")
    assert isinstance(gone.value, CsfToolError)
    assert gone.value.exit_code == 2
    with pytest.raises(safetensors.SafetensorError, match="not a checkpoint"):
        csf_tool.safe_open(tmp_path)
    shard = next(root.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(safetensors.SafetensorError, match="bytes are missing") as cut:
        csf_tool.safe_open(root)
    assert isinstance(cut.value, CheckpointError)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"framework": "tf"}, "framework 'tf': give pt or np"),
        ({"framework": "np", "device": "cuda"}, "numpy arrays are only on the CPU"),
        ({"device": "tpu9000"}, "device tpu9000: torch knows no such device"),
        ({"backend": "io_uring"}, "backend 'io_uring': give mmap or pread"),
    ],
)
def test_wrong_requests(tmp_path: Path, how: dict[str, Any], said: str) -> None:
    with pytest.raises(safetensors.SafetensorError, match=said):
        csf_tool.safe_open(mini_dense(tmp_path / "dense"), **how)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    root = mini_dense(tmp_path / "dense")
    for device in ("cuda:1", 1, torch.device("cuda", 1)):
        with pytest.raises(EnvironmentFault, match="device cuda:1: torch finds no GPU"):
            csf_tool.safe_open(root, device=device)


def test_broken_streams_are_refused_where_they_are_read(copied: Copied) -> None:
    root = copied("nvfp4-csf-hf")
    plane = open_checkpoint(root).planes[3]
    where = plane.exceptions
    with open(where.shard.path, "r+b") as file:
        file.seek(where.tensor.begin)
        file.write(b"\xff\xff\xff\xff")
    name = plane.name.replace(".", r"\.")
    with csf_tool.safe_open(root) as f, pytest.raises(StreamError, match=rf"{where.shard.name}: {name}: "):
        f.get_tensor(plane.name)
    with pytest.raises(StreamError, match=name):
        csf_tool.load_file(root)


def test_a_file_that_changes_after_it_was_opened(copied: Copied) -> None:
    root = copied("nvfp4-csf-hf")
    with csf_tool.safe_open(root) as f, csf_tool.safe_open(root, "np") as g:
        for shard in root.glob("*.safetensors"):
            shard.write_bytes(shard.read_bytes() + b" ")
        for handle in (f, g):
            with pytest.raises(EnvironmentFault, match="changed while csf-tool read it"):
                handle.get_tensor(f.keys()[0])


def test_many_threads_may_read_at_once(sample: Sample) -> None:
    """Several threads read through one `safe_open`, as in transformers."""
    want = originals(sample("nvfp4-dense"))
    with csf_tool.safe_open(sample("nvfp4-csf-hf")) as f, ThreadPoolExecutor(8) as pool:
        for name, got in zip(f.keys(), pool.map(lambda name: f.get_slice(name)[...], f.keys()), strict=True):
            assert_same(got, want[name])


# load_file and iter_tensors


@pytest.mark.parametrize("batch", [1, 20_000, 1 << 30])
@pytest.mark.parametrize(("csf", "dense"), PAIRS[1:], ids=[csf for csf, _ in PAIRS[1:]])
def test_tensors_come_in_the_order_of_the_files(sample: Sample, csf: str, dense: str, batch: int) -> None:
    want = originals(sample(dense))
    got = list(csf_tool.iter_tensors(sample(csf), batch=batch))
    assert [name for name, _ in got] == list(logical_tensors(open_checkpoint(sample(csf))))
    for name, tensor in got:
        assert_same(tensor, want[name])
    if csf == "nvfp4-csf-container":  # written from the originals, shard by shard
        assert [name for name, _ in got] == list(want)


def test_load_file_takes_a_folder_or_a_shard(sample: Sample) -> None:
    want = originals(sample("nvfp4-dense"))
    whole = csf_tool.load_file(sample("nvfp4-csf-hf"))
    assert whole.keys() == want.keys()
    shards = [csf_tool.load_file(shard) for shard in sorted(sample("nvfp4-csf-hf").glob("*.safetensors"))]
    assert sum(map(len, shards)) == len(whole)
    for name in shards[0]:
        assert_same(shards[0][name], want[name])


def test_named_tensors_alone_are_read(sample: Sample) -> None:
    checkpoint = open_checkpoint(sample("nvfp4-csf-hf"))
    names = [plane.name for plane in checkpoint.planes[:3]]
    assert [name for name, _ in csf_tool.iter_tensors(checkpoint, names=reversed(names))] == names
    with pytest.raises(UsageError, match="has no tensor nope"):
        csf_tool.iter_tensors(checkpoint, names=["nope"])


def test_a_batch_is_released_with_its_last_tensor(sample: Sample) -> None:
    """Tensors that are alike share memory within a batch, never across."""
    storages = [
        {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
        for tensors in ({n: t} for n, t in csf_tool.iter_tensors(sample("nvfp4-csf-hf"), batch=1))
    ]
    largest = max(tensor.nbytes for tensor in originals(sample("nvfp4-dense")).values())
    assert all(sum(each.values()) <= largest for each in storages)
    whole = csf_tool.load_file(sample("nvfp4-csf-hf"))
    shared = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in whole.values()}
    assert sum(shared.values()) == sum(tensor.nbytes for tensor in whole.values())
    assert len(shared) < len(whole)


def test_other_devices_get_a_copy(sample: Sample) -> None:
    """Tensors for a device that is neither CPU nor CUDA are copied to it; torch's meta device is one."""
    with TorchLoader(torch.device("meta")) as loader:
        tensors = list(logical_tensors(open_checkpoint(sample("nvfp4-csf-hf"))).values())[:9]
        assert {tensor.device.type for tensor in loader.load(tensors)} == {"meta"}
        assert [list(t.shape) for t in loader.load(tensors)] == [list(t.shape) for t in tensors]


def test_a_checkpoint_left_in_parts_by_a_download(tmp_path: Path) -> None:
    root = mini_hf(tmp_path / "csf")
    shutil.move(root / "model-00002-of-00002.safetensors", tmp_path)
    with pytest.raises(CheckpointError, match=r"cannot be loaded: model-00002-of-00002\.safetensors"):
        csf_tool.load_file(root)


def test_errors_have_the_name_that_is_caught(sample: Sample, tmp_path: Path) -> None:
    """Tracebacks and pickles: what stands there can be imported and caught."""
    (tmp_path / "broken.safetensors").write_bytes(b"\xff" * 100)
    folder = sample("nvfp4-csf-hf")
    calls: list[tuple[Callable[[], object], type[Exception]]] = [
        (lambda: csf_tool.safe_open(tmp_path / "nowhere"), FileNotFoundError),
        (lambda: csf_tool.safe_open(folder, "np").get_tensor("nothing"), SafetensorError),
        (lambda: csf_tool.safe_open(folder, "tf"), SafetensorError),  # type: ignore[call-overload]
        (lambda: csf_tool.safe_open(tmp_path / "broken.safetensors", "np"), SafetensorError),
    ]
    for call, theirs in calls:
        with pytest.raises(theirs) as caught:
            call()
        error = caught.value
        assert isinstance(error, CsfToolError)
        line = traceback.format_exception_only(error)[0]
        module, _, name = line.partition(":")[0].rpartition(".")
        assert isinstance(error, getattr(importlib.import_module(module), name))
        assert not name.startswith("_")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), again.fields) == (type(error), str(error), error.fields)


def test_a_name_that_is_not_there(sample: Sample) -> None:
    """The nearest are named, and what a stream belongs to, by whichever function is asked."""
    folder = sample("nvfp4-csf-hf")
    with csf_tool.safe_open(folder, "np") as f:
        scale = next(name for name in f.keys() if name.endswith("gate_proj.weight_scale"))
        for wrong, hint in [
            (f"{scale}.nvfp4_csf_fixed", f": it is a stream of {scale}: ask for that tensor"),
            (f"{scale}.nvfp4_csf_exceptions", f": it is a stream of {scale}: ask for that tensor"),
            (scale.replace("gate_proj", "gate_prj"), f"; did you mean {scale}"),
            (scale.removeprefix("model."), f"; did you mean {scale}"),
            ("nothing like it", ""),
        ]:
            for ask in (f.get_tensor, f.get_slice, lambda name: csf_tool.iter_tensors(folder, names=[name])):
                with pytest.raises(UsageError) as caught:
                    ask(wrong)
                assert str(caught.value).startswith(f"{folder}: has no tensor {wrong}{hint}")


def test_what_objects_say_of_themselves(sample: Sample) -> None:
    folder = sample("nvfp4-csf-hf")
    with csf_tool.safe_open(folder, "np") as f:
        assert repr(f) == f"<safe_open '{folder}', framework='np': 151 tensors>"
        assert (
            repr(f.get_slice("model.language_model.embed_tokens.weight"))
            == "<TensorSlice 'model.language_model.embed_tokens.weight', BF16 [512, 384]>"
        )
    assert repr(f) == f"<safe_open '{folder}', framework='np': closed>"
    checkpoint = csf_tool.open_checkpoint(folder)
    assert repr(checkpoint) == f"<Checkpoint '{folder}': Hugging Face layout, NVFP4 CSF, 3 shards>"
    assert len(repr(checkpoint.planes[0])) < 2000


def test_a_wrong_type_is_named(sample: Sample) -> None:
    loading: Any = csf_tool
    folder = sample("nvfp4-csf-hf")
    f = loading.safe_open(folder, "np")
    calls: list[tuple[str, Callable[[], object]]] = [
        ("framework", lambda: loading.safe_open(folder, 5)),
        ("name", lambda: f.get_tensor(5)),
        ("name", lambda: f.get_slice(None)),
        ("names", lambda: loading.iter_tensors(folder, names=5)),
        ("names", lambda: loading.iter_tensors(folder, names=[5])),
        ("batch", lambda: loading.iter_tensors(folder, batch="much")),
    ]
    for argument, call in calls:
        with pytest.raises(TypeError, match=rf"^{argument}: "):
            call()


@pytest.mark.parametrize(
    "wrong", [{"layer": None}, {"projection": 5}, {"tp_rank": "0"}, {"tp_size": None}, {"order": 5}], ids=str
)
def test_a_wrong_type_is_named_for_a_stack(wrong: dict[str, Any], sample: Sample) -> None:
    given: dict[str, Any] = {"layer": 0, "projection": "gate_up", "device": "cpu"} | wrong
    with pytest.raises(TypeError, match=rf"^{next(iter(wrong))}: "):
        csf_tool.load_stack(sample("nvfp4-csf-hf"), **given)


@pytest.mark.parametrize("damage", ["base", "order", "position"])
@pytest.mark.parametrize("number", [0, 5, 11])
def test_of_many_planes_the_broken_one_is_named(tmp_path: Path, damage: str, number: int) -> None:
    """Planes of one geometry are decoded together: the error is that of the plane alone."""
    tensors = model(NVFP4, 1, experts=12)
    stored = {name: compressed(part, NVFP4) for name, part in tensors.items()}
    folder = write_hf(tmp_path / "csf", stored)
    checkpoint = open_checkpoint(folder)
    gates = [plane for plane in checkpoint.planes if "gate" in plane.name and plane.exception_count > 1]
    plane = gates[min(number, len(gates) - 1)]
    file, words = folder / plane.shard.name, plane.exceptions.tensor
    at, data = {
        "base": (plane.fixed.tensor.begin, b"\xff"),
        "order": (words.end - 4, b"\0\0\0"),
        "position": (words.end - 4, b"\xff\xff\xff"),
    }[damage]
    with file.open("r+b") as f:
        f.seek(at)
        f.write(data)
    with Readers() as readers, pytest.raises(StreamError) as alone:
        readers.streams(plane).require_decodable()
    with pytest.raises(StreamError) as together:
        csf_tool.load_file(folder)
    assert together.value.fields == alone.value.fields
    assert together.value.tensor == plane.name
