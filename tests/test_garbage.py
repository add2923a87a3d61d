"""The garbage collector comes back, however the times overlap in which it is held back."""

import gc
from collections.abc import Iterator

import pytest

from csf_tool.garbage import no_garbage_collection


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_it_is_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_the_last_of_two_gives_it_back() -> None:
    gc.enable()
    first, second = no_garbage_collection(), no_garbage_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_a_fault_gives_it_back() -> None:
    gc.enable()
    with pytest.raises(ValueError), no_garbage_collection():
        raise ValueError
    assert gc.isenabled()
