"""The benchmark on a real checkpoint: its streams are the sample's, and stacks that cannot be measured are refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

from csf_tool import CsfScales, decompress_csf_scales
from csf_tool.bench import gemm_times
from csf_tool.bench.gemm import MXFP4_STACKS, STACKS, Tile, tokens_of
from csf_tool.bench.real_layer import RealLayer, Source, load_layer
from csf_tool.bench.rivals import torch_decode
from csf_tool.bench.run import BenchOptions, choose_products
from csf_tool.bench.timing import Timing
from csf_tool.bench.workloads import make_streams
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.codec.formats import NVFP4 as NVFP4_FORMAT
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.gpu.scales import prepared
from csf_tool.hub.name import find_source
from csf_tool.hub.repo import HubRepo
from tests.building import NVFP4, Tensor, compressed, matrix, write_hf
from tests.conftest import SAMPLES
from tests.gpu.capture import time_graph
from tests.gpu.stacks import DEVICE, Bytes
from tests.hub_server import Hub

pytestmark = pytest.mark.slow

EXPERTS = 4
L2_BYTES = 60 << 20

DENSE = {
    "nvfp4-csf-hf": ("nvfp4-dense", "model.language_model.layers.0.mlp.experts.{}.{}_proj.weight_scale"),
    "nvfp4-csf-container": ("nvfp4-dense", "model.language_model.layers.0.mlp.experts.{}.{}_proj.weight_scale"),
    "nvfp4-dense": ("nvfp4-dense", "model.language_model.layers.0.mlp.experts.{}.{}_proj.weight_scale"),
    "mxfp4-csf-container": ("mxfp4-dense", "layers.0.ffn.experts.{}.{}.scale"),
}
"""Of each sample: the dense one, and the names of the first layer's scales there."""

PRODUCTS = ("nvfp4-csf-hf", "mxfp4-csf-container")

