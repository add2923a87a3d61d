"""The command line: literal output of both streams and the exit code, in both modes; start-up; errors.

Snapshots lie in tests/snapshots; CSF_TOOL_UPDATE_SNAPSHOTS=1 rewrites them.
"""

import json
import os
import re
import signal
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from typer.main import get_command
from typer.models import OptionInfo
from typer.testing import CliRunner

from csf_tool.cli import app
from tests.fixture_types import Copied, Sample
from tests.terminals import on_terminal

SNAPSHOTS = Path(__file__).parent / "snapshots"

RUNS = {
    "stats-hf": "stats nvfp4-csf-hf",
    "stats-hf-json": "stats nvfp4-csf-hf --json",
    "stats-hf-layer": "stats nvfp4-csf-hf --by layer",
    "stats-hf-shard": "stats nvfp4-csf-hf --by shard",
    "stats-container": "stats mxfp4-csf-container",
    "stats-dense": "stats nvfp4-dense",
    "stats-dense-json": "stats mxfp4-dense --json",
    "stats-incomplete": "stats incomplete",
    "stats-several": "stats nvfp4-csf-hf incomplete nowhere mxfp4-dense",
    "stats-several-json": "stats incomplete nowhere --json",
    "verify-several": "verify nvfp4-csf-hf damaged mxfp4-csf-container --device cpu",
    "stats-nothing": "stats nowhere",
    "stats-not-a-checkpoint": "stats .",
    "verify-hf": "verify nvfp4-csf-hf --device cpu",
    "verify-hf-against": "verify nvfp4-csf-hf --against nvfp4-dense --device cpu",
    "verify-container": "verify mxfp4-csf-container --device cpu",
    "verify-container-json": "verify mxfp4-csf-container --json --device cpu",
    "verify-damaged": "verify damaged --against nvfp4-dense --device cpu",
    "verify-damaged-json": "verify damaged --against nvfp4-dense --json --device cpu",
    "expand-hf": "expand nvfp4-csf-hf out --device cpu",
    "expand-container": "expand mxfp4-csf-container out --device cpu",
    "expand-container-json": "expand mxfp4-csf-container out --json --device cpu",
    "expand-dense": "expand nvfp4-dense out --device cpu",
    "expand-not-empty": "expand nvfp4-csf-hf nvfp4-dense --device cpu",
    "expand-incomplete": "expand incomplete out --device cpu",
    "compress-hf": "compress nvfp4-dense out --device cpu",
    "compress-hf-json": "compress nvfp4-dense out --json --device cpu",
    "compress-excluded": "compress nvfp4-dense out --to container --exclude *.layers.1.* --device cpu",
    "compress-nothing": "compress nvfp4-dense out --include *.nothing --device cpu",
    "compress-container": "compress mxfp4-dense out --device cpu",
    "compress-mxfp4-hf": "compress mxfp4-dense out --to hf --device cpu",
    "convert-container": "convert nvfp4-csf-hf out --to container",
    "convert-serving": "convert mxfp4-csf-container out --to serving --json --checkpoint-root /models/csf",
    "convert-refused": "convert nvfp4-csf-hf out --to serving",
    "identity-hf": "identity nvfp4-csf-hf --hash",
    "identity-sizes": "identity nvfp4-csf-hf --by sizes",
    "identity-refused": "identity nvfp4-csf-hf",
    "inspect-ranking": "inspect nvfp4-csf-hf --top 2",
    "inspect-plane": "inspect nvfp4-csf-hf *.layers.1.*.2.gate_proj --values",
    "inspect-plane-json": "inspect mxfp4-csf-container layers.1.ffn.experts.2.w1.scale --json",
    "inspect-dense-many": "inspect mxfp4-dense layers.1.*",
    "plan-hf": "plan nvfp4-csf-hf --gpu-memory 4MiB",
    "plan-resident-json": "plan mxfp4-csf-container --resident 2 --json",
    "plan-tp": "plan nvfp4-csf-hf --tp 16",
    "plan-dense": "plan nvfp4-dense",
    "identity-container-json": "identity mxfp4-csf-container --json",
    "help": "--help",
    **{f"help-{name}": f"help {name}" for name in get_command(app).commands},  # type: ignore[attr-defined]
}


