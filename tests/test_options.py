"""Mistaken options: one line of our own words each, before anything is read; and the options by convention."""

import json
from enum import Enum
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from csf_tool.cli import app, other_names
from csf_tool.errors import UsageError
from csf_tool.write.request import WriteRequest
from tests.commands import says
from tests.fixture_types import Copied, Sample

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
NEEDED = {"expand": ["a", "b"], "finish": ["a", "b"], "compress": ["a", "b"], "convert": ["a", "b", "--to", "hf"]}


def run(*words: object) -> Result:
    return CliRunner().invoke(app, list(map(str, words)))


def mistake(*words: object) -> str:
    """What is said of a mistaken command: one line."""
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("csf-tool: ")
    return result.stderr.removeprefix("csf-tool: ").rstrip("\n")


def needed(name: str) -> list[str]:
    return NEEDED.get(name, [] if name in ("bench", "demo") else ["a"])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_refuses_what_it_cannot_be(name: str) -> None:
    declared = signature(COMMANDS[name].callback, eval_str=True).parameters
    for param in COMMANDS[name].params:
        if param.param_type_name == "argument":
            continue
        option = max(param.opts, key=len)
        assert mistake(name, option[:-1] + "q", *needed(name)).startswith(f"{option[:-1]}q: {name} has no such option")
        if param.is_flag:
            assert mistake(name, f"{option}=yes", *needed(name)) == f"{option}: takes no value"
            continue
        assert param.metavar
        assert mistake(name, *needed(name), option) == f"{option}: needs a value ({param.metavar})"
        assert mistake(name, *needed(name), option, " ") == f"{option}: is empty (a variable that is not set?)"
        annotation = get_args(declared[param.name].annotation)[0]
        for kind in (annotation, *get_args(annotation)):
            if kind is int:
                for wrong in ("x", "0", "1.5", "1_0", "9" * 5000, "²"):
                    assert mistake(name, *needed(name), f"{option}={wrong}").startswith(
                        f"{option} {wrong}: give a whole"
                    )
            elif isinstance(kind, type) and issubclass(kind, Enum):
                near = next(iter(kind)).value
                said = mistake(name, *needed(name), option, near + "s")
                assert said.endswith(f"; did you mean {near}?")
                assert all(choice.value in said for choice in kind)


