"""The examples of docs/serving.md run as they stand there, on whatever device there is."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.building import NVFP4, mini_hf, model, shard_name
from tests.gpu.stacks import DEVICE

TEXT = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_examples_of_the_serving_document(tmp_path: Path, example: int) -> None:
    code = EXAMPLES[example].replace('device="cuda"', f'device="{DEVICE}"')
    assert ("cuda" in code) is (DEVICE == "cuda")
    names: dict[str, Any] = {"folder": mini_hf(tmp_path / "csf")}
    exec(code, names)
    if "parameters" in names:
        assert names["parameters"].keys() == {t.name for tensors in model(NVFP4).values() for t in tensors}
    if "dense" in names:
        down = next(t for t in model(NVFP4)[shard_name(2, 2)] if t.name.endswith("down_proj.weight_scale"))
        assert names["dense"].view(torch.uint8).cpu().numpy().tobytes() == down.data


def test_there_is_an_example_of_each_strategy() -> None:
    assert any("load_file" in example for example in EXAMPLES)
    assert any("ScaleWorkspace" in example for example in EXAMPLES)
