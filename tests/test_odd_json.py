"""Configs and other files beside the shards in every spelling that the world has, through every command."""

import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.building import MXFP4, NVFP4, Codec, mini_container, mini_dense, mini_hf
from tests.commands import run, says
from tests.odd_json import PUBLISHED, TAKEN_DIFFERENTLY, UNREADABLE

CONFIGS = ("config.json", "hf_quant_config.json")
BESIDE = ("generation_config.json", "tokenizer_config.json", "tokenizer.json", "special_tokens_map.json", "vocab.json")
MARK = b'"weight_scale_encoding"'

FIRST = {"Infinity", "recipes stand twice", "half a character", "a byte order mark"}
REST = [name for name in UNREADABLE if name != "cut off"]
ROWS = [pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow, id=name) for name in PUBLISHED]


def text_of(name: str) -> bytes:
    return PUBLISHED[name].replace("m.experts", "model.layers.0.mlp.experts").encode()


def with_files(root: Path, raw: bytes, names: tuple[str, ...] = CONFIGS + BESIDE) -> Path:
    for name in names:
        (root / name).write_bytes(raw)
    return root


def succeeds(*args: object) -> Result:
    """A command that has an end and no fault, and at most one warning a file."""
    result = run(*args)
    assert result.exit_code == 0, result.output
    said = [line.partition(": ")[2] for line in result.stderr.splitlines() if line.startswith("warning: ")]
    files = [line.partition(":")[0] for line in said]
    assert len(set(files)) == len(files), said
    return result


def holds(root: Path, raw: bytes, names: tuple[str, ...] = CONFIGS + BESIDE) -> None:
    assert {name: (root / name).read_bytes() for name in names} == dict.fromkeys(names, raw)


@pytest.mark.parametrize("name", ROWS)
def test_any_spelling_passes_every_command(tmp_path: Path, name: str) -> None:
    raw = text_of(name)
    dense, csf, back = with_files(mini_dense(tmp_path / "dense", shards=1), raw), tmp_path / "csf", tmp_path / "back"
    succeeds("compress", dense, csf, "--keep-larger")
    for folder in (dense, csf):
        for command in ("stats", "verify"):
            succeeds(command, folder)
        succeeds("identity", folder, "--by", "sizes")
    succeeds("plan", csf)
    succeeds("inspect", csf)
    for config in CONFIGS:
        marked = (csf / config).read_bytes()
        assert marked.count(MARK) == 1
        assert len(marked) > len(raw)
    holds(csf, raw, BESIDE)
    succeeds("expand", csf, back)
    holds(back, raw)
    succeeds("verify", csf, "--against", dense)
    succeeds("verify", dense, "--against", csf)
    succeeds("verify", back, "--against", dense)


@pytest.mark.parametrize("name", ROWS)
def test_any_spelling_passes_a_container(tmp_path: Path, name: str) -> None:
    raw = text_of(name)
    dense = with_files(mini_dense(tmp_path / "dense", shards=1), raw)
    succeeds("compress", dense, tmp_path / "box", "--to", "container", "--keep-larger")
    holds(tmp_path / "box" / "metadata", raw)
    for command in ("stats", "verify", "plan", "inspect", "identity"):
        succeeds(command, tmp_path / "box")
    succeeds("verify", tmp_path / "box", "--against", dense)
    succeeds("expand", tmp_path / "box", tmp_path / "back")
    holds(tmp_path / "back", raw)
    succeeds("convert", tmp_path / "box", tmp_path / "hf", "--to", "hf")
    succeeds("verify", tmp_path / "hf", "--against", dense)
    succeeds("convert", tmp_path / "hf", tmp_path / "again", "--to", "container")
    holds(tmp_path / "again" / "metadata", raw)


@pytest.mark.parametrize("codec", [NVFP4, MXFP4], ids=["nvfp4", "mxfp4"])
@pytest.mark.parametrize("name", ROWS)
def test_a_serving_directory_keeps_what_it_does_not_set(tmp_path: Path, name: str, codec: Codec) -> None:
    raw = text_of(name)
    box = mini_container(tmp_path / "box", codec, shards=1)
    index = (box / "metadata" / "model.safetensors.index.json").read_bytes()
    files = {"config.json": raw, "generation_config.json": raw, "model.safetensors.index.json": index}
    box = mini_container(tmp_path / "odd", codec, shards=1, metadata=files)
    succeeds("convert", box, tmp_path / "served", "--to", "serving")
    holds(tmp_path / "served", raw, ("generation_config.json",))
    written = (tmp_path / "served" / "config.json").read_bytes()
    assert written.startswith(raw[: raw.rindex(b'quantization_config"')])
    assert b"checkpoint_root" in written
    succeeds("stats", tmp_path / "served")