@pytest.mark.parametrize("name", COMMANDS)
def test_arguments_that_are_missing_or_too_many(name: str) -> None:
    most = [*needed(name), "PLANE"] if name in ("inspect", "ls") else needed(name)
    for n in range(len(needed(name)[:2])):
        assert mistake(name, *needed(name)[:n]).startswith(f"{name} needs ")
    if name in ("stats", "verify"):
        return  # which take several
    assert mistake(name, *most, "more").startswith(f"more: one argument too many: {name} takes ")
    assert mistake(name, *most, "more", "and", "more").startswith("more and 2 more: one argument too many")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sats", "x"], "sats: no such command; did you mean stats?"),
        (["qqq"], "qqq: no such command (csf-tool --help lists all)"),
        (["decompress", "x", "y"], "decompress: no such command; did you mean csf-tool expand?"),
        (["compare", "x", "y"], "compare: no such command; did you mean csf-tool verify CHECKPOINT --against DENSE?"),
        (["org/name"], "org/name: no such command: the command comes first, as in csf-tool stats org/name"),
        (["-v", "stats", "x"], "-v: csf-tool has no such option: give it after a command, as in csf-tool stats ... -v"),
        (["expand", "x", "--dest", "y"], "--dest: expand has no such option: the destination is the second argument"),
        (["expand", "x", "y", "--resume"], "--resume: expand has no such option: the same command goes on by itself"),
        (["verify", "x", "--revision", "y"], "--revision: verify has no such option: a revision is a part of the name"),
        (["verify", "x", "--original", "y"], "--original: verify has no such option; did you mean --against?"),
        (["--verson"], "--verson: csf-tool has no such option; did you mean --version?"),
        (["verify", "x", "--aginst", "y"], "--aginst: verify has no such option; did you mean --against?"),
        (["verify", "x", "-x"], "-x: verify has no such option"),
        (["convert"], "convert needs SRC, DEST and --to hf|container|serving: "),
        (["stats"], "stats needs CHECKPOINT: csf-tool stats CHECKPOINT... [OPTIONS]"),
        (["stats", ""], "CHECKPOINT: is empty (a variable that is not set?)"),
        (["verify", "a", " ", "b"], "CHECKPOINT: is empty (a variable that is not set?)"),
        (["stats", "x", "-q", "-v"], "--quiet and --verbose: give one of them"),
        (["verify", "x", "--tensors-only"], "--tensors-only: needs a checkpoint to compare with: give --against DENSE"),
        (["plan", "x", "--gpu-memory", "96"], "--gpu-memory 96: needs a unit; did you mean 96GiB?"),
        (["plan", "x", "--gpu-memory", "much"], "--gpu-memory much: is not a size; give one like 96GiB"),
        (["bench", "--device", "cpu"], "--device cpu: bench times a GPU: give cuda or cuda:N"),
        (["compress", "a", "b", "--to", "hf", "--family", "x"], "--family: only a container records this"),
        (["convert", "a", "b", "--to", "hf", "--checkpoint-root", "x"], "--checkpoint-root: is for --to serving"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_by_name(words: list[str], said: str) -> None:
    assert mistake(*words).startswith(said)


def test_names_of_other_tools_are_none_of_ours_and_mean_what_is_there() -> None:
    options = {option for command in COMMANDS.values() for param in command.params for option in param.opts}
    for meant, names in other_names._COMMANDS.items():
        assert meant.split()[0] in {*COMMANDS, "--version", "--help"}
        assert not COMMANDS.keys() & set(names.split())
    assert other_names._OPTIONS.keys() <= options
    for names in [
        *other_names._OPTIONS.values(),
        *(" ".join(each.values()) for each in other_names._SENTENCES.values()),
    ]:
        assert not options & set(names.split())


@pytest.mark.parametrize("wrong", ["--destiny", "--queit", "--x", "--jsn", "--9", "--"])
def test_an_option_that_is_suggested_is_like_the_one_that_was_typed(wrong: str) -> None:
    """Two dashes in common are no likeness: `--dest` is not `--yes`."""
    said = run("expand", "a", "b", wrong).stderr
    near = {"--queit": "--quiet", "--jsn": "--json"}.get(wrong)
    assert ("did you mean" in said) is bool(near)
    assert near is None or said.endswith(f"; did you mean {near}?\n")


@pytest.mark.parametrize(
    ("device", "meant"),
    [
        ("1", "cuda:1"),
        ("cuda1", "cuda:1"),
        ("gpu", "cuda"),
        ("GPU:0", "cuda:0"),
        ("cuda:00", "cuda:0"),
        ("cuda:٣", "cuda:3"),
    ],
)
@pytest.mark.parametrize("command", ["bench", "verify", "expand", "compress"])
def test_a_device_is_the_same_everywhere(sample: Sample, tmp_path: Path, command: str, device: str, meant: str) -> None:
    source = sample("nvfp4-dense" if command == "compress" else "nvfp4-csf-hf")
    arguments = [] if command == "bench" else [source] if command == "verify" else [source, tmp_path / "out"]
    wanted = f"--device {device}: give auto, cpu, cuda or cuda:N; did you mean {meant}?"
    assert mistake(command, *arguments, "--device", device) == wanted
    if command == "verify":
        assert mistake(command, *arguments, "--quick", "--device", device) == wanted
    elif command != "bench":  # the cluster's workers need not say so
        request = WriteRequest(cluster="tcp://somewhere:8786")
        for made in (request.decoder, request.encoder):
            with pytest.raises(UsageError) as found:
                made(device)
            assert str(found.value) == wanted


@pytest.mark.parametrize("which", ["all", "sample", "none"])
@pytest.mark.parametrize("device", [[], ["--device", "auto"], ["--device", "cpu"]], ids=str)
def test_a_cross_check_without_a_gpu_says_that_it_has_no_effect(sample: Sample, device: list[str], which: str) -> None:
    """It is no mistake: a script may take either device. Nor is it a fault, and JSON stays one document."""
    csf = str(sample("nvfp4-csf-hf"))
    for places in ([csf], [csf, str(sample("mxfp4-csf-container"))]):
        done = run("verify", *places, *device, "--cross-check", which, "--json")
        said = f"csf-tool: --cross-check {which}: has no effect, because the CPU decodes all planes: see --device cuda"
        assert (done.exit_code, done.stderr.count(said), done.stderr.count("no effect")) == (0, 1, 1)
        json.loads(done.stdout)
    assert "no effect" not in run("verify", csf, *device, "--cross-check", which, "--quiet").stderr
    assert "no effect" not in run("verify", csf, *device).stderr


@pytest.mark.parametrize("asked", [["--cross-check", "all"], ["--cross-check", "sample"], ["--all-tensors"]], ids=str)
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_what_reads_data_does_not_go_with_quick(sample: Sample, asked: list[str], device: str) -> None:
    said = mistake("verify", sample("nvfp4-csf-hf"), "--quick", "--device", device, *asked)
    assert said.startswith("--quick reads no data: give it without --against, --only")
    assert asked[0] in said


def test_parts_of_names_are_answered_with_the_glob_that_means_them(sample: Sample, tmp_path: Path) -> None:
    csf, dense = sample("nvfp4-csf-hf"), sample("nvfp4-dense")
    assert mistake("verify", csf, "--only", "00002").endswith(
        "no readable shard has this name; did you mean '*00002*'?"
    )
    assert mistake("ls", csf, "experts.0").endswith("no tensor's name is experts.0; did you mean '*experts.0*'?")
    assert mistake("inspect", csf, "experts.0").endswith("did you mean '*experts.0*'?")
    said = mistake("compress", dense, tmp_path / "a", "--include", "layers.1")
    assert said.endswith("--include layers.1 matches no block scale; did you mean '*layers.1*'?")
    assert "did you mean" not in mistake("compress", dense, tmp_path / "a", "--include", "nothing")
    for option in ("--include", "--exclude"):
        good = ["--include", "*experts*"] if option == "--include" else []
        result = run("compress", dense, tmp_path / option, *good, option, "layers.1", "--device", "cpu")
        assert result.exit_code == 0
        assert f"Note: {option} layers.1 matches no block scale; did you mean '*layers.1*'?" in result.stdout
    assert mistake("inspect", csf, "model.language_model.embed_tokens.weight").endswith(
        "is a tensor, and no plane: csf-tool ls shows it"
    )


def test_options_for_one_plane_need_one(sample: Sample) -> None:
    source, one = sample("nvfp4-csf-hf"), "*.layers.1.*.2.gate_proj"
    assert mistake("plan", source, "--gpu-memory", "0GiB").startswith("a GPU with 0 bytes of memory: give what one has")
    assert mistake("inspect", source, "--values").startswith("--values: needs one plane, but 36 planes match")
    assert mistake("inspect", source, "*.layers.1.*", "--values").startswith("--values: needs one plane")
    assert mistake("inspect", source, one, "--top", 3).startswith("--top: ")
    assert run("inspect", source, one, "--values").exit_code == 0
    assert run("inspect", source, "--top", 3).exit_code == 0


def test_short_options_are_those_that_one_expects(sample: Sample) -> None:
    assert run("-V").stdout == run("--version").stdout
    for name, command in COMMANDS.items():
        short = {option for param in command.params for option in param.opts if not option.startswith("--")}
        assert {"-q", "-v"} <= short, name
        assert ("-y" in short) == any("--yes" in param.opts for param in command.params), name
        assert ("-j" in short) == any("--jobs" in param.opts for param in command.params), name


def test_quiet_leaves_the_result_alone(sample: Sample) -> None:
    words = ["identity", sample("nvfp4-csf-hf"), "--by", "sizes"]
    usual, quiet = run(*words), run(*words, "-q")
    assert usual.stdout == quiet.stdout
    assert usual.stderr
    assert quiet.stderr == ""
    assert run(*words).stderr == usual.stderr  # it is for one command alone


def test_quiet_hides_no_fault(copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert run("stats", folder, "-q").stderr == run("stats", folder).stderr != ""
    assert "no such file" in run("stats", folder / "nothing", "-q").stderr


def test_verbose_names_every_file(sample: Sample, copied: Copied, tmp_path: Path) -> None:
    good = run("verify", sample("nvfp4-csf-hf"), "--device", "cpu", "-v")
    assert good.stderr.count(": OK\n") == 3
    folder = copied("mxfp4-csf-container")
    shard = folder / "tensors/model-00001-of-00002.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    bad = run("verify", folder, "--device", "cpu", "-v")
    says(bad, f"{shard.name}: FAILED", "model-00002-of-00002.safetensors: OK")
    written = run("expand", sample("nvfp4-csf-hf"), tmp_path / "out", "--device", "cpu", "-v")
    assert written.stderr.count(": written\n") == 3


@pytest.mark.parametrize("answer", ["", "n\n"], ids=["end of input", "no"])
def test_no_answer_is_a_no(copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("csf_tool.cli.writing.sys", terminal)
    source = copied("nvfp4-csf-hf")
    words = ["expand", str(source), str(tmp_path / "out"), "--consume-source", "--device", "cpu"]
    result = CliRunner().invoke(app, words, input=answer)
    assert result.exit_code == 2
    assert result.stderr.endswith("csf-tool: nothing was done\n")
    assert len(list(source.glob("*.safetensors"))) == 3
