"""Any damage to any file of a checkpoint ends in a report or an error of csf-tool's own, never in a traceback."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from csf_tool.checkpoint.layouts import open_checkpoint
from csf_tool.decoder import NumpyDecoder
from csf_tool.errors import CsfToolError
from csf_tool.expand import expand
from csf_tool.progress import Silent
from csf_tool.stats import collect_stats
from csf_tool.verify import verify
from tests.building import MXFP4, home_made, mini_container, mini_dense, mini_hf

BUILDERS: dict[str, Callable[[Path], Path]] = {
    "hf": mini_hf,
    "container": mini_container,
    "mxfp4 container": lambda path: mini_container(path, MXFP4),
    "home-made": home_made,
    "dense": mini_dense,
}

TOKEN = re.compile(rb'-?\d+|"[^"]*"|\[[^\[\]]*\]|\{[^{}]*\}|true')

JUNK = [
    b"null", b"true", b"-1", b"1.5", b"1e999", b"99999999999999999999", b"9223372036854775807", b"4611686018427387904",
    b"[]", b"{}", b"[[[]]]", b'""', b'"x"', b'"\\ud800"', b'"\\u0000"', b'"a/../b"', b'"F4"', b'"U32"', b'"nvfp4_csf"',
]  # fmt: skip


def damaged(data: st.DataObject, content: bytes, is_shard: bool) -> bytes:
    """A shard's header or a JSON file with one token replaced, one byte changed, a piece cut out or the end cut off."""
    length = int.from_bytes(content[:8], "little") if is_shard else len(content)
    start = 8 if is_shard else 0
    text, rest = content[start : start + length], content[start + length :]
    kind = data.draw(st.sampled_from(["token", "byte", "hole", "end"]))
    at = data.draw(st.integers(0, max(len(text) - 1, 0)))
    if kind == "token" and (tokens := list(TOKEN.finditer(text))):
        token = tokens[at % len(tokens)]
        new = data.draw(st.sampled_from(JUNK))
        text = text[: token.start()] + new + text[token.end() :]
    elif kind == "byte":
        text = text[:at] + bytes([data.draw(st.integers(0, 255))]) + text[at + 1 :]
    elif kind == "hole":
        text = text[:at] + text[at + data.draw(st.integers(1, 30)) :]
    else:
        return content[: data.draw(st.integers(0, len(content)))]
    return (len(text).to_bytes(8, "little") if is_shard else b"") + text + rest


@pytest.mark.parametrize("kind", BUILDERS)
def test_damage_never_ends_in_a_traceback(tmp_path: Path, kind: str) -> None:
    root = BUILDERS[kind](tmp_path / "c")
    reference = open_checkpoint(mini_dense(tmp_path / "reference"))
    files = sorted(path for path in root.rglob("*") if path.is_file())
    good = {path: path.read_bytes() for path in files}

    @settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.too_slow])
    @given(st.sampled_from(files), st.data())
    def check(path: Path, data: st.DataObject) -> None:
        path.write_bytes(damaged(data, good[path], path.suffix == ".safetensors"))
        try:
            checkpoint = open_checkpoint(root)
            collect_stats(checkpoint)
            verify(checkpoint, reference, NumpyDecoder(), Silent())
            expand(checkpoint, tmp_path / "out", NumpyDecoder(), Silent())
        except CsfToolError as error:
            assert "\n" not in str(error)
        finally:
            path.write_bytes(good[path])
            shutil.rmtree(tmp_path / "out", ignore_errors=True)

    check()
