"""Models of transformers, dense and in CSF, and csf_tool's plug-in while a test runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import csf_tool.engines.transformers as plugin
from csf_tool.engines import version_range
from tests.transformers.models import in_csf, save_llama


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    version_range.warn_once.cache_clear()
    plugin.install()
    yield
    plugin.uninstall()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def csf(llama: Path, tmp_path: Path) -> Path:
    return in_csf(llama, tmp_path / "csf")
