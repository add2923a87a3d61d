"""The versions of engines that csf-tool was tested with, and the warning of others."""

import logging

import pytest

from csf_tool.engines.version_range import VersionRange

MINOR = VersionRange("vLLM", (0, 26), (0, 33))
PATCH = VersionRange("SGLang", (0, 5, 14), (0, 5, 23))


@pytest.mark.parametrize("version", ["0.26.0", "0.26", "0.33.1.dev3", "0.33.99+cpu", "0.30rc1"])
def test_a_bound_of_two_numbers_includes_all_that_begin_so(version: str) -> None:
    assert MINOR.includes(version) and not MINOR.says_of(version)


@pytest.mark.parametrize("version", ["0.25.9", "0.34.0", "1.0.0", "0.3", "26", "", "dev", "of unknown version"])
def test_all_others_are_outside(version: str) -> None:
    assert MINOR.says_of(version) == f"vLLM {version} is outside the range that csf-tool was tested with"


def test_numbers_are_compared_as_numbers() -> None:
    assert PATCH.includes("0.5.23.post1")
    assert not any(map(PATCH.includes, ["0.5.2", "0.5.140", "0.5.9", "0.5", "0.50.14"]))


def test_one_outside_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    mine = logging.getLogger("an engine")
    for version in ("0.5.99 100%", "0.5.99 100%", "0.5.20"):
        PATCH.warn_of(version, mine)
    said = "SGLang 0.5.99 100% is outside the range that csf-tool was tested with (0.5.14 to 0.5.23)"
    assert [record.getMessage() for record in caplog.records] == [said]
