"""Models of transformers from CSF checkpoints, after `import csf_tool.engines.transformers` and nothing else."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import modeling_utils

import csf_tool.engines.transformers as plugin
from csf_tool.choices import CompressTo
from csf_tool.engines.transformers import limits
from csf_tool.engines.transformers.file import CsfFile
from csf_tool.errors import CheckpointError, StreamError, UsageError
from tests.fixture_types import Sample
from tests.transformers.models import (
    FILE,
    change_config,
    in_csf,
    logits,
    save_deepseeks_experts,
    save_experts,
    save_llama,
    split,
)

OWN = safe_open
DEQUANTIZED = {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}


@pytest.fixture
def offload(tmp_path: Path) -> dict[str, Any]:
    """One layer that transformers reads from the disk whenever it runs."""
    parts = ["model.embed_tokens", "model.rotary_emb", "model.norm", "model.layers.0", "lm_head"]
    where = {**dict.fromkeys(parts, "cpu"), "model.layers.1": "disk"}
    return {"device_map": where, "offload_folder": tmp_path / "offload", **DEQUANTIZED}


def assert_same_logits(folder: Path, dense: Path, **options: Any) -> None:
    want = logits(dense, **options)
    assert want.float().abs().mean() > 0.01
    assert torch.equal(logits(folder, **options), want)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_model_computes_the_same(llama: Path, csf: Path, parts: int, caplog: pytest.LogCaptureFixture) -> None:
    """In one file, and in shards that have streams without their partners, and without their weights."""
    assert_same_logits(split(csf, parts) if parts > 1 else csf, llama)
    assert not [record for record in caplog.records if record.name == limits.logger.name]


@pytest.mark.slow
def test_tied_weights(tmp_path: Path) -> None:
    dense = save_llama(tmp_path / "dense", tie_word_embeddings=True)
    assert "lm_head.weight" not in load_file(dense / FILE)
    assert_same_logits(in_csf(dense, tmp_path / "csf"), dense)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"device_map": "cpu"}, DEQUANTIZED], ids=["device-map", "dequantised"])
def test_options_of_from_pretrained(llama: Path, csf: Path, options: dict[str, Any]) -> None:
    assert_same_logits(csf, llama, **options)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_layers_that_stay_on_the_disk(llama: Path, csf: Path, parts: int, offload: dict[str, Any]) -> None:
    assert_same_logits(split(csf, parts) if parts > 1 else csf, llama, **offload)


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2])
def test_experts_from_a_container(tmp_path: Path, parts: int, offload: dict[str, Any]) -> None:
    dense = save_experts(tmp_path / "dense", "MXFP4")
    folder = in_csf(split(dense, parts) if parts > 1 else dense, tmp_path / "csf", CompressTo.CONTAINER)
    assert_same_logits(folder, dense)
    assert_same_logits(folder, dense, **offload)


@pytest.mark.slow
def test_experts_as_in_deepseeks_models(tmp_path: Path) -> None:
    """transformers dequantises them where there is no GPU."""
    dense = save_deepseeks_experts(tmp_path / "dense")
    assert_same_logits(in_csf(dense, tmp_path / "csf", CompressTo.CONTAINER), dense)


@pytest.mark.slow
def test_nvfp4_experts_are_as_wrong_as_from_the_dense_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """transformers 5.24 multiplies them by the block scales alone. If this fails it has been mended: say so no more."""
    dense = save_experts(tmp_path / "dense", "NVFP4")
    assert_same_logits(in_csf(dense, tmp_path / "csf"), dense)
    said = [record.message for record in caplog.records if record.name == limits.logger.name]
    assert [
        f"{tmp_path / 'csf'}: transformers {transformers.__version__} ignores the global scales" in line
        for line in said
    ] == [True]
    double = load_file(dense / FILE)
    for name, tensor in double.items():
        if name.endswith("weight_global_scale"):
            tensor.mul_(2)
    (tmp_path / "double").mkdir()
    save_file(double, tmp_path / "double" / FILE, {"format": "pt"})
    (tmp_path / "double" / "config.json").write_bytes((dense / "config.json").read_bytes())
    assert_same_logits(tmp_path / "double", dense)


@pytest.mark.slow
def test_a_quantisation_that_transformers_does_not_know(csf: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_config(csf, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    for _ in range(2):
        modeling_utils.load_state_dict(csf / FILE)
    said = [record.message for record in caplog.records if record.name == limits.logger.name]
    assert said == [
        f"{csf}: quantised by modelopt, which transformers {transformers.__version__} cannot apply; it cannot load"
        " the dense checkpoint either (vLLM can)"
    ]


@pytest.mark.slow
def test_a_broken_stream_ends_the_load(csf: Path) -> None:
    tensors = load_file(csf / FILE)
    name = next(name for name in tensors if name.endswith("_csf_fixed"))
    tensors[name][0, 0] = 255
    save_file(tensors, csf / FILE, {"format": "pt"})
    scale = name.rpartition(".")[0]
    with pytest.raises(StreamError, match=f"{FILE}: {scale}: row 0: base 255 is above 240"):
        logits(csf)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "problem"),
    [(("nvfp4_csf", "x_csf"), "x_csf_exceptions"), (("_fixed", "_gone"), "has no NVFP4 fixed stream")],
    ids=["codec", "half"],
)
def test_streams_that_are_no_plane_are_not_passed_over(csf: Path, change: tuple[str, str], problem: str) -> None:
    """Of an unknown codec; and one without its partner, in the whole folder."""
    tensors = {name.replace(*change): tensor for name, tensor in load_file(csf / FILE).items()}
    save_file(tensors, csf / FILE, {"format": "pt"})
    with pytest.raises(CheckpointError, match=problem):
        modeling_utils.safe_open(csf / FILE, framework="pt")


@pytest.mark.slow
@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_that_the_index_does_not_list_is_not_shown_empty(csf: Path, is_known: bool) -> None:
    """It has halves of pairs, and the checkpoint beside it, which has the others, has them in its own file."""
    folder = split(csf, 2)
    first = sorted(folder.glob("*.safetensors"))[0]
    (folder / "stray.safetensors").write_bytes(first.read_bytes())
    other = modeling_utils.safe_open(first, framework="pt") if is_known else nullcontext()
    with other, pytest.raises(CheckpointError, match=r"stray\.safetensors: "):
        modeling_utils.safe_open(folder / "stray.safetensors", framework="pt")


@pytest.mark.slow
def test_whole_files_in_memory(llama: Path, csf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="disable_mmap"):
        logits(csf, disable_mmap=True)
    plugin.uninstall()
    monkeypatch.setattr(modeling_utils, "_is_on_hf_mount", lambda _: True)
    plugin.install()
    assert_same_logits(csf, llama)


def test_transformers_own_reading_of_a_state_dict(sample: Sample) -> None:
    """Both of its ways: the tensors, and on the meta device their dtypes and shapes alone."""
    load = modeling_utils.load_state_dict
    dense, csf = (sample(name) / "model-00001-of-00003.safetensors" for name in ("nvfp4-dense", "nvfp4-csf-hf"))
    for where in ("cpu", "meta"):
        want, got = load(dense, map_location=where), load(csf, map_location=where)
        assert got.keys() == want.keys()
        for name, tensor in want.items():
            assert (got[name].dtype, got[name].shape, got[name].device) == (tensor.dtype, tensor.shape, tensor.device)
            if where == "cpu":
                assert torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (got[name], tensor)))


def test_other_files_are_transformers_own_affair(sample: Sample, tmp_path: Path) -> None:
    with modeling_utils.safe_open(sample("nvfp4-dense") / "model-00001-of-00003.safetensors", framework="pt") as file:
        assert isinstance(file, OWN)
    with modeling_utils.safe_open(sample("nvfp4-csf-hf") / "model-00001-of-00003.safetensors", framework="pt") as file:
        assert isinstance(file, CsfFile)
        assert file.metadata()
        weight = next(name for name in file.keys() if name.endswith(".weight"))
        assert isinstance(file.get_slice(weight), type(file._stock.get_slice(weight)))
    (tmp_path / FILE).write_bytes(b"nothing")
    with pytest.raises(Exception, match="header") as caught:
        modeling_utils.safe_open(tmp_path / FILE, framework="pt")
    assert not isinstance(caught.value, CheckpointError)


def test_it_is_undone_and_done_again() -> None:
    names = ("safe_open", "_safe_load_bytes", "_is_on_hf_mount", "_get_resolved_checkpoint_files")
    ours = [getattr(modeling_utils, name) for name in names]
    plugin.install()
    assert [getattr(modeling_utils, name) for name in names] == ours
    for _ in range(2):
        plugin.uninstall()
        assert modeling_utils.safe_open is OWN
    own = [getattr(modeling_utils, name) for name in names]
    assert not set(own) & set(ours)
    plugin.install()
    plugin.uninstall()
    assert [getattr(modeling_utils, name) for name in names] == own


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [("5.0.0", True), ("5.24.0", True), ("5.24.0.dev0", True), ("4.57.6", False), ("5.99.0", False), ("x", False)],
)
def test_versions(version: str, is_tested: bool) -> None:
    assert limits.TESTED.includes(version) is is_tested


def test_an_untested_version_is_said_once(
    sample: Sample, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(limits, "__version__", "6.0.0")
    for i in (1, 2):
        modeling_utils.load_state_dict(sample("nvfp4-csf-hf") / f"model-0000{i}-of-00003.safetensors")
    said = [record.message for record in caplog.records if "6.0.0 is outside the range" in record.message]
    assert len(said) == 1


@pytest.mark.slow
def test_without_transformers_it_says_what_is_missing() -> None:
    code = "import sys; sys.modules['transformers'] = None; import csf_tool.engines.transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ModuleNotFoundError: csf_tool.engines.transformers needs transformers, which is not installed here"
        " (pip install transformers)"
    )
