"""The first line of stats: what a folder or file is, or is instead."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.building import INDEX, LFS_POINTER, mini_container, mini_hf, shard_name, write_json
from tests.commands import run, says
from tests.downloads import of_schema, only, spoilt, without_shards


def test_mixed_layouts_stand_in_the_first_line(tmp_path: Path) -> None:
    root = mini_hf(mini_container(tmp_path / "both"))
    result = run("stats", root)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0].endswith("CSF container, NVFP4 CSF (mixed with a Hugging Face checkpoint)")
    says(result, "in one folder. Download each into its own folder")


def test_what_is_left_of_a_container_does_not_hide_a_good_checkpoint(tmp_path: Path) -> None:
    root = mini_hf(mini_container(tmp_path / "both"))
    shutil.rmtree(root / "tensors")
    result = run("stats", root)
    assert result.exit_code == 0
    assert "Hugging Face layout, NVFP4 CSF (mixed with what is left of a container)" in result.stdout.splitlines()[0]
    says(
        result,
        "manifest.json: lists shards in tensors, but there are none, so csf-tool reads the folder as a Hugging Face",
    )


def test_a_serving_directory_is_named_in_the_first_line(tmp_path: Path) -> None:
    mini_container(tmp_path / "weights")
    config = {"quant_method": "nvfp4_csf", "format_version": 1, "checkpoint_root": "../weights"}
    write_json(tmp_path / "serve" / "config.json", {"quantization_config": config})
    first = run("stats", tmp_path / "serve").stdout.splitlines()[0]
    assert first.endswith(f"NVFP4 CSF (the weights of the serving directory {tmp_path / 'serve'})")


FOLDERS: list[tuple[Callable[[Path], Path], int, str]] = [
    (only("model.gguf"), 2, "no *.safetensors.index.json and no .safetensors file; it has 1 GGUF file"),
    (only("strings.csf"), 2, "1 .csf file, of another format with that name: here CSF is a compression of block"),
    (only("pytorch_model.bin"), 2, "1 PyTorch .bin file"),
    (only("model.safetensors", b"GGUF\3\0\0\0" + bytes(30)), 1, "is a GGUF file (llama.cpp), not a safetensors"),
    (only("model.safetensors", b"Entry not found"), 1, "is text, not a safetensors file: probably a saved error"),
    (only("model.safetensors", bytes(5000)), 1, "begins with zeros: a download reserved its space and never"),
    (without_shards, 1, f"all shards that {INDEX} lists are missing, such as {shard_name(1, 2)}; download"),
    (spoilt(LFS_POINTER, shard_name(1, 2), shard_name(2, 2)), 1, "run `git lfs pull`, or download the file again"),
    (spoilt(b"<!doctype html>", INDEX), 1, f"{INDEX}: is a web page (HTML or XML), not the file itself: download it"),
    (spoilt(b'{"error":"gated"}', shard_name(1, 2)), 1, """It begins '{"error":"gated"}'; download it again"""),
    (of_schema("lil-nvfp4-csf-checkpoint/2"), 1, "an older or newer container, which needs another version of csf"),
    (of_schema("chrome-extension"), 1, "(it reads lil-nvfp4-csf-checkpoint/1, lil-mxfp4-csf-"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "code", "line"), FOLDERS)
@pytest.mark.parametrize("command", ["stats", "verify"])
def test_what_a_folder_is_instead_stands_in_one_line(
    tmp_path: Path, command: str, make: Callable[[Path], Path], code: int, line: str
) -> None:
    result = run(command, make(tmp_path / "x"))
    assert result.exit_code == code
    says(result, line)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("game.csf", b" FSC\3\0\0\0" + bytes(60), "is a .csf file, of another format with that name"),
        (
            "model.gguf",
            b"GGUF\3\0\0\0" + bytes(60),
            "model.gguf: is a GGUF file (llama.cpp): csf-tool reads safetensors only",
        ),
        ("notes.txt", b"hello there, this is text", "notes.txt: is text, not a safetensors file"),
    ],
)
def test_a_file_of_another_kind_is_wrong_usage(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    (tmp_path / name).write_bytes(content)
    result = run("stats", tmp_path / name)
    assert result.exit_code == 2
    says(result, line)
