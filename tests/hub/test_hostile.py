"""Whatever a Hub, a mirror or a login page answers: one line with a remedy, in little time and memory."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from csf_tool.errors import CsfToolError, EnvironmentFault
from csf_tool.hub import threads
from csf_tool.hub.errors import RetryPolicy
from csf_tool.hub.name import find_source
from tests.commands import run
from tests.fixture_types import Copied
from tests.hub_server import Fault, Hub, Request

NAME = "nvfp4-csf-hf"
API, SMALL, SHARD, STORAGE = "/api/models/org", "/config.json", "-of-00003.safetensors", "/storage/"
HTML = b"<!DOCTYPE html><html><body>Please log in to this network</body></html>"
HEX = "0" * 40


def listing(*files: Any, **more: Any) -> bytes:
    return json.dumps({"sha": HEX, "siblings": list(files)} | more).encode()


def listed(**more: Any) -> bytes:
    return listing({"rfilename": "config.json", "size": 2, "blobId": HEX} | more)


_LFS: list[Any] = [[], 7, {}, {"sha256": None}, {"sha256": "../x"}, "0" * 64]

LISTINGS = {
    "a login page": HTML,
    "nothing": b"",
    "no UTF-8": b"\xff\xfe{}",
    "cut off": b'{"sha": "',
    "a list": b"[]",
    "null": b"null",
    "a number": b"7",
    "a number of 5,000 digits": b"1" * 5000,
    "nested a hundred thousand deep": b"[" * 100_000,
    "no commit": listing(sha=None),
    "a commit that is a number": listing(sha=7),
    "a commit that leads elsewhere": listing(sha="../../../../etc"),
    "an absolute commit": listing(sha="/etc"),
    "a commit of dots": listing(sha=".."),
    "files that are no list": listing(siblings={"a": 1}),
    "files that are text": listing("config.json"),
    "a file without a name": listing({"size": 1, "blobId": HEX}),
    "a name that is a number": listed(rfilename=7),
    **{f"the size {size!r}": listed(size=size) for size in (None, -1, "2", 1.5, 1e30, 10**30, True, [2])},
    **{f"the hash {text!r}": listed(blobId=text) for text in (None, 7, "", "x" * 40, "../../../x", HEX + "\n")},
    **{f"in LFS {lfs!r}": listed(lfs=lfs) for lfs in _LFS},
}


def opened(name: str = f"hf://org/{NAME}") -> None:
    from csf_tool.checkpoint.open import open_checkpoint

    source = find_source(name, lambda _: None)
    open_checkpoint(source)


def require_refused(result: Any, code: int = 3) -> None:
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if line]
    assert len(lines) == 1, result.stderr
    assert "internal error" not in lines[0]
    assert len(lines[0]) < 1200


@pytest.mark.parametrize("name", LISTINGS)
def test_no_listing(hub: Hub, name: str) -> None:
    hub.faults = [Fault(API, 99, body=LISTINGS[name])]
    require_refused(run("stats", f"hf://org/{NAME}"), 2 if name == "no commit" else 3)


ANSWERS = {
    "a login page": Fault("", 99, body=HTML, whole=True),
    "a login page as an error": Fault("", 99, status=511, body=HTML),
    "JSON of another shape as an error": Fault("", 99, status=400, body=b'[["error"]]'),
    "JSON with a number as an error": Fault("", 99, status=418, body=b'{"error": 7}'),
    "an error with an endless text": Fault("", 99, status=404, body=b"x" * 65536, endless=True),
    "an error with escapes": Fault("", 99, status=400, headers={"X-Error-Message": "\x1b[2Jgone"}),
    "an address that is none": Fault("", 99, status=302, headers={"Location": "http://[::1"}),
    "an empty address": Fault("", 99, status=302, headers={"Location": ""}),
    "no address": Fault("", 99, status=302),
    "an address of another protocol": Fault("", 99, status=302, headers={"Location": "gopher://example.invalid/x"}),
    "a file as address": Fault("", 99, status=302, headers={"Location": "file:///etc/passwd"}),
    "a port that is none": Fault("", 99, status=302, headers={"Location": "http://127.0.0.1:99999999/"}),
    "an address of 60,000 letters": Fault("", 99, status=302, headers={"Location": "/x" * 30_000}),
    "itself again": Fault("", 99, status=307, headers={"Location": "/again"}),
    "no content": Fault("", 99, status=204),
    "not modified": Fault("", 99, status=304),
    "a range of 5,000 digits": Fault(
        "", 99, headers={"Content-Range": f"bytes 0-{'9' * 5000}/{'9' * 5000}"}
    ),
    "an endless body": Fault("", 99, body=b"x" * 65536, endless=True),
    "an encoding that nobody asked for": Fault("", 99, headers={"Content-Encoding": "gzip"}),
    "3 MB of headers": Fault("", 99, headers={"X-Junk": "y" * 3_000_000}),
}  # fmt: skip
HARMLESS = {("a range of 5,000 digits", API), ("a range of 5,000 digits", SMALL)}
"""What such a request has no use for."""


@pytest.mark.parametrize("request_", [API, SMALL, SHARD, STORAGE])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_of_every_request(
    hub: Hub, tmp_path: Path, name: str, request_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("csf_tool.hub.repo.RETRY_POLICY", RetryPolicy((0.001,)))
    fault = ANSWERS[name]
    hub.faults = [Fault(**vars(fault) | {"match": request_})]
    result = run("expand", f"hf://org/{NAME}", tmp_path / "out", "--jobs", 1)
    if (name, request_) in HARMLESS:
        assert result.exit_code == 0
    else:
        require_refused(result)
        assert "\x1b" not in result.stderr
        assert not list(tmp_path.glob("out/*.json"))


@pytest.mark.parametrize("request_", [API, SMALL, STORAGE])
def test_a_byte_now_and_then_is_no_answer(hub: Hub, request_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.hub.repo.RETRY_POLICY", RetryPolicy((0.001,), slow_seconds=0.2))
    hub.faults = [Fault(request_, 99, pause=0.05)]
    with pytest.raises(
        EnvironmentFault, match=r"no complete answer in 2 tries. The last error: \d+ bytes in 0 seconds"
    ):
        opened()


@pytest.mark.parametrize("request_", [API, SMALL, STORAGE])
def test_an_answer_that_never_begins(hub: Hub, request_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LONGEST_SILENCE", 0.2)
    monkeypatch.setattr(threads, "_LOOK_SECONDS", 0.05)
    over = threading.Event()

    def wait(request: Request) -> None:
        if request_ in request.path:
            over.wait(8)

    hub.before_answer = wait
    try:
        with pytest.raises(EnvironmentFault, match="has not started to answer within"):
            opened()
    finally:
        over.set()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"HF_HUB_DOWNLOAD_TIMEOUT": "abc"}, "abc"),
        ({"HF_HUB_ETAG_TIMEOUT": "1e9x"}, "1e9x"),
        ({"HF_TOKEN": "hf_\u00e4\u00f6"}, "the token"),
        ({"HF_TOKEN": "hf_\x01a"}, "the token"),
        ({"HF_ENDPOINT": "http://[::1"}, "HF_"),
        ({"HF_ENDPOINT": "nowhere"}, "HF_ENDPOINT"),
        ({"HF_ENDPOINT": "ftp://127.0.0.1"}, "HF_ENDPOINT"),
        ({"ALL_PROXY": "nonsense://x"}, "proxy"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(hub: Hub, tmp_path: Path, variables: dict[str, str], said: str) -> None:
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")} | variables
    code = "import sys; from csf_tool.cli import main; main()"
    line = [sys.executable, "-c", code, "stats", f"hf://org/{NAME}"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    assert "internal error" not in done.stderr
    assert said in done.stderr
    assert "hf_" not in done.stderr


@pytest.mark.parametrize("command", ["stats", "expand", "convert"])
@pytest.mark.parametrize("how", ["served", "in the cache"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", "generation_config.json"])
def test_a_small_file_that_is_not_the_listed_one_is_not_used(
    hub: Hub, tmp_path: Path, command: str, how: str, file: str
) -> None:
    if command == "stats" and file == "generation_config.json":
        pytest.skip("is not looked at")
    name = f"org/{NAME}" if command != "convert" else "org/nvfp4-csf-container"
    file = file if command != "convert" or file == "config.json" else "manifest.json"
    file = "metadata/config.json" if command == "convert" and file == "config.json" else file
    folder = hub.repositories[name].folder
    right = (folder / file).read_bytes()
    wrong = right[:-2] + b" \n" if right.endswith(b"\n") else right[:-1] + b" "
    assert wrong != right
    if how == "served":
        hub.faults = [Fault(f"/{file}", 99, body=wrong)]
    else:
        snapshot = Path(snapshot_download(name, allow_patterns=["*.json", "*/*.json"]))
        (snapshot / file).resolve().write_bytes(wrong)
    more = [tmp_path / "out"] if command != "stats" else []
    result = run(command, f"hf://{name}", *more, *(["--to", "hf"] if command == "convert" else []))
    require_refused(result, 1)
    assert f"csf-tool: {file}: git-sha1 of the file" in result.stderr
    assert not (tmp_path / "out" / file).exists()
    hub.faults = []
    if how == "served":  # the cache has not kept it
        assert run("stats", name).exit_code == 0


def test_one_shard_of_a_numbered_set_is_not_all_of_it(
    hub: Hub, copied: Copied, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(NAME)
    (folder / "model.safetensors.index.json").unlink()
    hub.add("org/numbered", folder)
    snapshot_download("org/numbered", allow_patterns=["config.json", "*-00001-*"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    result = run("stats", "org/numbered")
    require_refused(result)
    assert "the Hub cache has 1 of 3 shards and lacks model-00002-of-00003.safetensors, " in result.stderr
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    snapshot_download("org/numbered", allow_patterns=["*.safetensors"])
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "all of its shards are in the cache" in run("stats", "org/numbered").stderr


# Ctrl-C


def stalled(hub: Hub, match: str, seconds: float) -> threading.Event:
    """Let requests wait; the event tells of the first."""
    ready = threading.Event()

    def wait(request: Request) -> None:
        if match in request.path:
            ready.set()
            time.sleep(seconds)

    hub.before_answer = wait
    return ready


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("presses", [1, 3])
@pytest.mark.parametrize("how", ["stalled", "byte by byte"])
@pytest.mark.parametrize("request_", [API, SMALL, SHARD, STORAGE])
def test_an_interrupt_waits_for_no_answer(hub: Hub, tmp_path: Path, request_: str, how: str, presses: int) -> None:
    ready = stalled(hub, request_, 8 if how == "stalled" else 0)
    hub.faults = [Fault(request_, 99, pause=0.3)] if how != "stalled" else []
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
    line = [sys.executable, "-m", "csf_tool", "expand", f"hf://org/{NAME}", str(tmp_path / "out"), "--device", "cpu"]
    process = subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True)
    assert ready.wait(30)
    time.sleep(0.2)
    begun = time.monotonic()
    for _ in range(presses):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, stderr = process.communicate(timeout=30)
    took = time.monotonic() - begun
    assert (process.returncode, stderr) == (130, "csf-tool: interrupted; run the same command again to continue\n")
    print(f"{request_} {how} {presses}: {took:.3f} s")


def test_an_error_does_not_wait_for_other_answers(hub: Hub, tmp_path: Path) -> None:
    """One shard is refused; the others' answers never come."""

    def wait(request: Request) -> None:
        if STORAGE in request.path and "00001" not in request.path:
            time.sleep(45)

    hub.before_answer = wait
    hub.faults = [Fault("00001" + SHARD, 99, status=403)]
    environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path / "home")}
    line = [sys.executable, "-m", "csf_tool", "stats", f"hf://org/{NAME}"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, "403" in done.stderr) == (3, True)


def test_what_is_raised_is_ours(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens below while the Hub is asked."""
    for error in (ValueError("x"), KeyError("x"), RuntimeError("x"), UnicodeError("x"), AssertionError(), OSError("x")):
        monkeypatch.setattr("csf_tool.hub.ranges.get_session", lambda error=error: (_ for _ in ()).throw(error))
        with pytest.raises(CsfToolError, match="check HF_ENDPOINT"):
            opened()
