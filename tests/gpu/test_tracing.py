"""Who sees an operator and who a launch: graphs the one, ordinary calls the other, which import no compiler."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from csf_tool import CsfScales, decompress_nvfp4_csf_scales
from csf_tool.codec.formats import NVFP4
from csf_tool.gpu.launching import is_traced
from tests.gpu.stacks import DEVICE, Stack, prepared, random_stack

COMPILERS = ("torch._dynamo", "torch._inductor", "sympy", "torch.distributed")
"""Packages that take seconds to import and that decoding has no use for."""

FIRST_USE = """
import json, sys
import torch
def heavy():
    return {name for name in sys.modules if any(name == p or name.startswith(p + ".") for p in %r)}
of_torch = heavy()
import csf_tool
from csf_tool.loading.torch_loader import TorchLoader
from csf_tool.checkpoint.logical import logical_tensors
from csf_tool.checkpoint.open import open_checkpoint
found = {"import": sorted(heavy() - of_torch)}
device = "cuda" if torch.cuda.is_available() else "cpu"
path = sys.argv[1]
csf_tool.load_file(path, device=device)
found["load_file"] = sorted(heavy() - of_torch)
tensors = [t for t in logical_tensors(open_checkpoint(sys.argv[2])).values()][:28]
with TorchLoader(torch.device(device), decode_there=True) as loader:
    loader.load(tensors)
import csf_tool.gpu.decode
assert "csf_tool.gpu.decode" in sys.modules
found["decoding there"] = sorted(heavy() - of_torch)
from pathlib import Path
from csf_tool.coders.gpu_codec import GpuDecoder, GpuEncoder
from csf_tool.progress import Silent
from csf_tool.prove.verify import verify
from csf_tool.write.compress import CompressOptions, compress
from csf_tool.write.expand import expand
csf, out = map(Path, sys.argv[2:])
decoder, encoder = GpuDecoder(device), GpuEncoder(device)
expand(open_checkpoint(csf), out / "dense", decoder, Silent())
verify(open_checkpoint(csf), open_checkpoint(out / "dense"), decoder, Silent())
compress(open_checkpoint(out / "dense"), out / "csf", CompressOptions(), encoder, decoder, Silent())
found["commands"] = sorted(heavy() - of_torch)
print(json.dumps(found))
"""


@pytest.fixture
def stack() -> Stack:
    return random_stack(NVFP4, 3, 32, 24, 0.02)


@pytest.mark.slow
def test_the_first_use_imports_no_compiler(sample: Callable[[str], Path], tmp_path: Path) -> None:
    folder = sample("nvfp4-csf-hf")
    code = FIRST_USE % (COMPILERS,)
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder / "model-00001-of-00003.safetensors"), str(folder), str(tmp_path)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == {"import": [], "load_file": [], "decoding there": [], "commands": []}


class _Seen(TorchDispatchMode):
    """Notes the names of the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def decoded(scales: CsfScales, out: torch.Tensor) -> torch.Tensor:
    return decompress_nvfp4_csf_scales(scales, out=out).view(torch.uint8)


def workspace(stack: Stack) -> torch.Tensor:
    return torch.zeros(stack.scales.size, dtype=torch.uint8, device=DEVICE)


def test_modes_and_graphs_see_an_operator(stack: Stack) -> None:
    scales, out = prepared(stack), workspace(stack)
    with _Seen() as seen:
        decoded(scales, out)
    assert "csf_tool.decompress.default" in seen.names
    assert np.array_equal(out.cpu().numpy().reshape(stack.scales.shape), stack.scales)
    graph = make_fx(lambda out: decoded(scales, out))(workspace(stack))
    assert any("csf_tool.decompress" in str(node.target) for node in graph.graph.nodes)


def test_fake_tensors_are_not_written(stack: Stack) -> None:
    scales = prepared(stack)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        out = mode.from_tensor(workspace(stack))
        assert decoded(scales, out).shape == stack.scales.shape
    assert is_traced(out)


@pytest.mark.slow
def test_exported_programs_hold_it(stack: Stack) -> None:
    scales = prepared(stack)

    class Model(torch.nn.Module):
        def forward(self, out: torch.Tensor) -> torch.Tensor:
            return decoded(scales, out) + 1

    for strict in (False, True):
        program = torch.export.export(Model(), (workspace(stack),), strict=strict)
        assert "csf_tool.decompress" in str(program.graph)


def test_ordinary_calls_launch_at_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """In inference mode, too, and on parameters; that they write is known to autograd, as of any operator."""
    from csf_tool.gpu import decode

    monkeypatch.setattr(decode, "_decompress_op", None)
    out = workspace(stack)
    before = out._version
    decoded(prepared(stack), out)
    assert out._version > before
    decoded(prepared(stack), torch.nn.Parameter(workspace(stack), requires_grad=False))
    with torch.inference_mode():
        decoded(prepared(stack), workspace(stack))
    with torch.device("cpu"), torch.no_grad():
        decoded(prepared(stack), out)