@pytest.mark.parametrize("name", ROWS)
def test_what_python_reads_of_a_source_it_reads_of_what_is_written(tmp_path: Path, name: str) -> None:
    raw = text_of(name)
    try:
        json.loads(raw.decode("utf-8"))
    except ValueError:
        pytest.skip("Python does not read it")
    dense = with_files(mini_dense(tmp_path / "dense", shards=1), raw, CONFIGS)
    succeeds("compress", dense, tmp_path / "csf", "--keep-larger")
    written = json.loads((tmp_path / "csf" / "config.json").read_text("utf-8"))
    del written["quantization_config"]["quantized_layers"]["model.layers.0.mlp.experts"]["weight_scale_encoding"]
    assert json.dumps(written) == json.dumps(json.loads(raw))


@pytest.mark.parametrize("name", TAKEN_DIFFERENTLY)
def test_what_readers_take_differently_is_one_warning(tmp_path: Path, name: str) -> None:
    dense = with_files(mini_dense(tmp_path / "dense", shards=1), text_of(name), CONFIGS)
    for command in ("stats", "verify"):
        document = json.loads(succeeds(command, dense, "--json").stdout)
        found = document["problems"] if command == "stats" else document["checks"][0]["warnings"]
        assert [(p["file"], p["code"]) for p in found if p["code"] == "odd-json"] == [(c, "odd-json") for c in CONFIGS]


@pytest.mark.parametrize("name", ["cut off", *(pytest.param(name, marks=pytest.mark.slow) for name in REST)])
def test_a_config_that_no_reader_takes(tmp_path: Path, name: str) -> None:
    """Streams do not depend on it: looking and expanding go on; what would have to mark it is refused."""
    dense, raw = mini_dense(tmp_path / "dense", shards=1), UNREADABLE[name]
    assert run("compress", dense, tmp_path / "csf", "--keep-larger").exit_code == 0
    for config in CONFIGS:
        (tmp_path / "csf" / config).write_bytes(raw)
    assert run("verify", tmp_path / "csf").exit_code == 1
    says(run("stats", tmp_path / "csf"), "config.json")
    succeeds("identity", tmp_path / "csf", "--by", "sizes")
    for _ in range(2):
        expanded = run("expand", tmp_path / "csf", tmp_path / "back")
        assert expanded.exit_code == 0, expanded.output
        assert "copied unchanged" in expanded.output or "already complete" in expanded.output
    holds(tmp_path / "back", raw, CONFIGS)
    says(run("convert", tmp_path / "csf", tmp_path / "box", "--to", "container"), "not converted: config.json: ")
    with_files(tmp_path / "csf", b'{"weight_scale_encoding": "csf"' + raw, CONFIGS)
    says(run("expand", tmp_path / "csf", tmp_path / "no"), "csf-tool cannot remove the CSF marks in it")
    assert not (tmp_path / "no").exists()
    with_files(dense, raw, CONFIGS)
    says(run("compress", dense, tmp_path / "other"), "not compressed: config.json: ")
    assert not (tmp_path / "other").exists()


def test_a_module_with_two_recipes_is_a_fault(tmp_path: Path) -> None:
    """Recipes say which modules are CSF: the lost one was another module's, or says something else."""
    csf = mini_hf(tmp_path / "csf")
    config = (csf / "config.json").read_bytes().replace(b"layers.1.mlp", b"layers.0.mlp")
    (csf / "config.json").write_bytes(config)
    says(run("verify", csf), "model.layers.0.mlp.experts: appears twice among the recipes", "FAILED")
    says(run("convert", csf, tmp_path / "box", "--to", "container"), "not converted: ")
    assert run("expand", csf, tmp_path / "back").exit_code == 0
    assert MARK not in (tmp_path / "back" / "config.json").read_bytes()
