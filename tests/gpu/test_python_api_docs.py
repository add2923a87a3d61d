"""The examples of docs/python-api.md run as they stand there, on whatever device there is."""

import doctest
import re
import shutil
from pathlib import Path

import pytest

import csf_tool
from tests.conftest import SAMPLES
from tests.gpu.stacks import DEVICE

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    names = {"samples": Path(shutil.copytree(SAMPLES, tmp_path / "samples")), "device": DEVICE}
    examples = doctest.DocTestParser().get_doctest(PAGE.read_text(), names, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    result = doctest.DocTestRunner().run(examples, out=said.append)
    assert result.failed == 0, "".join(said)


def test_every_public_name_has_an_example() -> None:
    code = "".join(example.source for example in doctest.DocTestParser().get_examples(PAGE.read_text()))
    headings = " ".join(re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE))
    documents = {name for name in csf_tool.__all__ if name.endswith("Document")}
    given = {"CsfScales", "CsfStreams", *documents}  # what functions give; nobody makes them by hand
    assert [name for name in csf_tool.__all__ if f"csf_tool.{name}" not in code and name not in given] == []
    assert [name for name in csf_tool.__all__ if f"`{name}`" not in headings] == sorted(["__version__", *documents])
    assert [name for name in documents if not re.search(rf"`(csf_tool\.)?{name}`", PAGE.read_text())] == []
