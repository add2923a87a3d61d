"""The benchmark's clock without a GPU: what a CUDA graph would capture runs, and what none can capture is refused."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from csf_tool.bench.timing import Timing


class Captured(TorchDispatchMode):
    """Refuses tensors made from the host's numbers, and numbers read back from a tensor."""

    refused = (torch.ops.aten.lift_fresh.default, torch.ops.aten._local_scalar_dense.default)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See `TorchDispatchMode`."""
        assert func not in self.refused, f"a graph cannot capture {func}"
        return func(*args, **(kwargs or {}))


def time_graph(launch: Callable[[int], object], *, launches: int, repeats: int) -> Timing:
    """See `csf_tool.bench.timing.time_graph`; of the launches three, and any time."""
    launch(0)
    with Captured():
        for i in range(min(launches, 3)):
            launch(i)
    return Timing(2.0, 1.0, 3.0, repeats)
