"""A GPU that fails while it works: one line that names it, no internal error, and nothing that is half done."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from triton.errors import TritonError
from typer.testing import CliRunner

import csf_tool
from csf_tool.cli import app
from csf_tool.coders import decoder, encoder, gpu_codec
from csf_tool.coders.gpu_codec import GpuDecoder, GpuEncoder
from csf_tool.errors import EnvironmentFault
from tests.fixture_types import Sample

NAME = "cpu (Triton interpreter)"


def failures() -> dict[str, tuple[Exception, str]]:
    """What is raised, and what is said of it."""
    memory = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139 GiB\nof which"
    cc = "Failed to find C compiler. Please specify via CC environment variable or set triton.knobs.build.impl."
    assembler = subprocess.CalledProcessError(1, ["gcc", "main.c"])
    without = "--device cpu works without it"
    return {
        "memory": (torch.OutOfMemoryError(memory), "not enough free memory: free some, or use --device cpu"),
        "card": (
            RuntimeError("CUDA error: unknown error\nCUDA kernel errors"),
            f"CUDA error: unknown error: {without}",
        ),
        "no compiler": (RuntimeError(cc), f"{cc.rstrip('.')}: {without}"),
        "compiler": (assembler, f"{str(assembler).rstrip('.')}: {without}"),
        "triton": (TritonError("out of resource: shared memory"), f"out of resource: shared memory: {without}"),
        "silent": (RuntimeError(""), f"RuntimeError: {without}"),
    }


@pytest.fixture(params=["memory", "card", "no compiler", "compiler", "triton", "silent"])
def failure(request: pytest.FixtureRequest) -> tuple[Exception, str]:
    return failures()[request.param]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Let `--device cuda` mean Triton's interpreter, and all its work fail."""

    def fail(raised: Exception) -> None:
        def work(*_: Any, **__: Any) -> None:
            raise raised

        for module in (decoder, encoder):
            monkeypatch.setattr(module, "named_cuda", lambda name: None if name in ("auto", "cpu") else "cpu")
        monkeypatch.setattr(gpu_codec, "prepare_csf_scales", work)
        monkeypatch.setattr(gpu_codec, "compress_csf_scales", work)

    return fail


@pytest.mark.parametrize("command", ["verify", "expand", "compress"])
def test_commands_say_what_failed_and_what_works(
    sample: Sample, tmp_path: Path, failing: Callable[[Exception], None], failure: tuple[Exception, str], command: str
) -> None:
    raised, said = failure
    failing(raised)
    source = sample("nvfp4-dense" if command == "compress" else "nvfp4-csf-hf")
    places = [source] if command == "verify" else [source, tmp_path / "out"]
    done = CliRunner().invoke(app, [command, *map(str, places), "--device", "cuda"])
    assert done.exit_code == EnvironmentFault.exit_code
    assert f"{NAME}: {said}" in " ".join(done.stderr.split())
    assert "internal error" not in done.stderr
    assert not [*tmp_path.rglob("*.safetensors")]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_benchmark_says_what_failed(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, failure: tuple[Exception, str], checkpoint: bool
) -> None:
    """The CPU is no way out of it."""
    raised, said = failure

    def work(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr("csf_tool.devices.choose_cuda", lambda *_: "cuda:2")
    for place in ("real_layer.load_layer", "run.run_bench"):
        monkeypatch.setattr(f"csf_tool.bench.{place}", work)
    words = ["--checkpoint", str(sample("nvfp4-csf-hf"))] if checkpoint else []
    done = CliRunner().invoke(app, ["bench", *words])
    reason = said.partition(": --device cpu")[0].partition(", or use")[0]
    assert (done.exit_code, done.stderr) == (3, f"csf-tool: cuda:2: {reason}\n")


@pytest.mark.parametrize("where", ["the decoder", "the encoder"])
def test_a_device_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Another program may have it for itself: it is there, and its name cannot be asked for."""

    def busy(_: object) -> str:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "get_device_name", busy)
    with pytest.raises(EnvironmentFault, match=r"^cuda:1: CUDA error: .*busy or unavailable: --device cpu works"):
        (GpuDecoder if where == "the decoder" else GpuEncoder)("cuda:1")


def test_the_functions_raise_what_the_commands_say(sample: Sample, failing: Callable[[Exception], None]) -> None:
    failing(torch.OutOfMemoryError("CUDA out of memory."))
    with pytest.raises(EnvironmentFault, match="not enough free memory"):
        csf_tool.verify(sample("mxfp4-csf-container"), device="cuda")
