"""Routing from the choices of a router, against counting them."""

import pytest
import torch

from csf_tool.gpu.routing import expert_start_of
from tests.gpu.stacks import DEVICE


def expected(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    valid = chosen[(chosen >= 0) & (chosen < experts)].long()
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(valid, minlength=experts).cumsum(0)]).int()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("experts", "tokens", "top"), [(1, 1, 1), (5, 3, 2), (8, 40, 2), (100, 1, 8), (512, 9, 8)])
def test_starts_are_the_counts_added_up(dtype: torch.dtype, experts: int, tokens: int, top: int) -> None:
    chosen = torch.randint(experts, (tokens, top), generator=torch.Generator().manual_seed(experts), dtype=dtype)
    out = torch.full((experts + 1,), -7, dtype=torch.int32, device=DEVICE)
    assert expert_start_of(chosen.to(DEVICE), out) is out
    assert torch.equal(out.cpu(), expected(chosen, experts))


def test_choices_that_are_no_expert_count_for_none() -> None:
    chosen = torch.tensor([[2, -1], [7, 0], [2, 8], [-1, 100]])
    out = expert_start_of(chosen.to(DEVICE), torch.zeros(8, dtype=torch.int32, device=DEVICE))
    assert out.tolist() == [0, 1, 1, 3, 3, 3, 3, 3]


def test_no_choices() -> None:
    nothing = torch.empty(0, 2, dtype=torch.int32, device=DEVICE)
    assert expert_start_of(nothing, torch.ones(4, dtype=torch.int32, device=DEVICE)).tolist() == [0] * 4


def test_what_does_not_fit_is_refused() -> None:
    chosen, out = torch.zeros(4, 2, dtype=torch.int32, device=DEVICE), torch.zeros(5, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="out must be"):
        expert_start_of(chosen, out.long())
    with pytest.raises(ValueError, match="chosen must be"):
        expert_start_of(chosen.T, out)
    with pytest.raises(ValueError, match="chosen must be"):
        expert_start_of(chosen.float(), out)
