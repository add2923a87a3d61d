"""expand --consume-source: a source shard goes only after its proof, and a killed run goes on from what is left."""

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.errors import EnvironmentFault
from csf_tool.progress import Silent
from csf_tool.write.engine import WriteOptions
from csf_tool.write.expand import expand
from csf_tool.write.journal import is_complete
from tests.building import tree

Sample = Callable[[str], Path]
Copied = Callable[..., Path]

CONSUME = ["--consume-source", "--yes", "--device", "cpu"]


def shards(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*.safetensors"))


@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "mxfp4-csf-container"])
def test_the_source_shards_are_gone_and_the_result_is_the_same(
    copied: Copied, sample: Sample, tmp_path: Path, csf: str
) -> None:
    source = copied(csf)
    expand(open_checkpoint(sample(csf)), tmp_path / "expected", NumpyDecoder(), Silent())
    before = shards(source)
    result = CliRunner().invoke(app, ["expand", str(source), str(tmp_path / "out"), *CONSUME, "--json"])
    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["removed_sources"]) == len(before)
    assert shards(source) == []
    assert tree(tmp_path / "out") == tree(tmp_path / "expected")


KILLED = """
import os, sys
from pathlib import Path
import csf_tool.write.journal as journal
from csf_tool.cli import main

steps = int(sys.argv.pop(1))

def count(function):
    def counted(*arguments, **options):
        global steps
        if steps == 0:
            os.kill(os.getpid(), 9)
        steps -= 1
        return function(*arguments, **options)
    return counted

journal.Journal.consume = count(journal.Journal.consume)
journal.Journal.finish = count(journal.Journal.finish)
journal.Journal.close = count(journal.Journal.close)
Path.unlink = count(Path.unlink)
main()
"""


@pytest.mark.parametrize("csf", ["nvfp4-csf-hf", "mxfp4-csf-container"])
def test_killed_at_any_step_it_goes_on_from_what_is_left(
    copied: Copied, sample: Sample, tmp_path: Path, csf: str
) -> None:
    expand(open_checkpoint(sample(csf)), tmp_path / "expected", NumpyDecoder(), Silent())
    for steps in range(100):
        source, out = copied(csf, f"source-{steps}"), tmp_path / f"out-{steps}"
        arguments = ["expand", str(source), str(out), *CONSUME, "--jobs", "1"]
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(steps), *arguments], capture_output=True, check=False
        )
        if killed.returncode == 0:
            break
        finished = {p.name for p in out.glob("*.safetensors")}
        assert set(shards(source)) | finished >= set(shards(tmp_path / "expected")), "a shard is lost"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, (steps, result.stderr)
        assert tree(out) == tree(tmp_path / "expected"), steps
        assert shards(source) == []
        shutil.rmtree(out)
    assert steps > 5


def test_only_the_shards_that_were_expanded_are_removed_afterwards(copied: Copied, tmp_path: Path) -> None:
    """A run killed while it removed the last sources is given another folder of the same names: nothing goes."""
    source, other = copied("nvfp4-csf-hf"), copied("nvfp4-csf-hf", "other")
    for path in other.glob("*.safetensors"):
        os.utime(path, ns=(1, 1))
    arguments = [str(tmp_path / "out"), *CONSUME, "--jobs", "1"]
    for steps in range(100):
        subprocess.run([sys.executable, "-c", KILLED, str(steps), "expand", str(source), *arguments], check=False)
        if is_complete(tmp_path / "out"):
            break
        shutil.rmtree(tmp_path / "out")
        shutil.rmtree(source)
        source = copied("nvfp4-csf-hf")
    assert is_complete(tmp_path / "out")
    result = CliRunner().invoke(app, ["expand", str(other), *arguments])
    assert (result.exit_code, "nothing was removed" in result.stderr) == (2, True)
    assert len(shards(other)) == 3


def test_a_disk_that_gives_back_other_bytes_keeps_the_source(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = copied("mxfp4-csf-container")
    rename = Path.rename

    def damaging(self: Path, target: Path) -> Path:
        if target.suffix == ".safetensors":
            raw = bytearray(self.read_bytes())
            raw[-5] ^= 4
            self.write_bytes(raw)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", damaging)
    before = shards(source)
    with pytest.raises(EnvironmentFault, match="does not give back what was written"):
        options = WriteOptions(consume_source=True)
        expand(open_checkpoint(source), tmp_path / "out", NumpyDecoder(), Silent(), options)
    assert shards(source) == before


def test_links_and_files_with_two_names_are_refused(copied: Copied, tmp_path: Path) -> None:
    linked, named_twice = copied("nvfp4-csf-hf", "linked"), copied("nvfp4-csf-hf", "twice")
    first = "model-00001-of-00003.safetensors"
    (linked / first).rename(tmp_path / "blob")
    (linked / first).symlink_to(tmp_path / "blob")
    os.link(named_twice / first, tmp_path / "other-name")
    for source, why in ((linked, "is a link"), (named_twice, "has 2 names")):
        result = CliRunner().invoke(app, ["expand", str(source), str(tmp_path / "out"), *CONSUME])
        assert (result.exit_code, why in result.stderr) == (2, True)
        assert not (tmp_path / "out").exists()
        assert len(shards(source)) == 3


def test_it_asks_first_and_without_a_terminal_wants_yes(copied: Copied, tmp_path: Path) -> None:
    source = copied("nvfp4-csf-hf")
    result = CliRunner().invoke(app, ["expand", str(source), str(tmp_path / "out"), "--consume-source"])
    assert (result.exit_code, "--yes" in result.stderr) == (2, True)
    assert len(shards(source)) == 3


def test_streams_of_one_plane_in_two_shards_go_together(tmp_path: Path) -> None:
    """A shard with half of a plane stays until the shard that holds the other half can go as well."""
    source = tmp_path / "in"
    source.mkdir()
    fixed = ("m.0.experts.0.w.weight_scale.nvfp4_csf_fixed", "U8", [1, 80], bytes(80))
    words = ("m.0.experts.0.w.weight_scale.nvfp4_csf_exceptions", "U32", [1], struct.pack("<I", 9 << 24))
    for i, tensors in enumerate([[fixed, ("a", "U8", [4], b"abcd")], [words, ("b", "U8", [4], b"efgh")]], 1):
        header, at = {}, 0
        for name, dtype, shape, data in tensors:
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
            at += len(data)
        raw = json.dumps(header).encode()
        payload = b"".join(data for *_, data in tensors)
        (source / f"model-0000{i}-of-00002.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + payload)
    result = CliRunner().invoke(app, ["expand", str(source), str(tmp_path / "out"), *CONSUME, "--jobs", "1"])
    assert result.exit_code == 0, result.stderr
    assert shards(source) == []
    assert len(shards(tmp_path / "out")) == 2
