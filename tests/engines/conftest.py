"""What the tests of engines share: the models, made once, and variables for a vLLM that serves them.

Scales that are kept compressed are decoded by Triton, through its interpreter where there is no GPU. It is chosen when
a kernel is defined, so this runs before anything imports `csf_tool.gpu`.
"""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engines.checkpoints import Pairs

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
else:  # there is no Triton for this platform
    collect_ignore = ["test_kept_layer.py", "test_keeping.py"]


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the models, and what goes with them."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="session")
def pairs(root: Path) -> "Pairs":
    """The models."""
    from tests.engines.checkpoints import make

    return make(root)


@pytest.fixture(scope="session")
def environment(root: Path) -> dict[str, str]:
    """Variables for a vLLM on this machine."""
    from tests.engines.serving import variables

    return variables(root)
