"""Names that are near to one that is not there."""

import pytest

from csf_tool.nearest import did_you_mean, nearest

NAMES = [f"model.layers.{i}.mlp.experts.{j}.{p}_proj.{s}" for i in range(12) for j in range(8)
         for p in ("gate", "up", "down") for s in ("weight", "weight_scale", "weight_scale_2")]  # fmt: skip
NAMES += ["lm_head.weight", "model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("model.layers.3.mlp.experts.5.gate_prj.weight", "model.layers.3.mlp.experts.5.gate_proj.weight"),
        ("layers.3.mlp.experts.5.up_proj.weight", "model.layers.3.mlp.experts.5.up_proj.weight"),
        ("model.layers.12.mlp.experts.7.up_proj.weight", "model.layers.11.mlp.experts.7.up_proj.weight"),
        ("model.layers.3.mlp.experts.5.down_proj.weight_scales", "model.layers.3.mlp.experts.5.down_proj.weight_scale"),
        ("lm_head", "lm_head.weight"),
        ("model.embed_token.weight", "model.embed_tokens.weight"),
    ],
)
def test_the_nearest_comes_first(wrong: str, right: str) -> None:
    assert nearest(wrong, NAMES)[0] == right


def test_what_is_far_is_not_named() -> None:
    assert did_you_mean("optimizer", NAMES) == ""
    assert did_you_mean("x" * 1000, ["x" * 1001]) == ""


def test_hostile_names_take_no_time() -> None:
    """Any number of kinds, and names of any length."""
    assert nearest("ab", ["a" * 10_000_000, *(f"{chr(0x4E00 + i)}.b" for i in range(20_000))], 1) is not None