SHORT = {"gate": "w1", "up": "w3", "down": "w2"}


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, read by safetensors alone."""
    found: dict[str, torch.Tensor] = {}
    for path in folder.rglob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}
    return found


def dense_stack(sample: str, *projections: str) -> Bytes:
    """The dense scales of projections, one after the other: `[experts, rows, cols]`."""
    folder, name = DENSE[sample]
    scales = tensors(SAMPLES / folder)
    short = SHORT if folder.startswith("mxfp4") else {}

    def plane(expert: int, projection: str) -> Bytes:
        return scales[name.format(expert, short.get(projection, projection))].view(torch.uint8).numpy()

    return np.stack([np.concatenate([plane(expert, p) for p in projections]) for expert in range(EXPERTS)])


def load(folder: Path | HubRepo) -> RealLayer:
    return load_layer(open_checkpoint(folder), torch.device(DEVICE), smallest=0)


@pytest.mark.parametrize("sample", DENSE)
def test_the_streams_of_a_sample_decode_to_its_dense_scales(sample: str) -> None:
    layer = load(SAMPLES / sample)
    expected = [dense_stack(sample, "gate", "up"), dense_stack(sample, "down")]
    for (work, streams), dense in zip(layer.stacks.items(), expected, strict=True):
        assert (work.experts, work.rows, work.cols) == dense.shape
        assert torch_decode(streams).cpu().numpy().tobytes() == dense.tobytes()
        decoded = decompress_csf_scales(prepared(streams))
        assert decoded.view(torch.uint8).cpu().numpy().tobytes() == dense.tobytes()


def test_the_layer_is_named_and_its_exceptions_counted() -> None:
    layer = load(SAMPLES / "nvfp4-csf-hf")
    lists = {k: t for k, t in tensors(SAMPLES / "nvfp4-csf-hf").items() if k.endswith("_csf_exceptions")}
    expected = sum(len(words) for name, words in lists.items() if ".layers.0." in name)
    assert layer.source == Source(str(SAMPLES / "nvfp4-csf-hf"), "model.language_model.layers.0", expected)
    for work, streams in layer.stacks.items():
        assert work.exception_share == len(streams.words) / work.dense_bytes
        assert sum(streams.counts) == len(streams.words)


def test_a_repository_on_the_hub_gives_the_same_streams(hub: Hub) -> None:
    name = "nvfp4-csf-hf"
    far, here = load(find_source(f"org/{name}", print)), load(SAMPLES / name)
    assert far.source.checkpoint == f"org/{name}@{hub.repositories[f'org/{name}'].commit}"
    for work, streams in here.stacks.items():
        assert torch.equal(far.stacks[work].fixed, streams.fixed)
        assert torch.equal(far.stacks[work].words, streams.words)


def experts(layer: str, *projections: str) -> list[Tensor]:
    return [
        tensor
        for expert in range(2)
        for i, projection in enumerate(projections)
        for tensor in matrix(f"{layer}.experts.{expert}.{projection}", NVFP4, i, rows=32, cols=8)
    ]


def test_the_first_compressed_layer_with_all_three_projections(tmp_path: Path) -> None:
    gated = ("gate_proj", "up_proj", "down_proj")
    content = compressed(experts("layers.10", *gated) + experts("layers.9", *gated), NVFP4)
    content += compressed(experts("layers.8", "up_proj", "down_proj"), NVFP4)
    root = write_hf(tmp_path / "csf", {"a.safetensors": content + experts("layers.2", *gated)})
    assert load(root).source.layer == "layers.9"


def test_a_checkpoint_without_gated_experts_is_refused(tmp_path: Path) -> None:
    root = write_hf(tmp_path / "csf", {"a.safetensors": compressed(experts("layers.0", "up_proj", "down_proj"), NVFP4)})
    with pytest.raises(UsageError, match="has no layer with block scales of experts' gate, up and down"):
        load(root)


def test_the_command_refuses_a_layer_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.devices.choose_cuda", lambda *_: "cuda:0")
    monkeypatch.setattr("csf_tool.loading.stacks.torch_device", lambda _: torch.device(DEVICE))
    result = CliRunner().invoke(app, ["bench", "--checkpoint", str(SAMPLES / "mxfp4-csf-container")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the gate and up stack of layers.0.ffn.experts has only 36.00 KiB of scales, too little" in result.stderr


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Timing]:
    """Products of one tile and token, to two experts at a time where few are active; only the clock is not real."""
    timings: list[Timing] = []

    def timed(launch: Callable[[int], object], *, launches: int, repeats: int) -> Timing:
        timings.append(time_graph(launch, launches=launches, repeats=repeats))
        return timings[-1]

    monkeypatch.setattr(gemm_times, "time_graph", timed)
    monkeypatch.setattr(gemm_times, "tokens_of", lambda _: (1,))
    monkeypatch.setattr(gemm_times, "ACTIVE_EXPERTS", 2)
    monkeypatch.setattr(gemm_times, "TILES", (Tile(16, 128, 128, 4, 2),))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda _: (9, 0))
    return timings


@pytest.mark.parametrize("sample", PRODUCTS)
def test_a_product_with_other_scales_is_an_error_and_no_time(
    sample: str, launches: list[Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(scales: CsfScales, out: torch.Tensor | None = None, **options: torch.Tensor | None) -> torch.Tensor:
        dense = decompress_csf_scales(scales, out=out, **options)  # type: ignore[arg-type]
        if out is not None:
            out.view(torch.uint8).bitwise_xor_(0x08)
        return dense

    monkeypatch.setattr(gemm_times, "decompress_csf_scales", wrong)
    _, down = load(SAMPLES / sample).stacks.items()
    with pytest.raises(EnvironmentFault, match="down: the product with decoded scales differs"):
        next(gemm_times.run_gemms(torch.device(DEVICE), [down], 20, lambda _: None))
    assert len(launches) == 1  # of choosing the tile, before


@pytest.mark.parametrize("sample", PRODUCTS)
def test_products_take_the_streams(sample: str, launches: list[Timing]) -> None:
    """Every product is run, and compared, on the down stack of the sample."""
    _, down = load(SAMPLES / sample).stacks.items()
    results = list(gemm_times.run_gemms(torch.device(DEVICE), [down], 20, lambda _: None))
    assert [(result.way, result.active, result.warm is None) for result in results] == [
        ("batched", EXPERTS, True),
        ("grouped", EXPERTS, True),
        ("grouped", 2, False),
    ]
    assert all(result.stack == down[0] for result in results)
    assert len(launches) >= 3 * 4 + 2


def test_products_are_those_of_stacks_that_pass_the_l2() -> None:
    assert choose_products(BenchOptions(), L2_BYTES) == ([*STACKS, *MXFP4_STACKS], [])
    assert choose_products(BenchOptions(gemm=False), L2_BYTES) == ([], [])
    gate, third = replace(STACKS[0], name="gate and up"), replace(NVFP4_FORMAT, title="E4M3 in tens", group_size=10)
    for work, reason in {
        replace(gate, format=third): "the product needs NVFP4 or MXFP4 weights, but these are E4M3 in tens",
        replace(gate, cols=162): "no launch shape fits weights of 1280x2592",
        replace(gate, experts=8, rows=64_000): "8 experts are too few to choose 8 of them in turn",
        replace(gate, experts=32): "the weights fit in the L2, so they cannot be measured outside it",
    }.items():
        streams = make_streams(replace(work, experts=1, rows=16), torch.device("cpu"))
        layer = RealLayer(Source("x", "layers.0", 0), {work: streams, STACKS[1]: streams})
        chosen, skipped = choose_products(BenchOptions(layer=layer), L2_BYTES)
        assert chosen == [STACKS[1]]
        assert skipped == [f"Product of the gate and up stack: {reason}."]


def test_a_layer_that_is_measured_alone_has_as_many_products_in_each_format() -> None:
    layers = [load(SAMPLES / sample).stacks for sample in PRODUCTS]
    assert {tokens_of(work) for stacks in layers for work in stacks} == {tokens_of(STACKS[0])}
    assert {tokens_of(work) for work in MXFP4_STACKS} == {(1, 64)}
