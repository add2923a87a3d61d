"""The process around a command: Ctrl-C at any moment, streams that are closed or full, memory, empty arguments."""

import inspect
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from csf_tool.cli import app
from csf_tool.cli.parsing import Command
from tests.building import tree
from tests.fixture_types import Copied, Sample

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals, shells and descriptors")

SCRIPT = [sys.executable, "-c", "import sys; sys.argv[0] = 'csf-tool'; from csf_tool.cli import main; sys.exit(main())"]
"""As the installed script has it."""


def shell(line: str, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A line of the shell in which $CSF is csf-tool."""
    words = " ".join(f"'{word}'" for word in SCRIPT).replace("'csf-tool'", '"csf-tool"')
    script = 'CSF() { %s "$@"; }; ' % words + line  # noqa: UP031
    command = ["/bin/bash", "-c", script, "bash", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)


# Standard streams

STREAMS = {
    "as they are": ("", 0),
    "stdout closed": (">&-", 0),
    "stderr closed": ("2>&-", 0),
    "stdin closed": ("<&-", 0),
    "all closed": (">&- 2>&- <&-", 0),
    "stdout full": (">/dev/full", 3),
    "stderr full": ("2>/dev/full", 0),
    "both full": (">/dev/full 2>&1", 3),
    "stdout cannot be written": ("1</dev/null", 3),
    "stdout is nowhere, stderr full": (">&- 2>/dev/full", 0),
}
COMMANDS = {
    "stats": "stats $1",
    "stats --json": "stats $1 --json",
    "verify": "verify $1 --device cpu --jobs 2",
    "verify --save-hashes": "verify $1 --device cpu --save-hashes $2.sums",
    "identity": "identity $1 --by sizes",
    "expand": "expand $1 $2 --device cpu",
    "compress": "compress $3 $2 --device cpu",
    "convert": "convert $1 $2 --to container",
}


@pytest.mark.slow
@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", COMMANDS)
def test_streams_stop_no_work(sample: Sample, tmp_path: Path, name: str, streams: str) -> None:
    redirected, code = STREAMS[streams]
    places = sample("nvfp4-csf-hf"), tmp_path / "out", sample("nvfp4-dense")
    done = shell(f"CSF {COMMANDS[name]} {redirected}", *places)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    if "$2" in COMMANDS[name]:
        right = shell(f"CSF {COMMANDS[name]}", places[0], tmp_path / "right", places[2])
        assert right.returncode == 0
        assert {n.replace("out", "right"): d for n, d in tree(tmp_path).items() if n.startswith("out")} == {
            n: d for n, d in tree(tmp_path).items() if n.startswith("right")
        }


@pytest.mark.parametrize("redirected", [">&-", ">/dev/full", "2>&-", ">&- 2>&-", "| true", "| head -c1"])
def test_a_faulty_checkpoint_is_1_and_a_good_one_never(copied: Copied, redirected: str) -> None:
    folder = copied("nvfp4-csf-hf")
    pipe = "; (exit ${PIPESTATUS[0]})"
    good = shell(f"CSF verify $1 --device cpu {redirected}{pipe}", folder)
    assert good.returncode == (3 if "full" in redirected else 0)
    (folder / "model-00002-of-00003.safetensors").unlink()
    bad = shell(f"CSF verify $1 --device cpu {redirected}{pipe}", folder)
    assert bad.returncode == 1


@pytest.mark.parametrize("arguments", ["--version", "--help", "verify --help"])
def test_what_click_prints_is_counted_as_well(arguments: str) -> None:
    assert shell(f"CSF {arguments} >/dev/full").returncode == 3
    assert shell(f"CSF {arguments} >&-").returncode == 0
    done = shell(f"CSF {arguments} | true; (exit ${{PIPESTATUS[0]}})")
    assert (done.returncode, done.stderr) == (0, "")


def test_unbuffered_streams_and_those_that_do_not_block(sample: Sample) -> None:
    assert (
        shell("PYTHONUNBUFFERED=1; export PYTHONUNBUFFERED; CSF stats $1 >/dev/full", sample("nvfp4-csf-hf")).returncode
        == 3
    )
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    line = [*SCRIPT, "inspect", str(sample("nvfp4-csf-hf")), "--json"]
    with subprocess.Popen(line, stdout=writing, stderr=subprocess.PIPE) as process:
        os.close(writing)
        time.sleep(0.5)
        with open(reading, "rb") as file:
            assert file.read().endswith(b"}\n")
        assert process.stderr
        assert process.stderr.read() == b""
    assert process.returncode == 0


# Ctrl-C


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2, 3])
@pytest.mark.parametrize("command", ["--help", "stats", "verify"])
def test_an_interrupt_at_every_moment_of_a_start(sample: Sample, command: str, presses: int) -> None:
    """From when it hears Ctrl-C: before, next to nothing of csf-tool is loaded."""
    device = ["--device", "cpu"] if command == "verify" else []
    arguments = [command] if command == "--help" else [command, str(sample("nvfp4-csf-hf")), *device]
    told = "process.begin = lambda begin=process.begin: (begin(), print('here', flush=True))"
    code = SCRIPT[2].replace("sys.exit(main())", f"from csf_tool import process; {told}; sys.exit(main())")
    for i in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdout
        assert process.stdout.readline() == "here\n"
        time.sleep(0.001 + i * 0.025)
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.002)
        _, stderr = process.communicate(timeout=30)
        assert (process.returncode, stderr) in [(130, "csf-tool: interrupted\n"), (0, "")], (i, stderr)


@pytest.mark.parametrize("where", ["deaf", "finalizer", "wrapped"])
def test_an_interrupt_that_is_lost_on_its_way_ends_the_process_all_the_same(sample: Sample, where: str) -> None:
    """As in code that catches everything, in a finalizer, and in an import that gives its own reason."""
    bodies = {
        "deaf": "try:\n        time.sleep(90)\n    except BaseException: time.sleep(90)",
        "finalizer": "class A:\n        def __del__(self): time.sleep(90)\n    A()\n    time.sleep(90)",
        "wrapped": "try:\n        time.sleep(90)\n    except KeyboardInterrupt: raise ImportError('numpy')",
    }
    code = f"""
import sys, time, csf_tool.cli, csf_tool.look.stats
def slow(_):
    print("here", flush=True)
    {bodies[where]}
csf_tool.look.stats.collect_stats = slow
sys.argv = ["csf-tool", "stats", sys.argv[1]]
csf_tool.cli.main()
"""
    line = [sys.executable, "-c", code, str(sample("nvfp4-csf-hf"))]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "here\n"
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "csf-tool: interrupted\n")


def test_an_interrupt_that_is_ignored_stays_so(sample: Sample) -> None:
    """As in the background of a script, and under nohup."""
    done = shell("trap '' INT; CSF stats $1 & sleep 0.2; kill -INT $!; wait $!", sample("nvfp4-csf-hf"))
    assert done.returncode == 0


# Memory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ulimit -v")
@pytest.mark.parametrize("kilobytes", [50_000, 80_000, 100_000, 110_000, 115_000, 120_000, 130_000, 145_000, 400_000])
@pytest.mark.parametrize("command", ["stats", "verify", "expand"])
def test_little_memory_is_one_line_and_3(sample: Sample, tmp_path: Path, command: str, kilobytes: int) -> None:
    arguments = COMMANDS[command]
    done = shell(f"ulimit -v {kilobytes}; CSF {arguments}", sample("nvfp4-csf-hf"), tmp_path / "out")
    if done.returncode:
        assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
        assert done.stderr.startswith("csf-tool: ")
        assert "internal error" not in done.stderr
    assert done.returncode == 0 or kilobytes < 400_000


# Arguments


def places() -> list[tuple[str, str]]:
    """Every argument and option with a value, by its command: all of them, for paths may be written as any kind."""
    found = []
    for command in app.registered_commands:
        assert command.callback
        for name, parameter in inspect.signature(command.callback, eval_str=True).parameters.items():
            if "bool" not in str(parameter.annotation):
                found.append((command.callback.__name__, name))
    return found


@pytest.mark.parametrize("empty", ["", " ", "\t\n"])
@pytest.mark.parametrize(("command", "parameter"), places(), ids="-".join)
def test_an_empty_argument_is_wrong_usage(tmp_path: Path, command: str, parameter: str, empty: str) -> None:
    import typer

    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    made = group.commands[command]
    assert isinstance(made, Command)
    words: list[str] = []
    for one in made.params:
        if one.param_type_name == "argument":
            words.append(empty if one.name == parameter else str(tmp_path))
        elif one.name == parameter:
            words += [one.opts[0], empty]
    result = CliRunner().invoke(app, [command, *words])
    assert result.exit_code == 2, result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--save-hashes", "--figure"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_is_read(
    sample: Sample, tmp_path: Path, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csf_tool.checkpoint.open.open_checkpoint", lambda _: 1 / 0)
    (tmp_path / "file").write_text("")
    (tmp_path / "link.svg").symlink_to(tmp_path / "nowhere" / "x.svg")
    command = "verify" if option == "--save-hashes" else "stats"
    for path in ("nowhere/x.svg", "file/x.svg", "link.svg", "/proc/x.svg"):
        result = CliRunner().invoke(app, [command, str(sample("nvfp4-csf-hf")), option, str(tmp_path / path)])
        assert (result.exit_code, result.stderr.count("\n")) == (3, 1)
        assert f"csf-tool: {option} {tmp_path / path}: no file can be made in" in result.stderr
