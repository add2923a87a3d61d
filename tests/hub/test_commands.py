"""The commands on checkpoints that lie on the Hub: what they prove and write, and what they fetch for it."""

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download
from typer.testing import CliRunner, Result

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from tests.building import tree
from tests.fixture_types import Copied, Sample
from tests.hub_server import Fault, Hub, Request

CSF, DENSE, CONTAINER = "org/nvfp4-csf-hf", "org/nvfp4-dense", "org/nvfp4-csf-container"
FIRST, SECOND, THIRD = (f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def checks(result: Result) -> dict[str, dict[str, object]]:
    return {check["name"]: check for check in json.loads(result.stdout)["checks"]}


def verify(*arguments: object) -> Result:
    return run("verify", *arguments, "--device", "cpu", "--json")


def scale_bytes(folder: Path) -> int:
    checkpoint = open_checkpoint(folder)
    return sum(p.csf_bytes for p in checkpoint.planes) + sum(p.dense_bytes for p in checkpoint.dense_planes)


def flip(path: Path, tensor: str, offset: int = 0) -> None:
    """Change one byte of a tensor."""
    shard = next(s for s in open_checkpoint(path.parent).shards if s.path == path)
    with path.open("r+b") as file:
        file.seek(shard.header.tensors[tensor].begin + offset)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


# As a user would, with nothing but the environment


@pytest.mark.slow
def test_by_the_environment_alone(hub: Hub, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "home"),
        "CSF_TOOL_TRACEBACK": "0",
        "COLUMNS": "80",
    }

    def command(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "csf_tool", *arguments]
        return subprocess.run(line, env=environment | more, cwd=tmp_path, capture_output=True, text=True, check=False)

    commit = hub.repositories[CSF].commit
    looked = command("stats", f"hf://{CSF}@main")
    assert looked.stdout.startswith(f"{CSF}@{commit}: Hugging Face layout, NVFP4 CSF\n")
    assert looked.stderr == f"csf-tool: {CSF}@{commit}: read from the Hub: 192.00 KiB of its shards' headers\n"
    lost = command("stats", "hf://org/nothing", HF_TOKEN="hf_right")
    assert lost.returncode == 2
    assert lost.stderr.startswith("csf-tool: org/nothing@main: no such repository on http://127.0.0.1")
    assert lost.stderr.count("\n") == 1
    offline = command("stats", CSF, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stderr.count("\n")) == (3, 1)
    assert "unset HF_HUB_OFFLINE, or fetch it first with `hf download org/nvfp4-csf-hf`" in offline.stderr


def test_a_checkpoint_here_never_loads_huggingface_hub(sample: Sample) -> None:
    code = (
        "import sys; from csf_tool.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print('huggingface_hub' in sys.modules)"
    )
    line = [sys.executable, "-c", code, "stats", str(sample("nvfp4-csf-hf"))]
    assert subprocess.run(line, capture_output=True, text=True, check=True).stdout.endswith("False\n")


# verify


@pytest.mark.parametrize("far", ["both", "the checkpoint", "the reference"])
def test_only_scales_are_fetched(hub: Hub, sample: Sample, far: str) -> None:
    here = sample("nvfp4-csf-hf"), sample("nvfp4-dense")
    ours = str(here[0]) if far == "the reference" else CSF
    theirs = str(here[1]) if far == "the checkpoint" else DENSE
    assert run("stats", CSF).exit_code == run("stats", DENSE).exit_code == 0
    headers = hub.sent() // 2
    del hub.requests[:]
    result = verify(ours, "--against", theirs)
    found = checks(result)
    assert result.exit_code == 0
    assert (found["decode"]["checked"], found["against"]["checked"]) == (36, 36)
    assert "every block scale equals" in json.loads(result.stdout)["proved"][-1]
    assert "115 other tensors equal" in json.loads(result.stdout)["unproved"][-1]
    scales = {CSF: scale_bytes(here[0]), DENSE: scale_bytes(here[1])}
    for name in {ours, theirs} & set(scales):
        between = 64 * 1024 * len(hub.asked(f"/storage/{name}/"))  # what lies between two neighbours of one request
        assert scales[name] <= hub.sent(f"/storage/{name}/") - headers <= scales[name] + between
        whole = sum(p.stat().st_size for p in sample(name.removeprefix("org/")).glob("*.safetensors"))
        assert hub.sent(f"/storage/{name}/") < whole / 3