@pytest.fixture
def here(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with samples, an incomplete one and a damaged one, to run commands in."""
    for name in ("nvfp4-csf-hf", "nvfp4-dense", "mxfp4-csf-container", "mxfp4-dense"):
        folder = copied(name).parent
    (copied("nvfp4-csf-hf", "incomplete") / "model-00002-of-00003.safetensors").unlink()
    shard = copied("nvfp4-csf-hf", "damaged") / "model-00001-of-00003.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[100_000] ^= 1
    shard.write_bytes(raw)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    return folder


def steady(text: str) -> str:
    """Output without what differs from run to run: times and rates."""
    text = re.sub(r"in [0-9.]+ s( \([^)]*/s\))?", "in # s", text)
    return re.sub(r'"seconds": [0-9.]+', '"seconds": 0', text)


@pytest.mark.parametrize("name", RUNS)
def test_output(here: Path, name: str) -> None:
    result = CliRunner().invoke(app, RUNS[name].split())
    got = steady(
        f"$ csf-tool {RUNS[name]}\n{result.stdout}--- stderr\n{result.stderr}--- exit code {result.exit_code}\n"
    )
    snapshot = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("CSF_TOOL_UPDATE_SNAPSHOTS"):
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(got)
    assert got == snapshot.read_text()
    assert "Traceback" not in got
    if "--json" in RUNS[name]:
        assert json.loads(result.stdout)["schema"].startswith("csf-tool.")


def python(*code: str, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **env}
    return subprocess.run([sys.executable, *code], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("what", ["import csf_tool", "from csf_tool.cli import app"])
def test_importing_brings_nothing_heavy(what: str) -> None:
    heavy = ["torch", "numpy", "safetensors", "huggingface_hub", "rich.table", "triton"]
    done = python("-c", f"import sys; {what}; print([m for m in {heavy} if m in sys.modules])")
    assert done.stdout == "[]\n"


def test_help_imports_nothing_heavy() -> None:
    code = """
import sys, csf_tool.cli
sys.argv = ["csf-tool", "--help"]
try:
    csf_tool.cli.main()
finally:
    print([name for name in ("torch", "numpy", "huggingface_hub") if name in sys.modules])
"""
    assert python("-c", code).stdout.endswith("[]\n")


def test_no_option_is_named_after_its_metavar() -> None:
    """typer 0.27 does that where the two differ in case alone, so that such an option must state its name."""
    for command in app.registered_commands:
        assert command.callback
        for name, parameter in signature(command.callback, eval_str=True).parameters.items():
            for option in getattr(parameter.annotation, "__metadata__", ()):
                is_unnamed = isinstance(option, OptionInfo) and option.default is ...
                assert not is_unnamed or (option.metavar or "").lower() != name, f"{command.callback.__name__} {name}"


def test_wrong_usage_is_2() -> None:
    assert CliRunner().invoke(app, ["stats"]).exit_code == 2
    assert CliRunner().invoke(app, ["stats", "x", "--by", "colour"]).exit_code == 2


def test_version_and_module_entry_point() -> None:
    done = python("-m", "csf_tool", "--version")
    assert re.fullmatch(r"csf-tool \d+\.\d+\.\d+\n", done.stdout)


def test_names_from_files_cannot_act_on_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "evil\x1b[2J\u202e.weight_scale.nvfp4_csf_fixed"
    header = json.dumps({name: {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    monkeypatch.chdir(tmp_path)
    for command in ("stats", "verify"):
        result = CliRunner().invoke(app, [command, "model.safetensors"])
        assert result.exit_code == 1
        assert "\x1b" not in result.output
        assert "\u202e" not in result.output
        assert "evil\\x1b[2J\\u202e" in result.output


def test_an_unforeseen_error_is_one_line(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.look.stats.collect_stats", lambda _: 1 / 0)
    result = CliRunner().invoke(app, ["stats", str(here / "nvfp4-csf-hf")])
    assert result.exit_code == 3
    assert result.stderr.count("\n") == 1
    assert "internal error: ZeroDivisionError" in result.stderr
    monkeypatch.setenv("CSF_TOOL_TRACEBACK", "1")
    assert isinstance(CliRunner().invoke(app, ["stats", str(here / "nvfp4-csf-hf")]).exception, ZeroDivisionError)


def test_no_permission_is_not_the_checkpoints_fault(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "config")

    monkeypatch.setattr("csf_tool.disk.reader.Path.read_bytes", refuse)
    result = CliRunner().invoke(app, ["stats", "nvfp4-csf-hf"])
    assert (result.exit_code, "Permission denied" in result.stderr) == (3, True)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interrupted_is_130_and_leaves_no_file(here: Path) -> None:
    code = """
import sys, time, csf_tool.disk.new_file as writer, csf_tool.cli
def slowly(self, reader, begin, end, on_bytes):
    sys.stdout.write("ready\\n")
    sys.stdout.flush()
    time.sleep(0.2)
    on_bytes(end - begin)
writer.NewFile.copy = slowly
sys.argv = ["csf-tool", "expand", "nvfp4-csf-hf", "out", "--device", "cpu", "--jobs", "1"]
csf_tool.cli.main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=here
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "csf-tool: interrupted; run the same command again to continue\n")
    assert [p.name for p in (here / "out").iterdir()] == [".csf-tool"]


def test_a_closed_pipe_is_no_error(here: Path) -> None:
    command = f"{sys.executable} -m csf_tool stats nvfp4-csf-hf --json | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, cwd=here)
    assert (done.stdout, done.stderr) == ("{\n", "")


def test_demo_runs_the_main_job(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path / "demo")])
    assert result.exit_code == 0
    for command in ("stats", "verify", "expand"):
        assert f"$ csf-tool {command} " in result.stdout
    assert (
        "VERIFIED.\nProved: 48 planes are well-formed and can be decoded.\nProved: every tensor equals" in result.stdout
    )
    assert sorted(p.name for p in (tmp_path / "demo").iterdir()) == ["csf", "dense", "expanded"]
    again = CliRunner().invoke(app, ["demo", "--keep", str(tmp_path / "demo")])
    assert again.exit_code == 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize("arguments", [["--help"], ["stats", "."], ["verify", ".", "--device", "cpu"]], ids=" ".join)
@pytest.mark.parametrize(
    ("environment", "forbidden"),
    [
        ({"TERM": "dumb"}, r"\x1b"),  # such a terminal prints escape sequences as they stand
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, r"\x1b\[[0-9;]*[34][0-7]m"),  # bold is no colour
    ],
    ids=["dumb", "no-colour"],
)
def test_terminals_without_colour_get_none(
    sample: Sample, arguments: list[str], environment: dict[str, str], forbidden: str
) -> None:
    shown = on_terminal(arguments, 0, environment, shows_stderr=True, folder=sample("mxfp4-csf-container"))
    assert shown
    assert not re.search(forbidden, shown), re.search(forbidden, shown)
