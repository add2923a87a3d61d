"""--consume-source: a source shard goes only after its proof, and a killed run goes on from what is left."""

import json
import os
import shutil
import signal
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.coders.decoder import NumpyDecoder
from csf_tool.errors import EnvironmentFault
from csf_tool.progress import Silent
from csf_tool.write.expand import expand
from csf_tool.write.journal import is_complete
from csf_tool.write.run import WriteOptions
from tests.building import MXFP4, dense_two_codecs, mini_container, mini_dense, mini_hf, tree
from tests.faults import Order, Outcome, Server
from tests.fixture_types import Copied, Sample

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


DEVICE = ["--device", "cpu"]

COMMANDS: dict[str, tuple[Callable[..., Path], list[str]]] = {
    "expand hf": (mini_hf, ["expand", *DEVICE]),
    "expand container": (partial(mini_container, codec=MXFP4), ["expand", *DEVICE]),
    "compress hf": (mini_dense, ["compress", "--keep-larger", *DEVICE]),
    "compress two codecs": (dense_two_codecs, ["compress", *DEVICE]),
    "compress container": (partial(mini_dense, codec=MXFP4), ["compress", "--keep-larger", *DEVICE]),
    "convert to container": (mini_hf, ["convert", "--to", "container"]),
    "convert to hf": (mini_container, ["convert", "--to", "hf"]),
}
"""A source, and the command that makes another checkpoint of it."""


class Consuming:
    """Runs that consume their source, each on a copy of its own, in place of the one before."""

    def __init__(self, name: str, folder: Path, server: Server) -> None:
        make, (operation, *options) = COMMANDS[name]
        self.template, self.source, self.out = make(folder / "template", shards=3), folder / "source", folder / "out"
        consume = ["--consume-source", "--yes", "--jobs", "1"]
        self.order = Order([operation, str(self.source), str(self.out), *options, *consume])
        self._server = server
        done = self.run()
        assert done.code == 0, done.err
        self.whole, self.steps = tree(self.out), done.steps

    def run(self, at: int = 0) -> Outcome:
        """Begin anew, to be killed at a step."""
        for folder in (self.source, self.out):
            shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template, self.source)
        return self._server.run(replace(self.order, at=at, action="kill"))

    def go_on(self) -> Outcome:
        """Run the command again."""
        return self._server.run(self.order)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills and forks processes: POSIX only")
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_at_any_step_it_goes_on_from_what_is_left(tmp_path: Path, server: Server, name: str) -> None:
    """Killed before every step that gives a file its name or removes one; test_interruption.py has those between."""
    case = Consuming(name, tmp_path, server)
    wanted = shards(case.out)
    kills = [i for i, step in enumerate(case.steps, 1) if step in ("rename", "replace", "unlink", "rmdir")]
    assert len(kills) > 25
    for at in kills:
        assert case.run(at).code == -signal.SIGKILL
        assert {*shards(case.source), *shards(case.out)} == {*wanted}, "a shard is lost"
        done = case.go_on()
        assert done.code == 0, (at, done.err)
        assert tree(case.out) == case.whole, at
        assert shards(case.source) == []


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills and forks processes: POSIX only")
def test_only_the_shards_that_were_expanded_are_removed_afterwards(tmp_path: Path, server: Server) -> None:
    """A run killed while it removed the last sources is given another folder of the same names: nothing goes."""
    case = Consuming("expand hf", tmp_path, server)
    at = len(case.steps)
    while case.run(at) and is_complete(case.out):
        at -= 1
    case.run(at + 1)  # the first step of those that only remove
    assert is_complete(case.out)
    assert shards(case.source) != []
    other = Path(shutil.copytree(case.template, tmp_path / "other"))
    for path in other.glob("*.safetensors"):
        os.utime(path, ns=(1, 1))
    result = CliRunner().invoke(app, ["expand", str(other), *case.order.argv[2:]])
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
    with pytest.raises(EnvironmentFault, match="returns other bytes than were written"):
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