def test_all_tensors_are_fetched_once_and_hashed(hub: Hub, sample: Sample) -> None:
    result = verify(CSF, "--against", DENSE, "--all-tensors")
    found = checks(result)
    assert result.exit_code == 0
    assert found["against"]["checked"] == 151
    assert found["stored"]["status"] == "passed"
    assert "every tensor equals" in json.loads(result.stdout)["proved"][-1]
    for name in ("nvfp4-csf-hf", "nvfp4-dense"):
        shards = list(sample(name).glob("*.safetensors"))
        assert hub.sent(f"/storage/org/{name}/") <= sum(p.stat().st_size for p in shards) + len(shards) * 65536


def test_a_difference_is_named(hub: Hub, copied: Copied) -> None:
    scale = "model.language_model.layers.0.mlp.experts.1.up_proj.weight_scale"
    weight = scale.removesuffix("_scale")
    folder = copied("nvfp4-dense")
    flip(folder / FIRST, scale, 24 * 5 + 7)
    flip(folder / FIRST, weight)
    hub.add("org/changed", folder)
    found = checks(verify(CSF, "--against", "org/changed"))["against"]
    assert found["failures"] == [
        {
            "code": "reference-differs",
            "file": FIRST,
            "tensor": scale,
            "problem": "differs first at row 5, column 7; wrong bytes: 1 of 9216 (0.0109%)",
        }
    ]
    found = checks(verify(CSF, "--against", "org/changed", "--all-tensors"))["against"]
    assert [f["tensor"] for f in found["failures"]] == [weight, scale]  # type: ignore[attr-defined]


def test_headers_are_compared_even_of_what_is_not_fetched(hub: Hub, copied: Copied) -> None:
    folder = copied("nvfp4-dense")
    path = folder / FIRST
    path.write_bytes(path.read_bytes().replace(b'"dtype":"BF16"', b'"dtype":"F16" ', 1))
    hub.add("org/changed", folder)
    failures = checks(verify(CSF, "--against", "org/changed"))["against"]["failures"]
    assert [f["problem"] for f in failures] == ["dtype is BF16, but the reference has F16"]  # type: ignore[attr-defined]


def test_receipts_prove_the_scales_of_a_container(hub: Hub, copied: Copied) -> None:
    assert checks(verify(CONTAINER))["source"]["status"] == "passed"
    whole = checks(verify(CONTAINER, "--all-tensors"))
    assert (whole["source"]["checked"], whole["stored"]["status"]) == (36 + 3, "passed")
    folder = copied("nvfp4-csf-container")
    plane = open_checkpoint(folder).planes[0]
    flip(plane.fixed.shard.path, plane.fixed.tensor.name, 20)
    hub.add("org/changed", folder)
    failures = checks(verify("org/changed"))["source"]["failures"]
    assert [f["tensor"] for f in failures] == [plane.name]  # type: ignore[attr-defined]


def zero_filled(path: Path) -> None:
    """What a download that was cut off can leave: the right size, zeros at the end."""
    raw = path.read_bytes()
    path.write_bytes(raw[:500_000] + bytes(len(raw) - 500_000))


