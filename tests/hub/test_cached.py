"""A Hub cache that lacks shards: every command says which, what is there, and what fetches the rest."""

import os
import shutil
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download

from csf_tool.disk.headers import SHARD_SUFFIX
from tests.commands import run
from tests.hub_server import Fault, Hub

CSF, CONTAINER = "org/nvfp4-csf-hf", "org/nvfp4-csf-container"
ONE, TWO, THREE = (f"model-0000{i}-of-00003{SHARD_SUFFIX}" for i in (1, 2, 3))
NEWER = "b" * 40


@pytest.fixture(autouse=True)
def _usual_cache(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setattr("csf_tool.hub.errors.RetryPolicy.waits", ())


def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def partly(name: str, *patterns: str, revision: str | None = None) -> Path:
    return Path(snapshot_download(name, revision=revision, allow_patterns=["*.json", *patterns]))


def cut_off(hub: Hub) -> Path:
    """The snapshot that a download leaves whose last shard broke off."""
    hub.faults = [Fault(f"/storage/{CSF}/{THREE}", 99, sent=70_000)]
    with pytest.raises(Exception):  # noqa: B017 (of the HTTP client, which depends on huggingface_hub)
        snapshot_download(CSF, max_workers=1)
    hub.faults = []
    return next((Path(os.environ["HF_HUB_CACHE"])).glob(f"models--{CSF.replace('/', '--')}/snapshots/*"))


def lacks(hub: Hub, there: str, names: str, name: str = CSF, commit: str = "") -> str:
    fetch = f"`hf download {name} --revision {commit or hub.repositories[name].commit}` fetches what is missing"
    return f"the Hub cache has {there} shards and lacks {names}: {fetch}"


COMMANDS = {
    "stats": ("stats", "{}"),
    "verify": ("verify", "{}", "--device", "cpu"),
    "plan": ("plan", "{}"),
    "identity": ("identity", "{}", "--hash"),
    "expand": ("expand", "{}", "{}.out", "--device", "cpu"),
    "convert": ("convert", "{}", "{}.out", "--to", "container"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_the_shards_that_a_snapshot_lacks(hub: Hub, tmp_path: Path, command: str) -> None:
    snapshot = partly(CSF, "*-00002-*")
    words = [word.replace("{}.out", str(tmp_path / "out")).format(snapshot) for word in COMMANDS[command]]
    result = run(*words)
    assert result.exit_code in (1, 2)
    assert lacks(hub, "1 of 3", f"{ONE}, {THREE}") in " ".join((result.stdout + result.stderr).split())
    assert not hub.asked("/storage/", ok=False)[1:]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "identity"])
def test_every_command_names_them_of_a_name_offline(
    hub: Hub, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partly(CSF, "*-00002-*")
    offline(monkeypatch)
    words = [word.replace("{}.out", str(tmp_path / "out")).format(CSF) for word in COMMANDS[command]]
    result = run(*words)
    assert result.exit_code == 3
    assert f"{CSF}@main: the network is off, because HF_HUB_OFFLINE is set: " in result.stderr
    assert lacks(hub, "1 of 3", f"{ONE}, {THREE}") in result.stderr
    assert result.stderr.count("\n") <= 2  # one may say that there is no GPU


def test_a_container_of_which_there_are_the_documents(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = partly(CONTAINER)
    fetch = f"`hf download {CONTAINER} --revision {hub.repositories[CONTAINER].commit}` fetches what is missing"
    said = f"all shards that manifest.json lists are missing, such as tensors/{ONE}; {fetch}"
    assert said in run("stats", snapshot).stderr
    offline(monkeypatch)
    assert said in run("stats", CONTAINER).stderr


def test_a_download_that_broke_off(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cut_off(hub)
    there = sum((snapshot / name).exists() for name in (ONE, TWO, THREE))
    names = ", ".join(name for name in (ONE, TWO, THREE) if not (snapshot / name).exists())
    if there:
        assert lacks(hub, f"{there} of 3", names) in run("stats", snapshot).stdout + run("stats", snapshot).stderr
    offline(monkeypatch)
    assert f"hf download {CSF} --revision {snapshot.name}` fetches what is missing" in run("stats", CSF).stderr


def test_links_whose_blobs_are_gone(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Path(snapshot_download(CSF))
    for name in (ONE, TWO):
        (snapshot / name).resolve().unlink()
    assert lacks(hub, "1 of 3", f"{ONE}, {TWO}") in run("expand", snapshot, snapshot.parent / "out").stderr
    one = run("stats", snapshot / ONE)
    assert (one.exit_code, f"no such file or folder: `hf download {CSF} --revision" in one.stderr) == (2, True)
    offline(monkeypatch)
    assert lacks(hub, "1 of 3", f"{ONE}, {TWO}") in run("stats", CSF).stderr


def test_an_unfinished_blob_alone(hub: Hub) -> None:
    snapshot = partly(CSF, "*-00002-*")
    for path in snapshot.iterdir():
        path.unlink()
    (snapshot.parent.parent / "blobs" / f"{'c' * 64}.incomplete").write_bytes(b"x")
    result = run("stats", snapshot)
    said = "an incomplete download (1 unfinished file, ccc"
    assert said in result.stderr
    assert f"`hf download {CSF} --revision {snapshot.name}` fetches what is missing" in result.stderr
    shutil.rmtree(snapshot.parent)
    assert f": `hf download {CSF}` fetches what is missing" in run("stats", snapshot.parent.parent).stderr


def test_another_revision_that_has_all(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot_download(CSF)
    first = hub.repositories[CSF].commit
    hub.repositories[CSF].refs |= {"main": NEWER, NEWER: NEWER}
    snapshot = partly(CSF, "*-00002-*")
    assert snapshot.name == NEWER
    said = f"{lacks(hub, '1 of 3', f'{ONE}, {THREE}', commit=NEWER)}; the cache has all shards of {CSF}@{first}"
    assert said in run("expand", snapshot, snapshot.parent / "out").stderr
    offline(monkeypatch)
    assert said in run("stats", CSF).stderr
    assert run("stats", f"{CSF}@{first}").exit_code == 0
    unknown = run("stats", f"{CSF}@v2").stderr
    assert (
        f"the Hub cache has nothing of v2: unset HF_HUB_OFFLINE, or fetch it first with `hf download {CSF}" in unknown
    )
    assert f" --revision v2`; the cache has all shards of {CSF}@{first} (there is no local" in unknown


def test_a_revision_of_which_the_cache_has_but_the_name(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = partly(CSF)
    shutil.rmtree(snapshot.parent)
    offline(monkeypatch)
    said = (
        f"the Hub cache knows main as {snapshot.name}, but has no file of it: unset HF_HUB_OFFLINE, or fetch it first"
    )
    assert f"{said} with `hf download {CSF}`" in run("stats", CSF).stderr


def test_a_machine_without_a_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    partly(CSF, "*-00002-*")
    snapshot = Path(snapshot_download(CONTAINER, ignore_patterns=["build-contract.json"]))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    result = run("stats", CSF)
    assert (result.exit_code, "no complete answer in " in result.stderr) == (3, True)
    assert lacks(hub, "1 of 3", f"{ONE}, {THREE}") in result.stderr
    assert "HF_HUB_OFFLINE" not in result.stderr
    result = run("stats", CONTAINER)
    if result.exit_code:
        assert f"the Hub cache has all of its shards: to use only these, set HF_HUB_OFFLINE=1 or give {snapshot}" in (
            result.stderr
        )


def test_a_cache_that_is_not_the_usual_one(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    snapshot = Path(snapshot_download(CSF, cache_dir=tmp_path / "a cache", allow_patterns=["*.json", "*-00002-*"]))
    result = run("expand", snapshot, tmp_path / "out")
    command = f"`hf download {CSF} --revision {snapshot.name} --cache-dir '{tmp_path}/a cache'` fetches what is missing"
    assert command in result.stderr


def test_what_the_hub_answers_is_said_without_the_cache(hub: Hub) -> None:
    partly(CSF, "*-00002-*")
    hub.faults = [Fault(f"/api/models/{CSF}", 99, status=403)]
    result = run("stats", CSF)
    assert "access is refused (403" in result.stderr
    assert "cache" not in result.stderr
