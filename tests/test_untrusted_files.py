"""What strangers' files may try on the commands as a whole. Faults of single files are tested beside their readers.

Lengths, offsets, shapes, dtypes: tests/checkpoint/test_headers.py. Strict JSON: test_files.py. Paths that leave the
folder: test_index.py, test_container.py, test_odd_files.py. Receipts: test_container.py, test_planes.py. Streams:
tests/codec/test_reference.py. Anything else that nobody thought of: tests/fuzz.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from csf_tool.checkpoint.layouts import MAX_NUMBERED_SHARDS, open_checkpoint
from csf_tool.cli import app
from tests.building import (
    MXFP4,
    Tensor,
    change_json,
    home_made,
    mini_container,
    mini_dense,
    mini_hf,
    raw_file,
    shard_bytes,
    write_json,
    write_shard,
)

INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"
RECEIPT = f"receipts/{FIRST}.json"

posix = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and names of POSIX")


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and everything that was printed by a command."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "internal error" not in result.output, result.output
    return result.exit_code, result.output


def run_json(*arguments: str | Path) -> tuple[int, Any, str]:
    """Exit code, the JSON document on stdout, and its text."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout), result.stdout


def files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_dir())


# Names on the terminal


@pytest.mark.parametrize("name", ["[/]", "[bold red]x[/]", "[link=x]y[/link]", ":fire:", "[0]"])
@pytest.mark.parametrize("by", ["layer", "shard", "projection"])
def test_a_name_is_no_markup(tmp_path: Path, name: str, by: str) -> None:
    shard = f"{name.replace('/', '|')}.safetensors"
    dense = mini_dense(tmp_path / "d", shards=1)
    tensors = [
        Tensor(f"{name}.0.{name}.weight", "U8", (16, 32), bytes(512)),
        Tensor(f"{name}.0.{name}.weight_scale", "F8_E4M3", (16, 4), bytes(64)),
    ]
    write_shard(dense / shard, tensors)
    (dense / INDEX).unlink()
    code, output = run("stats", dense, "--by", by)
    assert code == 0
    assert {"layer": f"{name}.0", "shard": shard, "projection": f"{name} 16x4"}[by] in output


@pytest.mark.parametrize("command", ["stats", "verify"])
def test_no_control_character_in_json_either(tmp_path: Path, command: str) -> None:
    every = "".join(map(chr, [*range(32), *range(0x7F, 0xA0), 0x202E, 0x2066, 0xFEFF]))
    write_shard(tmp_path / "model.safetensors", [Tensor(f"{every}.nvfp4_csf_fixed", "U8", (1,), b"x")])
    code, found, text = run_json(command, tmp_path)
    assert code == 1
    assert set(text) & set(every) == {"\n"}
    problems = found["problems"] if command == "stats" else found["checks"][0]["failures"]
    assert problems[0]["tensor"] == every


def test_letters_that_the_terminal_does_not_have(tmp_path: Path) -> None:
    dense = mini_dense(tmp_path, shards=1)
    (dense / INDEX).unlink()
    (dense / "model-00001-of-00001.safetensors").rename(dense / "日本.safetensors")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "csf_tool", "stats", str(dense), "--by", "shard"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u65e5\\u672c.safetensors" in done.stdout
