"""What a name means that nobody has typed carefully: addresses of pages, near names, hosts that do not resolve."""

import socket
from pathlib import Path

import pytest

from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.hub.errors import RetryPolicy
from csf_tool.hub.name import HubName, find_source
from csf_tool.hub.repo import HubRepo
from tests.commands import run, says
from tests.fixture_types import Copied
from tests.hub_server import Hub

SITE = "https://huggingface.co"
PAGES = {
    f"{SITE}/org/name": None,
    f"{SITE}/org/name/": None,
    f"{SITE}/org/name.git": None,
    f"{SITE}//org/name?library=vllm#usage": None,
    "https:/huggingface.co/org/name": None,
    "HTTPS://HuggingFace.co/org/name": None,
    "https://www.huggingface.co/org/name": None,
    "https://hf.co/org/name": None,
    "huggingface.co/org/name": None,
    "hf.co/org/name/tree/main": "main",
    f"{SITE}/org/name/tree/v1.1": "v1.1",
    f"{SITE}/org/name/tree/main/tensors": "main",
    f"{SITE}/org/name/tree/refs%2Fpr%2F7": "refs/pr/7",
    f"{SITE}/org/name/blob/refs/pr/7/config.json": "refs/pr/7",
    f"{SITE}/org/name/blob/main/model-00001-of-00003.safetensors": "main",
    f"{SITE}/org/name/resolve/abc123/model.safetensors?download=true": "abc123",
    f"{SITE}/org/name/raw/main/config.json": "main",
    f"{SITE}/org/name/commits/main": "main",
    f"{SITE}/org/name/commit/abc123": "abc123",
    f"{SITE}/org/name/discussions/3": None,
    f"{SITE}/api/models/org/name/revision/v2": "v2",
    "org/name/tree/main": "main",
    "org/name/blob/main/config.json": "main",
    "org/name/resolve/v1/model.safetensors?download=true": "v1",
    "  org/name ": None,
    "org/name@v1\n": "v1",
    " https://huggingface.co/org/name ": None,
    "hf://org/name/": None,
}


