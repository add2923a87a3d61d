"""Fixtures that all tests share."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixture_types import Copied, Sample
from tests.hub_server import Hub, running_hub

os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nobody listens there: no test ever asks the real Hub
for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "FORCE_COLOR", "TTY_COMPATIBLE", "CSF_TOOL_TRACEBACK"):
    os.environ.pop(variable, None)  # what changes the commands' output

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a script's background has it; some tests are about Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

SAMPLES = Path(__file__).parent / "data" / "samples"


@pytest.fixture
def sample() -> Sample:
    """The folder of a sample checkpoint, made from real weights by other software; read-only by convention."""
    return SAMPLES.joinpath


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    """A copy of a sample that a test may damage."""

    def copy(name: str, to: str = "") -> Path:
        return Path(shutil.copytree(SAMPLES / name, tmp_path / (to or name)))

    return copy


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub on the loopback that has the samples as `org/...`, with an empty cache, and nobody logged in."""
    from csf_tool.hub.errors import RetryPolicy

    with running_hub() as hub:
        for folder in SAMPLES.iterdir():
            hub.add(f"org/{folder.name}", folder)
        constants = "huggingface_hub.constants"
        monkeypatch.setattr(f"{constants}.ENDPOINT", hub.endpoint)
        template = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(f"{constants}.HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr("csf_tool.hub.repo.RETRY_POLICY", RetryPolicy((0.001, 0.001, 0.001), longest_wait=2))
        yield hub


FIRST_ROWS = {
    "test_carrying",
    "test_commands",
    "test_completeness",
    "test_covered",
    "test_engine",
    "test_evidence",
    "test_hub",
    "test_left_aside",
    "test_listing",
    "test_lists",
    "test_next_steps",
    "test_other_scales",
    "test_packages",
    "test_places",
    "test_process",
    "test_public_functions",
    "test_ranks",
    "test_recipes",
    "test_tied",
    "test_troubleshooting",
    "test_two_codecs",
}
"""Modules of long tables: the quick lane takes the first row of each, the whole run takes all."""


WHOLE_RUN = {
    "test_arguments",
    "test_cached",
    "test_dry_run",
    "test_hostile",
    "test_kernel_hub",
    "test_names",
    "test_odd_json",
    "test_options",
    "test_published_configs",
    "test_published_kinds",
    "test_terminals",
    "test_untrusted_files",
}
"""Modules of many commands, or of hostile files and servers: hardly a test is quick, and the whole run has them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark those modules, and the further rows of those tables, as slow."""
    seen: set[str] = set()
    for item in items:
        table = item.nodeid.partition("[")[0]
        if item.path.stem in WHOLE_RUN or (table in seen and item.path.stem in FIRST_ROWS):
            item.add_marker(pytest.mark.slow)
        seen.add(table)
