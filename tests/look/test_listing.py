"""ls: every tensor once, dense or stored, a record a line in pipes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from csf_tool.checkpoint.logical import logical_tensors
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.look.listing import list_tensors
from tests.building import Tensor, write_shard
from tests.documents.definitions import definitions, misfits
from tests.fixture_types import Copied, Sample
from tests.hub_server import Hub
from tests.terminals import on_terminal

SAMPLES = ("nvfp4-csf-hf", "nvfp4-csf-container", "two-codecs-csf-hf", "mxfp4-dense")


def ls(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ls", *map(str, arguments)])


def lines(*arguments: object) -> list[list[str]]:
    result = ls(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return [line.split("\t") for line in result.stdout.removesuffix("\n").split("\n")]


@pytest.mark.parametrize("name", SAMPLES)
def test_dense_names_are_those_of_the_dense_checkpoint(sample: Sample, name: str) -> None:
    opened = open_checkpoint(sample(name))
    wanted = [(t.name, t.dtype, t.shape, t.nbytes, t.stored_in) for t in logical_tensors(opened).values()]
    assert [tensor[:5] for tensor in list_tensors(opened)] == wanted


@pytest.mark.parametrize("name", SAMPLES)
def test_stored_names_are_those_of_the_headers(sample: Sample, name: str) -> None:
    opened = open_checkpoint(sample(name))
    wanted = [(t.name, t.dtype, t.shape, t.nbytes, shard.name) for shard, t in opened.tensors()]
    assert [tensor[:5] for tensor in list_tensors(opened, stored=True)] == wanted


@pytest.mark.parametrize("stored", [False, True])
def test_pipes_get_a_record_a_line_and_json_says_the_same(sample: Sample, stored: bool) -> None:
    more = ["--stored"] if stored else []
    records = lines(sample("nvfp4-csf-hf"), *more)
    document = json.loads(ls(sample("nvfp4-csf-hf"), *more, "--json").stdout)
    tensors = document["tensors"]
    assert [[t["name"], t["dtype"], json.dumps(t["shape"], separators=(",", ":")), str(t["bytes"]), t["shard"]]
            for t in tensors] == records  # fmt: skip
    assert sum(t["format"] is not None for t in tensors) == (72 if stored else 36)
    assert document["names"] == ("stored" if stored else "dense")
    fields = definitions()["ListDocument"].fields
    assert document.keys() == fields.keys()
    assert [each for name, (hint, _) in fields.items() for each in misfits(document[name], hint, name)] == []


def test_a_pattern_means_dense_and_stored_names(sample: Sample) -> None:
    folder = sample("nvfp4-csf-hf")
    plane = open_checkpoint(folder).planes[3]
    streams = [plane.fixed.tensor.name, plane.exceptions.tensor.name]
    for name in (plane.name, *streams):
        assert [row[0] for row in lines(folder, name)] == [plane.name]
        assert [row[0] for row in lines(folder, name, "--stored")] == streams
    assert {row[0] for row in lines(folder, "*_scale")} >= {plane.name}
    weights = [row[0] for row in lines(folder, "*.weight")]
    assert weights
    assert all(name.endswith(".weight") for name in weights)
    assert {tuple(row[0] for row in lines(folder, "*" + streams[0][5:]))} == {(plane.name,)}


@pytest.mark.parametrize("as_json", [False, True])
def test_what_means_nothing_has_near_names(sample: Sample, as_json: bool) -> None:
    folder = sample("nvfp4-csf-hf")
    name = next(iter(list_tensors(open_checkpoint(folder), "*gate_proj*"))).name
    for pattern, near in ((name[:-1], name), ("*gate_prj*", "gate_proj"), ("nothing*", "")):
        result = ls(folder, pattern, *(["--json"] if as_json else []))
        assert (result.exit_code, near in result.stderr, "no tensor's name" in result.stderr) == (2, True, True)
        assert not as_json or json.loads(result.stdout)["schema"] == "csf-tool.error/1"


def test_names_are_harmless_and_records_stay_lines(tmp_path: Path) -> None:
    names = ["a\tb", "c\nd", "\x1b[31mred", "back\\slash", "ü[0]"]
    write_shard(tmp_path / "model.safetensors", [Tensor(name, "U8", (1,), b"x") for name in names])
    found = [row[0] for row in lines(tmp_path)]
    assert sorted(found) == sorted(["a\\tb", "c\\nd", "\\x1b[31mred", "back\\slash", "ü[0]"])
    assert [row[0] for row in lines(tmp_path, "ü[0]")] == ["ü[0]"]


def test_what_is_wrong_is_said_beside_the_list(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    gone = sorted(folder.glob("*.safetensors"))[0]
    gone.unlink()
    result = ls(folder)
    assert (result.exit_code, gone.name in result.stderr, gone.name in result.stdout) == (1, True, False)
    assert result.stdout


@pytest.mark.slow
def test_a_terminal_gets_columns_below_each_shard(sample: Sample) -> None:
    folder = sample("nvfp4-csf-hf")
    tensors = list(list_tensors(open_checkpoint(folder)))
    shown = on_terminal(["ls", folder]).splitlines()
    assert [line for line in shown if line[0] != " "] == list(dict.fromkeys(t.shard for t in tensors))
    rows = [line for line in shown if line[0] == " "]
    assert [row.split()[-1] for row in rows] == [t.name for t in tensors]
    first = rows[: sum(t.shard == tensors[0].shard for t in tensors)]
    assert len({row.rindex(" ") for row in first}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("more", ["", "--json", "--stored"])
def test_a_reader_may_stop(sample: Sample, more: str) -> None:
    command = f"{sys.executable} -m csf_tool ls {sample('nvfp4-csf-hf')} {more} | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 2


@pytest.mark.slow
def test_a_name_on_the_hub_takes_its_headers_alone(hub: Hub, sample: Sample) -> None:
    result = ls("org/nvfp4-csf-hf")
    assert result.exit_code == 0, result.stderr
    assert [line.split("\t") for line in result.stdout.splitlines()] == lines(sample("nvfp4-csf-hf"))
    whole = sum(path.stat().st_size for path in sample("nvfp4-csf-hf").glob("*.safetensors"))
    assert 0 < hub.sent() < whole / 3
