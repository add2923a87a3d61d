"""When a GPU is worth its start: a table of cores, bytes and devices, and no torch where it is not."""

import subprocess
import sys
from pathlib import Path

import pytest

from csf_tool.coders import encoder as encoders
from csf_tool.coders.decoder import NumpyDecoder, make_decoder
from csf_tool.coders.encoder import AutoEncoder, NumpyEncoder, make_encoder
from csf_tool.coders.gpu_worth import CORE_BYTES_PER_SECOND, GPU_START_SECONDS, gpu_pays
from tests.fixture_types import Sample

LAYER = 157_286_400
"""Bytes of scales in a layer of Qwen3.8."""

TABLE = {  # cores, jobs: the layers for which the CPU is sooner done, and those for which the GPU is
    (1, 1): ((0, 1), (2, 4, 16, 94)),
    (1, 4): ((0, 1), (2, 4, 16, 94)),
    (16, 1): ((0, 1), (2, 4, 16, 94)),
    (2, 2): ((0, 1, 2), (3, 4, 16, 94)),
    (4, 4): ((0, 1, 4), (5, 16, 94)),
    (16, 4): ((0, 1, 4), (5, 16, 94)),
    (16, 16): ((0, 1, 4, 16), (94, 10_000)),
}


@pytest.mark.parametrize(("cores", "jobs"), TABLE)
def test_cores_and_bytes_decide(cores: int, jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.coders.gpu_worth.cores", lambda: cores)
    on_cpu, on_gpu = TABLE[cores, jobs]
    assert [gpu_pays(layers * LAYER, jobs) for layers in on_cpu] == [False] * len(on_cpu)
    assert [gpu_pays(layers * LAYER, jobs) for layers in on_gpu] == [True] * len(on_gpu)


def test_no_work_and_work_of_nobody_start_no_gpu() -> None:
    assert not gpu_pays(0, 0)
    assert not gpu_pays(0, 4)
    assert not gpu_pays(int(GPU_START_SECONDS * CORE_BYTES_PER_SECOND), 0)


class Gpu(NumpyEncoder):
    """A GPU's encoder, by its name alone."""

    device = "a GPU"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.coders.gpu_worth.cores", lambda: 1)
    monkeypatch.setattr(encoders, "choose_cuda", lambda *_: "cuda")
    monkeypatch.setattr(encoders, "_gpu_encoder", lambda _: Gpu())


@pytest.mark.usefixtures("gpu")
def test_auto_takes_the_gpu_for_much_and_keeps_it() -> None:
    auto = make_encoder("auto")
    assert auto.device == "CPU (numpy)"
    for layers, device in ((0, "CPU (numpy)"), (1, "CPU (numpy)"), (16, "a GPU"), (0, "a GPU")):
        auto.expect(layers * LAYER, 4)
        assert auto.device == device
    assert make_encoder("cpu").device == "CPU (numpy)"


def test_why_the_gpu_is_not_taken_is_told_where_it_would_pay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("csf_tool.devices._GPU_FILES", (tmp_path,))
    monkeypatch.setattr("csf_tool.devices.why_no_gpu", lambda _: "it is on fire")
    said: list[str] = []
    auto = AutoEncoder(said.append)
    auto.expect(0, 1)
    assert said == []
    for _ in range(2):  # a command measures, then writes
        auto.expect(1 << 50, 1)
    assert said == ["encoding on the CPU, although there is a GPU: it is on fire"]
    assert auto.device == "CPU (numpy)"


def test_auto_decodes_on_the_cpu_wherever_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("csf_tool.devices._GPU_FILES", (tmp_path,))
    assert isinstance(make_decoder("auto"), NumpyDecoder)


COMMANDS = """
import sys
from pathlib import Path
import csf_tool, csf_tool.devices
csf_tool.devices._GPU_FILES = (Path(sys.argv[1]),)  # there is a GPU
csf, dense, out = map(Path, sys.argv[1:])
csf_tool.expand(csf, out / "expanded")
csf_tool.expand(csf, out / "expanded")
assert csf_tool.verify(csf, against=dense)["ok"]
csf_tool.stats(csf, scales=True)
csf_tool.compress(dense, out / "compressed")
csf_tool.compress(dense, out / "compressed")
print(sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "triton", "sympy"}))
"""


@pytest.mark.slow
def test_small_work_beside_a_gpu_loads_no_torch(sample: Sample, tmp_path: Path) -> None:
    folders = map(str, (sample("nvfp4-csf-hf"), sample("nvfp4-dense"), tmp_path))
    done = subprocess.run([sys.executable, "-c", COMMANDS, *folders], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