@pytest.mark.parametrize("text", PAGES)
def test_pages(text: str) -> None:
    assert HubName.parse(text) == HubName("org/name", PAGES[text])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SITE}/datasets/org/name", "is a data set, not a model"),
        (f"{SITE}/spaces/org/name", "is a space"),
        (f"{SITE}/org", "is not a page of a model's repository"),
        (f"{SITE}/", "is not a page of a model's repository"),
        ("https://example.com/org/name", "is not on the Hub: .*HF_ENDPOINT=https://example.com"),
        ("https://[::1/org/name", "is not the address of a page"),
        (f"{SITE}/../../etc", "is not a page|is not the name of a repository"),
    ],
)
def test_pages_of_nothing(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find_source(text, lambda _: None)


def test_pages_of_a_mirror(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for endpoint in (hub.endpoint, f"{hub.endpoint}/"):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        source = find_source(f"{hub.endpoint}/org/nvfp4-dense/blob/main/config.json", lambda _: None)
        assert str(source).startswith("org/nvfp4-dense@")
    monkeypatch.setenv("HF_ENDPOINT", "https://mirror.example/hf")
    assert HubName.parse("https://mirror.example/hf/org/name") == HubName("org/name")


def test_every_command_takes_a_page(hub: Hub, copied: Copied, tmp_path: Path) -> None:
    page, folder = f"{SITE}/org/nvfp4-csf-hf/tree/main", copied("nvfp4-csf-hf")
    dense = f"{SITE}/org/nvfp4-dense"
    for words in (
        ["stats", page],
        ["plan", f"{page} "],
        ["identity", page],
        ["verify", page, "--against", dense],
        ["verify", folder, "--hub", page],
        ["expand", page, tmp_path / "out"],
        ["compress", dense, tmp_path / "csf"],
    ):
        result = run(*words)
        assert result.exit_code == 0, result.output


def test_the_hub_is_announced_before_it_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    hub.before_answer = lambda _: said.append("asked")
    assert isinstance(find_source("org/nvfp4-dense", said.append), HubRepo)
    assert said[:2] == ["asking the Hub for org/nvfp4-dense", "asked"]
    del said[:]
    find_source("hf://org/nvfp4-dense", said.append)
    assert set(said) == {"asked"}


@pytest.mark.parametrize("typed", ["models/qwen3", "model/qwen", "Models/Qwen", "models/qwn"])
def test_a_near_name_here_keeps_the_hub_out(
    hub: Hub, copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    copied("nvfp4-csf-hf", "models/qwen")
    monkeypatch.chdir(tmp_path)
    result = run("stats", typed)
    assert result.exit_code == 2
    says(result, f"{typed}: no such file or folder; did you mean models/qwen? (hf://{typed} asks the Hub)")
    assert not hub.requests


def test_other_names_beside_a_folder_ask_the_hub(
    hub: Hub, copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied("nvfp4-csf-hf", "org/quite-another")
    copied("nvfp4-csf-hf", "org/nvfp4-csf-hf")
    monkeypatch.chdir(tmp_path)
    assert isinstance(find_source("org/mxfp4-dense", lambda _: None), HubRepo)
    assert isinstance(find_source("org/nvfp4-csf-hf@main", lambda _: None), HubRepo)  # a revision of what is here


def test_blanks_around_a_path(copied: Copied, tmp_path: Path) -> None:
    folder = copied("nvfp4-csf-hf")
    assert run("stats", f"{folder} ").exit_code == 0
    spaced = folder.rename(tmp_path / " blank ")
    assert find_source(str(spaced), lambda _: None) == spaced


@pytest.mark.parametrize(("answer", "tries"), [(socket.EAI_NONAME, 1), (socket.EAI_AGAIN, 2)])
def test_a_host_that_does_not_resolve(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: int, tries: int
) -> None:
    asked: list[str] = []

    def lookup(host: str, *_: object, **__: object) -> object:
        asked.append(host)
        raise socket.gaierror(answer, "not known")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://name:password@hub.invalid")
    monkeypatch.setattr("csf_tool.hub.repo.RETRY_POLICY", RetryPolicy(waits=(0.001,) * 5))
    monkeypatch.setattr("socket.getaddrinfo", lookup)
    with pytest.raises(EnvironmentFault, match=r"no address is known for hub.invalid \(not known\)") as fault:
        find_source("org/name", lambda _: None)
    assert len(asked) == tries
    assert "password" not in str(fault.value)


def test_a_run_waits_for_a_name_service_that_fails(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_source("hf://org/nvfp4-csf-hf", lambda _: None)
    assert isinstance(source, HubRepo)
    failures, lookup = [socket.gaierror(socket.EAI_AGAIN, "again")] * 3, socket.getaddrinfo

    def failing(*where: object, **how: object) -> object:
        if failures:
            raise failures.pop()
        return lookup(*where, **how)  # type: ignore[arg-type]

    monkeypatch.setattr("socket.getaddrinfo", failing)
    monkeypatch.setattr("huggingface_hub.utils._http._GLOBAL_CLIENT", None, raising=False)  # or it has connections
    source.prepare(["model-00001-of-00003.safetensors"])
    assert source.remote("model-00001-of-00003.safetensors") is not None


@pytest.mark.parametrize("scheme", ["hf://", "HF://", "hf:", "hf:/", "Hf:///"])
def test_the_scheme_as_it_is_typed(hub: Hub, scheme: str) -> None:
    said: list[str] = []
    source = find_source(f"{scheme}org/nvfp4-dense", said.append)
    assert isinstance(source, HubRepo)
    assert str(source).startswith("org/nvfp4-dense@")
    assert said == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file:///tmp/models/x", "file:///tmp/models/x: give the path itself: /tmp/models/x"),
        ("s3://bucket/x", "s3://bucket/x: s3: is not an address that csf-tool reads"),
        ("gs://bucket/x/", "gs://bucket/x/: gs: is not an address that csf-tool reads"),
        ("ssh://host/x", "ssh://host/x: ssh: is not an address that csf-tool reads"),
        ("org/name@", "org/name@: names no revision after the @ (a variable that is not set?)"),
        ("hf://org/name@ ", "hf://org/name@: names no revision after the @ (a variable that is not set?)"),
        ("org/name/model.safetensors", "org/name/model.safetensors: no such file or folder; of a repository"),
    ],
)
def test_names_that_lead_nowhere_are_not_asked_for(hub: Hub, name: str, said: str) -> None:
    for command in ("stats", "verify", "ls"):
        result = run(command, name)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"csf-tool: {said}")
        assert result.stderr.count("\n") == 1
    assert hub.requests == []


def test_a_repository_of_another_format_is_named(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "model.gguf").write_bytes(b"GGUF")
    hub.add("org/gguf", tmp_path / "gguf")
    says(run("stats", "hf://org/gguf"), "it has 1 GGUF file (llama.cpp): csf-tool reads safetensors only")