def test_files_here_against_the_hashes_on_the_hub(hub: Hub, copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    good = verify(folder, "--hub", CSF)
    commit = hub.repositories[CSF].commit
    assert checks(good)["stored"]["note"] == f"6 files by {CSF}@{commit}"
    assert not hub.asked("/storage/", ok=False)
    zero_filled(folder / SECOND)
    (folder / "config.json").write_bytes((folder / "config.json").read_bytes() + b"\n")
    bad = verify(folder, "--hub", f"{CSF}@{commit}")
    assert bad.exit_code == 1
    failures = checks(bad)["stored"]["failures"]
    assert [f["file"] for f in failures] == ["config.json", SECOND]  # type: ignore[attr-defined]
    assert f"({CSF}@{commit})" in failures[1]["problem"]  # type: ignore[index]


def test_files_here_against_what_the_download_recorded(hub: Hub, tmp_path: Path) -> None:
    snapshot_download(CSF, local_dir=tmp_path / "here")
    assert checks(verify(tmp_path / "here"))["stored"]["status"] == "passed"
    zero_filled(tmp_path / "here" / SECOND)
    failures = checks(verify(tmp_path / "here"))["stored"]["failures"]
    assert [f["file"] for f in failures] == [SECOND]  # type: ignore[attr-defined]


# expand, compress, convert


def expand(name: object, out: Path, *more: object) -> Result:
    return run("expand", name, out, "--device", "cpu", *more)


@pytest.mark.parametrize("name", ["nvfp4-csf-hf", "nvfp4-csf-container", "mxfp4-csf-container"])
def test_expand_writes_what_it_writes_of_a_folder(hub: Hub, sample: Sample, tmp_path: Path, name: str) -> None:
    shards = [p.stat().st_size for p in sample(name).rglob("*.safetensors")]
    assert expand(f"org/{name}", tmp_path / "far").exit_code == 0
    assert expand(sample(name), tmp_path / "near").exit_code == 0
    assert tree(tmp_path / "far") == tree(tmp_path / "near")
    # Every byte once, but for what was read of headers first.
    assert hub.sent() == sum(shards)


def test_no_more_shards_are_on_the_disk_than_jobs(hub: Hub, tmp_path: Path) -> None:
    seen: list[int] = []

    def count(request: Request) -> None:
        folder = tmp_path / "out" / ".csf-tool" / "fetched"
        seen.append(sum(path.is_file() for path in folder.rglob("*")))

    hub.before_answer = count
    assert expand(CSF, tmp_path / "out", "--jobs", 1).exit_code == 0
    assert max(seen) == 1
    assert not (tmp_path / "out" / ".csf-tool").exists()


def test_what_the_cache_holds_is_neither_fetched_nor_deleted(hub: Hub, sample: Sample, tmp_path: Path) -> None:
    snapshot = Path(snapshot_download(CSF, allow_patterns=["*-00002-*"]))
    del hub.requests[:]
    assert expand(CSF, tmp_path / "out").exit_code == 0
    assert not hub.asked(f"/storage/{CSF}/{SECOND}")
    assert (snapshot / SECOND).read_bytes() == (sample("nvfp4-csf-hf") / SECOND).read_bytes()
    assert not (snapshot / FIRST).exists()  # nor is the cache filled with shards
    assert not (tmp_path / "out" / SECOND).is_symlink()


def test_an_interrupted_run_goes_on(hub: Hub, sample: Sample, tmp_path: Path) -> None:
    """Shards that are done are not fetched again; of the one that was being fetched, only what is missing."""
    source, out = sample("nvfp4-csf-hf"), tmp_path / "out"
    half = 600_000

    def stop(request: Request) -> None:
        if SECOND in request.path and request.range and not request.range.startswith("bytes=0-"):
            hub.faults = [Fault(SECOND, 99, status=403)]

    hub.before_answer = stop
    stopped = expand(CSF, out, "--jobs", 1)
    assert stopped.exit_code == 3
    assert "access is refused (403" in stopped.stderr
    left = out / ".csf-tool" / "fetched" / SECOND / SECOND
    left.write_bytes((source / SECOND).read_bytes()[:half])
    hub.before_answer, hub.faults = lambda _: None, []
    del hub.requests[:]
    assert expand(CSF, out, "--jobs", 1).exit_code == 0
    assert expand(source, tmp_path / "near").exit_code == 0
    assert tree(out) == tree(tmp_path / "near")
    assert hub.sent(f"/storage/{CSF}/{FIRST}") == 65536  # its header
    assert hub.sent(f"/storage/{CSF}/{SECOND}") == 65536 + (source / SECOND).stat().st_size - half


def test_what_an_interrupted_run_left_damaged_is_fetched_again(hub: Hub, sample: Sample, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hub.faults = [Fault(f"/storage/{CSF}/{SECOND}", 99, status=403, range="bytes=65536-965007")]
    assert expand(CSF, out, "--jobs", 1).exit_code == 3
    (out / ".csf-tool" / "fetched" / SECOND / SECOND).write_bytes(bytes(900_000))
    hub.faults = []
    assert expand(CSF, out, "--jobs", 1).exit_code == 0
    assert expand(sample("nvfp4-csf-hf"), tmp_path / "near").exit_code == 0
    assert tree(out) == tree(tmp_path / "near")


def test_bytes_that_are_not_the_listed_ones_are_not_expanded(hub: Hub, copied: Copied, tmp_path: Path) -> None:
    folder = copied("nvfp4-csf-hf")
    repository = hub.add("org/damaged", folder)
    raw = bytearray((folder / SECOND).read_bytes())
    raw[-1] ^= 1
    hub.stored["org/damaged"] = replace(repository, other={SECOND: bytes(raw)})
    result = expand("org/damaged", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 1
    assert f"{SECOND}: sha256 of the fetched file is" in result.stderr
    assert (tmp_path / "out" / FIRST).exists()
    assert not (tmp_path / "out" / SECOND).exists()
    assert not (tmp_path / "out" / "config.json").exists()


def test_another_commit_does_not_go_on_with_it(hub: Hub, copied: Copied, tmp_path: Path) -> None:
    repository = hub.add("org/moving", copied("nvfp4-csf-hf"))
    hub.faults = [Fault(f"/storage/org/moving/{THIRD}", times=1), Fault(f"/storage/org/moving/{THIRD}", 99, status=404)]
    assert expand("org/moving", tmp_path / "out", "--jobs", 1).exit_code != 0
    hub.faults = []
    first = repository.commit
    repository.refs |= {"main": "b" * 40, "b" * 40: "b" * 40}
    result = expand("org/moving", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 2
    assert f'source: "org/moving@{first}" there, "org/moving@{"b" * 40}" now' in result.stderr
    assert expand(f"org/moving@{first}", tmp_path / "out", "--jobs", 1).exit_code == 0


def test_room_for_the_shards_in_flight_is_asked_for(
    hub: Hub, sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("csf_tool.write.destination.Destination.require_space", lambda _, nbytes: asked.append(nbytes))
    for source in (CSF, sample("nvfp4-csf-hf")):
        assert expand(source, tmp_path / str(len(asked)), "--jobs", 2).exit_code == 0
    sizes = sorted(p.stat().st_size for p in sample("nvfp4-csf-hf").glob("*.safetensors"))
    assert asked[0] - asked[1] == sum(sizes[-2:])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_an_interrupt_does_not_wait_for_the_next_try(hub: Hub, tmp_path: Path) -> None:
    """The storage asks for a wait of a minute, which an interrupt ends."""
    ready, waiting = threading.Event(), set()

    def refuse(request: Request) -> None:
        if request.range and not request.range.startswith("bytes=0-"):
            hub.faults = [Fault("/storage/", 99, status=503, headers={"Retry-After": "60"})]
            waiting.add(request.path)
            if len(waiting) == 3:  # all jobs are under way
                ready.set()

    hub.before_answer = refuse
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
    line = [sys.executable, "-m", "csf_tool", "expand", f"hf://{CSF}", str(tmp_path / "out"), "--device", "cpu"]
    line += ["--jobs", "3"]
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    assert ready.wait(30)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "csf-tool: interrupted; run the same command again to continue\n")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("begin", ["bytes=0-", "bytes=6"])
def test_an_interrupt_does_not_wait_while_headers_or_scales_are_fetched(hub: Hub, tmp_path: Path, begin: str) -> None:
    """Before `stats` counts scales, no cancel token of a run exists that would stop the fetching."""
    ready = threading.Event()

    def refuse(request: Request) -> None:
        if "/storage/" in request.path and request.range and request.range.startswith(begin):
            hub.faults = [Fault("/storage/", 99, status=503, headers={"Retry-After": "60"})]
            ready.set()

    hub.before_answer = refuse
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
    line = [sys.executable, "-m", "csf_tool", "stats", f"hf://{CSF}", "--scales"]
    process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ready.wait(30)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "csf-tool: interrupted\n")


def test_parts_that_run_by_themselves(hub: Hub, sample: Sample, tmp_path: Path) -> None:
    for part in ("1/2", "2/2"):
        assert expand(CSF, tmp_path / "out", "--shards", part).exit_code == 0
    assert expand(sample("nvfp4-csf-hf"), tmp_path / "near").exit_code == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "near")
    late = run("finish", CSF, tmp_path / "out")
    assert (late.exit_code, "is already complete" in late.stdout) == (0, True)


def test_what_is_refused_on_the_hub(hub: Hub, tmp_path: Path) -> None:
    consumed = expand(CSF, tmp_path / "out", "--consume-source", "--yes")
    assert (consumed.exit_code, "is on the Hub, where csf-tool removes nothing" in consumed.stderr) == (2, True)
    hashed = run("identity", CSF, "--hash")
    assert (hashed.exit_code, "fetch it first with `hf download`" in hashed.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_compress_writes_what_it_writes_of_a_folder(hub: Hub, sample: Sample, tmp_path: Path) -> None:
    for name in ("nvfp4-dense", "mxfp4-dense"):
        origin = ["--source-model-id", f"org/{name}", "--source-revision", "1"]
        far, near = (
            run("compress", source, tmp_path / kind / name, "--device", "cpu", *origin)
            for source, kind in ((f"org/{name}", "far"), (sample(name), "near"))
        )
        assert (far.exit_code, near.exit_code) == (0, 0)
    assert tree(tmp_path / "far") == tree(tmp_path / "near")
    assert "mxfp4-dense/manifest.json" in tree(tmp_path / "far")


def test_convert_writes_what_it_writes_of_a_folder(hub: Hub, sample: Sample, tmp_path: Path) -> None:
    for source, out in ((CONTAINER, "far"), (sample("nvfp4-csf-container"), "near")):
        assert run("convert", source, tmp_path / out, "--to", "hf", "--link").exit_code == 0
    assert tree(tmp_path / "far") == tree(tmp_path / "near")


def test_identity_is_that_of_the_download(hub: Hub, tmp_path: Path) -> None:
    for name in (CSF, CONTAINER):
        far = run("identity", name).stdout
        assert hub.sent(f"/storage/{name}/") == 3 * 65536  # three headers
        snapshot_download(name, local_dir=tmp_path / name)
        assert run("identity", tmp_path / name).stdout == far


def test_inspect_reads_one_plane(hub: Hub, sample: Sample) -> None:
    plane = open_checkpoint(sample("nvfp4-csf-hf")).planes[7]
    far, near = (run("inspect", source, plane.name) for source in (CSF, sample("nvfp4-csf-hf")))
    assert (far.exit_code, far.stdout) == (0, near.stdout)
    assert hub.sent() == 3 * 65536 + plane.csf_bytes


@pytest.mark.parametrize("change", ["none", "metadata", "map", "shard", "index gone"])
def test_an_index_written_anew_is_compared_by_its_map(hub: Hub, copied: Copied, tmp_path: Path, change: str) -> None:
    folder = tmp_path / "expanded"
    assert run("expand", copied("nvfp4-csf-hf"), folder, "--device", "cpu").exit_code == 0
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    if change == "metadata":
        document["metadata"] = {"total_size": 7}
    elif change == "map":
        document["weight_map"]["one.more"] = FIRST
    if change in ("metadata", "map"):
        index.write_text(json.dumps(document))
    if change == "shard":
        flip(folder / SECOND, next(name for name, shard in document["weight_map"].items() if shard == SECOND))
    if change == "index gone":
        hub.faults.append(Fault("/resolve/", times=99, status=404, headers={"X-Error-Code": "EntryNotFound"}))
    result = verify(folder, "--hub", DENSE)
    found, report = checks(result)["stored"], json.loads(result.stdout)
    warned = [problem["file"] for problem in found["warnings"]]  # type: ignore[attr-defined]
    if change in ("none", "metadata"):
        assert (result.exit_code, found["status"], warned) == (0, "warning", [index.name])
        assert report["verdict"].startswith("VERIFIED AS PUBLISHED")
        assert "(5 files by org/nvfp4-dense@" in report["proved"][-1]
    else:
        assert (result.exit_code, found["status"]) == (1, "failed")
        assert set(report["failed_files"]) >= ({SECOND} if change == "shard" else {index.name})
    assert len(hub.asked("/resolve/", ok=False)) <= 4
