"""Memory: what a process takes at most, whatever the size of shards and tensors, and what it leaves in the page cache.

The large files are sparse, and written so: their zeros take no room on the disk.
"""

import ctypes
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.disk import appenders
from tests.building import NVFP4, Tensor, compressed, header_of, index_of, matrix, raw_file, recipes_config, write_json

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status and counts pages: Linux only"),
]

MIB = 1 << 20
LIMIT = 512 * MIB
MODULE = "model.layers.0.mlp.experts.0.up_proj"

_PROGRAM = """
import atexit, os, sys
import numpy as np
import csf_tool.disk.appenders as appenders
import csf_tool.cli

def peak(path):
    status = open("/proc/self/status").read()
    open(path, "w").write(status.partition("VmHWM:")[2].split()[0])

def write(self, view):
    if len(view) < 4096 or np.frombuffer(view, np.uint8).any():
        return really_write(self, view)
    self._written += len(view)
    os.lseek(self._fd, len(view), os.SEEK_CUR)
    os.ftruncate(self._fd, self._written)

def copy(self, reader, begin, end, on_bytes):
    for piece in reader.chunks(begin, end):
        self.write(piece)
        on_bytes(len(piece))

really_write = appenders.CachedAppender.write
if sys.argv[2] == "sparse":
    appenders.CachedAppender.write, appenders.CachedAppender.copy = write, copy
    appenders.DirectAppender = appenders.CachedAppender
atexit.register(peak, sys.argv[1])
sys.argv = ["csf-tool", *sys.argv[3:]]
csf_tool.cli.main()
"""
"""The command line; it says how much memory it took at most, and, where asked to, leaves out zeros when writing."""


@dataclass
class Measured:
    """Runs commands, and notes how much memory each took beyond a run that has next to nothing to do."""

    folder: Path
    own: int = 0

    def run(self, *argv: str, how: str = "sparse") -> int:
        peak = self.folder / "peak"
        command = [sys.executable, "-c", _PROGRAM, str(peak), how, *argv]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        taken = int(peak.read_text()) * 1024
        print(f"{' '.join(argv[:1])}: {taken / MIB:.0f} MiB, the interpreter's own {self.own / MIB:.0f}")
        return taken - self.own


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    source = write_large(tmp_path / "tiny", 0)
    found = Measured(tmp_path)
    found.own = found.run("expand", str(source), str(tmp_path / "tiny-out"), "--device", "cpu", "--jobs", "1")
    return found


