"""Fixtures of tests that write while processes die and disks fail."""

from collections.abc import Iterator

import pytest

from tests.faults import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A process that carries out orders in forked children."""
    with Server(tmp_path_factory.mktemp("server")) as running:
        yield running
