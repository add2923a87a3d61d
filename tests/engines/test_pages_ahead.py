"""Pages of a mapped file that are asked for ahead: some of them, and never at the price of a load."""

import ctypes
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from csf_tool.engines import pages_ahead
from csf_tool.engines.pages_ahead import PagesAhead

CHUNK = 1 << 20
CHUNKS = 6

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_ahead, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (CHUNKS * CHUNK // 256 - 1) + b"end")  # the last chunk is not a whole one
    return path


def mapping(file: Path) -> torch.Tensor:
    return torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)


def resident(mapped: torch.Tensor) -> int:
    """Bytes of a mapped file that the process can touch without a stop."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    start = f"{mapped.data_ptr():x}-"
    assert any(line.startswith(start) for line in lines)
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Rss:"))


def is_possible() -> bool:
    page = torch.zeros(1 << 16, dtype=torch.uint8)
    begin = -(-page.data_ptr() // 4096) * 4096
    return not ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(4096), 22)


needs_new_linux = pytest.mark.skipif(not is_possible(), reason="Linux before 5.14")


def after(mapped: torch.Tensor, *ranges: tuple[int, int]) -> torch.Tensor:
    """A mapped file when all that was asked for by these ranges is done."""
    pages = PagesAhead(mapped)
    for each in ranges:
        pages.expect(*each)
    pages._pool.shutdown(wait=True)
    return mapped


RANGES = {
    "none": ([], []),
    "a small one": ([(10, 20)], [0, 1]),
    "several in one chunk": ([(10, 20), (20, CHUNK - 1), (20, 30)], [0, 1]),
    "over several chunks": ([(CHUNK + 5, 3 * CHUNK + 1)], [1, 2, 3, 4]),
    "not in the order of the file": ([(3 * CHUNK, 3 * CHUNK + 1), (0, 1)], [3, 4, 0, 1]),
    "the end": ([(CHUNKS * CHUNK - 300, CHUNKS * CHUNK - 253)], [CHUNKS - 1]),
    "the whole": ([(0, CHUNKS * CHUNK - 253)], [*range(CHUNKS)]),
}


@needs_new_linux
@pytest.mark.parametrize(("ranges", "chunks"), RANGES.values(), ids=RANGES)
def test_a_range_and_what_is_behind_it_become_resident(
    file: Path, ranges: Any, chunks: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    make_resident = pages_ahead._make_resident

    def watched(mapped: torch.Tensor, begin: int) -> None:
        asked.append(begin)
        make_resident(mapped, begin)

    monkeypatch.setattr(pages_ahead, "_make_resident", watched)
    found = resident(after(mapping(file), *ranges))
    assert asked == [chunk * CHUNK for chunk in chunks]
    nbytes = sum(min(CHUNK, file.stat().st_size - begin) for begin in asked)
    assert found >= nbytes  # the system may map more: a page of its cache may be as large as 2 MiB


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_MADV_POPULATE_READ", 999),  # as a system that does not know it
        ("sys", SimpleNamespace(platform="darwin")),
        ("ctypes", SimpleNamespace(CDLL=lambda _: SimpleNamespace())),
    ],
    ids=["an older kernel", "another system", "no such call"],
)
def test_a_system_that_cannot_is_not_asked(file: Path, name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_ahead, name, value)
    mapped = after(mapping(file), (0, file.stat().st_size))
    assert resident(mapped) == 0
    assert bytes(mapped.numpy()) == file.read_bytes()


@pytest.mark.parametrize("left", [0, CHUNK // 2])
def test_a_file_that_is_cut_off_meanwhile_is_no_signal(file: Path, left: int) -> None:
    mapped = mapping(file)
    with file.open("r+b") as cut:
        cut.truncate(left)
    assert resident(after(mapped, (0, mapped.nbytes))) <= left


def test_nothing_is_asked_for_of_nothing() -> None:
    after(torch.empty(0, dtype=torch.uint8), (0, 0))


def test_what_waits_is_dropped_when_it_is_closed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, asked = threading.Event(), threading.Event(), []

    def slow(_: torch.Tensor, begin: int) -> None:
        asked.append(begin)
        begun.set()
        go.wait(60)

    monkeypatch.setattr(pages_ahead, "_make_resident", slow)
    with PagesAhead(mapping(file)) as pages:
        pages.expect(0, CHUNKS * CHUNK - 1)
        assert begun.wait(60)
    go.set()
    pages._pool.shutdown(wait=True)
    assert asked == [0]