@pytest.fixture
def roomy(tmp_path: Path) -> Iterator[Path]:
    """A folder for sparse files: in memory where that can be, for holes are read faster there than from disks."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    folder = shared / f"csf-tool-{os.getpid()}-{random.randrange(1 << 30)}"
    folder.mkdir()
    try:
        yield folder
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=True)


def write_large(root: Path, nbytes: int) -> Path:
    """A CSF checkpoint: a tensor of `nbytes` zeros, most of them a hole, and one plane, before it and after it."""
    root.mkdir(parents=True)
    around = compressed(matrix(MODULE, NVFP4, seed=1), NVFP4)
    large = Tensor("model.embed_tokens.weight", "U8", (nbytes,), b"")
    document = header_of(around[:2])
    begin = sum(len(t.data) for t in around[:2])
    document[large.name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [begin, begin + nbytes]}
    for name, entry in header_of(around[2:]).items():
        entry["data_offsets"] = [begin + nbytes + offset for offset in entry["data_offsets"]]
        document[name] = entry
    head = raw_file(document, b"".join(t.data for t in around[:2]), pad=True)
    with open(root / "model.safetensors", "wb") as file:
        file.write(head)
        file.seek(nbytes, os.SEEK_CUR)
        file.write(b"".join(t.data for t in around[2:]))
    write_json(root / "config.json", recipes_config(1))
    return root


def test_a_tensor_of_6_gib(measured: Measured, roomy: Path) -> None:
    source = write_large(roomy / "source", 6 << 30)
    dense, again = roomy / "dense", roomy / "again"
    cpu = ("--device", "cpu", "--jobs", "2")
    assert measured.run("expand", str(source), str(dense), *cpu) < LIMIT
    assert (dense / "model.safetensors").stat().st_size > 6 << 30
    assert not open_checkpoint(dense).planes
    assert measured.run("verify", str(source), "--against", str(dense), *cpu) < LIMIT
    assert measured.run("compress", str(dense), str(again), "--keep-larger", *cpu) < LIMIT
    assert measured.run("verify", str(again), "--against", str(source), *cpu) < LIMIT


def test_a_large_tensor_that_is_hashed(measured: Measured, roomy: Path) -> None:
    source = write_large(roomy / "source", 1 << 30)
    dense, container, restored = roomy / "dense", roomy / "container", roomy / "restored"
    cpu = ("--device", "cpu", "--jobs", "2")
    measured.run("expand", str(source), str(dense), *cpu)
    assert measured.run("compress", str(dense), str(container), "--to", "container", "--keep-larger", *cpu) < LIMIT
    assert measured.run("expand", str(container), str(restored), *cpu) < LIMIT
    assert measured.run("verify", str(container), *cpu) < LIMIT


def test_the_largest_planes_there_can_be(measured: Measured, tmp_path: Path) -> None:
    """Two shards at once, each with planes of 2^24 scales, a tenth of them exceptions."""
    rng = np.random.default_rng(1)
    shards = {}
    for i in range(2):
        tensors = []
        for part in ("gate_proj", "up_proj"):
            scales = rng.integers(64, 80, (4096, 4096), np.uint8)
            scales[rng.random(scales.shape, np.float32) < 0.1] = 200
            module = f"model.layers.{i}.mlp.experts.0.{part}"
            tensors.append(Tensor(f"{module}.weight", "U8", (4096, 8 * 4096), b""))
            tensors.append(Tensor(f"{module}.weight_scale", "F8_E4M3", (4096, 4096), scales.tobytes()))
        shards[f"model-{i + 1:05d}-of-00002.safetensors"] = tensors
    source = write_sparse(tmp_path / "source", shards)
    csf, dense = tmp_path / "csf", tmp_path / "dense"
    cpu = ("--device", "cpu", "--jobs", "2")
    assert measured.run("compress", str(source), str(csf), "--keep-larger", *cpu) < LIMIT
    assert measured.run("expand", str(csf), str(dense), *cpu) < LIMIT
    assert measured.run("verify", str(csf), "--against", str(source), *cpu) < LIMIT


def write_sparse(root: Path, shards: dict[str, list[Tensor]]) -> Path:
    """A dense checkpoint in which tensors without data are holes as long as their shape (of bytes) says."""
    root.mkdir()
    for name, tensors in shards.items():
        document, at = {}, 0
        for tensor in tensors:
            size = len(tensor.data) or int(np.prod(tensor.shape))
            document[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [at, at + size]}
            at += size
        with open(root / name, "wb") as file:
            file.write(raw_file(document, pad=True))
            for tensor in tensors:
                file.seek(0 if tensor.data else int(np.prod(tensor.shape)), os.SEEK_CUR)
                file.write(tensor.data)
    write_json(root / "model.safetensors.index.json", index_of(shards))
    write_json(root / "config.json", recipes_config(len(shards), csf=False))
    return root


# The page cache


def cached_bytes(folder: Path) -> int:
    """Bytes of the files of a folder that lie in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    page, pages = os.sysconf("SC_PAGE_SIZE"), 0
    for path in folder.rglob("*.safetensors"):
        size = path.stat().st_size
        fd = os.open(path, os.O_RDONLY)
        address = libc.mmap(None, size, 1, 1, fd, 0)
        os.close(fd)
        there = ctypes.create_string_buffer(-(-size // page))
        assert libc.mincore(address, size, there) == 0
        libc.munmap(address, size)
        pages += sum(byte & 1 for byte in there.raw)
    return pages * page


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A CSF checkpoint of 192 MiB in two shards, as just written: all of it in the page cache."""
    kind = subprocess.run(["stat", "-f", "-c", "%T", str(tmp_path)], capture_output=True, text=True, check=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        pytest.skip("the temporary folder is in memory: its pages cannot be dropped")
    shards = {}
    for i in range(2):
        tensors = compressed(matrix(MODULE.replace("layers.0", f"layers.{i}"), NVFP4, seed=i), NVFP4)
        filler = random.Random(i).randbytes(MIB) * 96
        tensors.insert(2, Tensor(f"model.layers.{i}.filler", "U8", (len(filler),), filler))
        shards[f"model-{i + 1:05d}-of-00002.safetensors"] = tensors
    root = tmp_path / "source"
    root.mkdir()
    for name, tensors in shards.items():
        with open(root / name, "wb") as file:
            file.write(raw_file(header_of(tensors), pad=True))
            for tensor in tensors:
                file.write(tensor.data)
            os.fsync(file.fileno())
    write_json(root / "model.safetensors.index.json", index_of(shards))
    write_json(root / "config.json", recipes_config(2))
    assert cached_bytes(root) > 128 * MIB
    return root


def test_drop_cache_leaves_next_to_nothing_in_the_page_cache(on_disk: Path, tmp_path: Path) -> None:
    run, cpu = Measured(tmp_path).run, ("--device", "cpu", "--jobs", "2", "--drop-cache")
    dense, container, restored = tmp_path / "dense", tmp_path / "container", tmp_path / "restored"
    run("expand", str(on_disk), str(dense), *cpu, how="plain")
    assert cached_bytes(on_disk) + cached_bytes(dense) < 64 * MIB
    run("compress", str(dense), str(container), "--to", "container", "--keep-larger", *cpu, how="plain")
    assert cached_bytes(dense) + cached_bytes(container) < 64 * MIB
    run("expand", str(container), str(restored), *cpu, how="plain")
    assert cached_bytes(container) + cached_bytes(restored) < 64 * MIB
    run("verify", str(on_disk), "--against", str(restored), *cpu, how="plain")
    assert cached_bytes(on_disk) + cached_bytes(restored) < 64 * MIB


def test_large_new_files_are_written_past_the_page_cache(on_disk: Path, tmp_path: Path) -> None:
    with (tmp_path / "probe").open("wb") as file:
        if not appenders._writes_directly(file.fileno()):
            pytest.skip("the temporary folder's file system is not one where they are")
    run, out = Measured(tmp_path).run, tmp_path / "out"
    run("expand", str(on_disk), str(out), "--device", "cpu", how="plain")
    assert cached_bytes(out) < 8 * MIB
    assert cached_bytes(on_disk) > 128 * MIB, "what is read stays"


def test_keep_cache_keeps_it(on_disk: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    Measured(tmp_path).run("expand", str(on_disk), str(out), "--device", "cpu", "--keep-cache", how="plain")
    assert cached_bytes(on_disk) > 64 * MIB
    assert cached_bytes(out) > 64 * MIB
