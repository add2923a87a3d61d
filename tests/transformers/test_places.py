"""Where transformers finds the files of a CSF checkpoint: in folders of their own, by other indexes, in containers."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import modeling_layers, modeling_utils

import csf_tool.engines.transformers as plugin
from csf_tool.choices import CompressTo
from csf_tool.engines.transformers import limits, swap
from csf_tool.errors import CheckpointError
from tests.transformers.models import FILE, INDEX, change_config, in_csf, logits, split

pytestmark = pytest.mark.slow


@pytest.fixture
def container(llama: Path, tmp_path: Path) -> Path:
    return in_csf(llama, tmp_path / "container", CompressTo.CONTAINER)


def place(folder: Path, names: list[str], index: str = INDEX) -> Path:
    """Spread a model's tensors over shards of these names, the streams of a pair in different ones."""
    split(folder, len(names))
    usual = sorted(folder.glob("*.safetensors"))
    document = json.loads((folder / INDEX).read_text())
    for file, name in zip(usual, names, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        file.rename(folder / name)
    new = dict(zip([file.name for file in usual], names, strict=True))
    document["weight_map"] = {tensor: new[shard] for tensor, shard in document["weight_map"].items()}
    (folder / INDEX).unlink()
    (folder / index).write_text(json.dumps(document))
    return folder


@pytest.mark.parametrize(
    "names",
    [
        ["s/a.safetensors", "s/b.safetensors"],
        ["a.safetensors", "s/b.safetensors"],
        ["x/a.safetensors", "y/a.safetensors"],
        ["p/q/a.safetensors", "p/r/s/b.safetensors", "c.safetensors"],
    ],
    ids=["one", "beside", "two", "deep"],
)
def test_shards_in_folders(llama: Path, csf: Path, names: list[str]) -> None:
    assert torch.equal(logits(place(csf, names)), logits(llama))


def test_an_index_above_that_is_broken_or_of_another_model(llama: Path, csf: Path) -> None:
    (csf.parent / INDEX).write_text("{")
    (csf.parent / "other.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert torch.equal(logits(place(csf, ["x/a.safetensors", "y/b.safetensors"])), logits(llama))


def test_a_shard_in_a_folder_that_is_missing(csf: Path) -> None:
    (place(csf, ["x/a.safetensors", "y/b.safetensors"]) / "y" / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"y/b\.safetensors: is missing"):
        modeling_utils.safe_open(csf / "x" / "a.safetensors", framework="pt")


def test_a_variant_beside_the_dense_model(llama: Path, csf: Path) -> None:
    """csf_tool takes the dense file for the checkpoint there, as loaders do that were told of no variant."""
    place(csf, ["model.fp4-00001-of-00002.safetensors", "model.fp4-00002-of-00002.safetensors"],
          "model.safetensors.index.fp4.json")  # fmt: skip
    shutil.copy(llama / FILE, csf)
    want = logits(llama)
    assert torch.equal(logits(csf, variant="fp4"), want)
    assert torch.equal(logits(csf), want)


def test_limits_are_said_of_shards_in_folders(csf: Path, caplog: pytest.LogCaptureFixture) -> None:
    change_config(csf, quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"})
    place(csf, ["s/a.safetensors"])
    modeling_utils.load_state_dict(csf / "s" / "a.safetensors")
    said = [record.message for record in caplog.records if record.name == limits.logger.name]
    assert [line.partition(",")[0] for line in said] == [f"{csf}: quantised by modelopt"]


def test_a_container_by_other_names(
    llama: Path, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = logits(llama)
    (tmp_path / "link").symlink_to(container)
    (tmp_path / "moved").symlink_to(container.parent)
    for name in (tmp_path / "link", tmp_path / "moved" / "metadata"):
        assert torch.equal(logits(name), want)
    monkeypatch.chdir(container)
    assert torch.equal(logits(Path()), want)


def test_a_container_without_a_shard_that_has_no_streams(llama: Path, tmp_path: Path) -> None:
    """Nothing of it would be opened that tells: transformers would initialise its weights."""
    dense = tmp_path / "dense"
    dense.mkdir()
    shutil.copy(llama / "config.json", dense)
    tensors = load_file(llama / FILE)
    names = {name: f"model-0000{1 + ('.mlp.' in name)}-of-00002.safetensors" for name in tensors}
    for file in set(names.values()):
        save_file({name: tensors[name] for name in tensors if names[name] == file}, dense / file, {"format": "pt"})
    (dense / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    metadata = in_csf(dense, tmp_path / "csf", CompressTo.CONTAINER)
    assert torch.equal(logits(metadata), logits(llama))
    for shard in sorted((tmp_path / "csf" / "tensors").iterdir()):
        whole = shard.read_bytes()
        shard.unlink()
        with pytest.raises(CheckpointError, match=shard.name):
            logits(metadata)
        shard.write_bytes(whole)


def test_all_modules_that_have_the_functions_by_name_get_ours(container: Path) -> None:
    """Those of models' weights; the others read adapters, or the names of weights alone."""
    root = Path(transformers.__file__).parent
    named = "|".join(swap._REPLACEMENTS)
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(rf"^(from|import) .*\b({named})\b|^def ({named})\(", path.read_text("utf-8"), re.MULTILINE)
        and not re.search("convert_|conver(t|sion)", path.name)
    }
    ours = {f"{module.__name__.partition('.')[2]}.py" for module in swap._MODULES}
    assert ours <= found
    assert found - ours <= {"integrations/accelerate.py", "quantizers/quantizer_torchao.py"}
    if hasattr(modeling_layers, "_get_resolved_checkpoint_files"):
        files, _ = modeling_layers._get_resolved_checkpoint_files(str(container), None, None, True, None, False)
        assert files == [str(container.parent / "tensors" / FILE)]
        plugin.uninstall()
        assert not hasattr(modeling_layers.safe_open, "replaced_by_csf_tool")
