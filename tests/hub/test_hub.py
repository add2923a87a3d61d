"""Checkpoints on the Hub: what is asked for, what is read, what the cache is used for, and what each refusal says."""

import json
import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from huggingface_hub import snapshot_download
from hypothesis import given
from hypothesis import strategies as st

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.checkpoint.problems import warnings
from csf_tool.checkpoint.side_files import carried_files
from csf_tool.errors import CheckpointError, CsfToolError, EnvironmentFault, UsageError
from csf_tool.hub import ranges as hub_ranges
from csf_tool.hub import remote_file
from csf_tool.hub.errors import HubRef, RetryPolicy
from csf_tool.hub.name import HubName, find_source
from csf_tool.hub.ranges import HubFile, Ranges
from csf_tool.hub.remote_file import BLOCK_BYTES, HEAD_BYTES, ReadAhead, RemoteFile, coalesced
from csf_tool.hub.repo import HubRepo
from csf_tool.look.stats import collect_stats
from tests import building
from tests.fixture_types import Copied, Sample
from tests.hub_server import TOKEN, Fault, Hub, Request


def opened(argument: str) -> Checkpoint:
    source = find_source(argument, lambda _: None)
    assert isinstance(source, HubRepo)
    return open_checkpoint(source)


def headers_in(folder: Path) -> int:
    """Bytes of all headers of the shards in a folder, as their first eight bytes say."""
    return sum(8 + int.from_bytes(p.read_bytes()[:8], "little") for p in folder.rglob("*.safetensors"))


# What a name is


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("org/name", "org/name", None),
        ("org/name@v1.0", "org/name", "v1.0"),
        ("hf://org/name", "org/name", None),
        ("hf://org/Qwen3.8-Flash_x@refs/pr/3", "org/Qwen3.8-Flash_x", "refs/pr/3"),
    ],
)
def test_names(text: str, repo: str, revision: str | None) -> None:
    assert HubName.parse(text) == HubName(repo, revision)


def test_a_name_that_no_repository_can_have(hub: Hub) -> None:
    with pytest.raises(UsageError, match=r"org/na--me@main: cannot be the name of a repository or revision"):
        opened("org/na--me")


@pytest.mark.parametrize("text", ["hf://name", "hf://a/b/c", "hf://../name", "hf://org/..", "hf://org/name@", "hf://"])
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError, match="give org/name"):
        find_source(text, lambda _: None)


@pytest.mark.parametrize("text", ["name", "./org/name", "a/b/c", "/org/name", "org/model.safetensors", "../name"])
def test_what_can_only_be_a_path(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_source(text, lambda _: None) == Path(text)


def test_a_folder_here_wins_silently(hub: Hub, copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied("nvfp4-csf-hf", "org/mxfp4-dense")
    monkeypatch.chdir(folder.parent.parent)
    said: list[str] = []
    assert find_source("org/mxfp4-dense", said.append) == Path("org/mxfp4-dense")
    assert said == []
    assert not hub.asked(ok=False)
    assert opened("hf://org/mxfp4-dense").kind == "Hugging Face layout, dense MXFP4"


# Looking at one


@pytest.mark.parametrize(
    "name", ["nvfp4-csf-hf", "nvfp4-csf-container", "mxfp4-csf-container", "nvfp4-dense", "nvfp4-ct-dense"]
)
def test_it_is_the_checkpoint_that_a_folder_would_be(hub: Hub, sample: Sample, name: str) -> None:
    remote, local = collect_stats(opened(f"org/{name}")), collect_stats(open_checkpoint(sample(name)))
    assert remote.path == f"org/{name}@{hub.repositories[f'org/{name}'].commit}"
    local.path = remote.path
    assert remote == local
    shards = list(sample(name).rglob("*.safetensors"))
    assert len(hub.asked("/storage/")) == len(shards)  # no header of these is longer than what is read at first
    assert hub.sent() == len(shards) * HEAD_BYTES
    assert len(hub.asked("resolve", ok=False)) - len(hub.asked("resolve")) == len(shards)  # one redirect each


def test_a_single_file_goes_before_the_index_of_a_variant(hub: Hub, sample: Sample, tmp_path: Path) -> None:
    """As in a folder, though the file itself is not here."""
    variant, folder = "model.safetensors.index.fp8.json", tmp_path / "two"
    folder.mkdir()
    shutil.copy(sample("nvfp4-csf-hf") / "model-00001-of-00003.safetensors", folder / "model.safetensors")
    (folder / variant).write_text('{"weight_map": {"a": "other.safetensors"}}')
    hub.add("org/two", folder)
    for checkpoint in (opened("org/two"), open_checkpoint(folder)):
        assert [shard.name for shard in checkpoint.shards] == ["model.safetensors"]
        assert (checkpoint.index, checkpoint.index_name, checkpoint.lacking) == (None, None, [])
        assert [file.name for file in carried_files(checkpoint).files] == [variant]


def test_a_header_takes_two_ranges_of_exactly_its_bytes(hub: Hub, tmp_path: Path) -> None:
    names = [f"model.layers.0.mlp.experts.{i}.a_projection_with_a_long_name.weight" for i in range(4000)]
    for shard in ("a", "b"):
        tensors = [building.Tensor(f"{shard}.{name}", "U8", (2,), b"xy") for name in names]
        building.write_shard(
            tmp_path / "big" / f"{shard}.safetensors", [*tensors, building.layer(0, building.NVFP4)[0]]
        )
        with (tmp_path / "big" / f"{shard}.safetensors").open("r+b") as file:
            file.truncate(8 + int.from_bytes(file.read(8), "little") + 8010)
    hub.add("org/big", tmp_path / "big")
    assert sum(len(shard.header) for shard in opened("org/big").shards) == 8002
    headers = headers_in(tmp_path / "big")
    assert headers > 10 * HEAD_BYTES
    assert headers <= hub.sent() <= 1.1 * headers
    assert all(len(hub.asked(f"/storage/org/big/{shard}")) == 2 for shard in ("a", "b"))


@pytest.mark.parametrize("length", [HEAD_BYTES - 8, HEAD_BYTES - 7, 99_993, 99_994, 100_000, 100_001])
def test_a_header_of_any_length(hub: Hub, tmp_path: Path, length: int) -> None:
    header = json.dumps({"x": building.entry("U8", [4], 0, 4)}).encode()
    path = tmp_path / "odd" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(building.raw_file(header.ljust(length), b"abcd"))
    hub.add("org/odd", path.parent)
    checkpoint = opened("org/odd")
    assert [(t.name, t.end) for t in checkpoint.shards[0].header] == [("x", 8 + length + 4)]
    assert checkpoint.problems == []
    assert hub.sent() <= max(HEAD_BYTES, 8 + length)


def test_an_unknown_dtype_is_warned_of_on_the_hub_as_here(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "new"
    building.write_shard(folder / "model.safetensors", [building.Tensor("odd", "F99", (4,), b"abcd")])
    hub.add("org/new", folder)
    here = open_checkpoint(folder).problems
    assert ["F99" in problem.problem for problem in here] == [True]
    assert opened("org/new").problems == here


def test_all_of_a_run_is_one_commit(hub: Hub, copied: Copied, sample: Sample) -> None:
    """main moves to another checkpoint just after it was looked up: what is read is still the first."""
    first = hub.repositories["org/nvfp4-csf-hf"]

    def move(request: Request) -> None:
        if "/resolve/" in request.path:
            first.refs["main"] = "f" * 40

    hub.before_answer = move
    assert opened("org/nvfp4-csf-hf").label == f"org/nvfp4-csf-hf@{first.commit}"
    assert all(first.commit in r.path for r in hub.asked("resolve", ok=False))
    assert opened(f"org/nvfp4-csf-hf@{first.commit}").label == f"org/nvfp4-csf-hf@{first.commit}"


def test_a_token_goes_to_the_hub_and_not_to_its_storage(
    hub: Hub, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("org/mine", sample("nvfp4-csf-hf"), private=True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert len(opened("org/mine").planes) == 36
    assert all(r.authorized for r in hub.asked("org/mine", ok=False) if "/storage/" not in r.path)
    assert hub.asked("/storage/org/mine")
    assert not any(r.authorized for r in hub.asked("/storage/", ok=False))


def test_names_that_lead_out_of_the_repository_are_left_out(hub: Hub, copied: Copied) -> None:
    folder = copied("nvfp4-dense")
    hub.add("org/evil", folder).other |= {"../../evil.json": b"{}", "a\\b.safetensors": b""}
    checkpoint = opened("org/evil")
    assert [p.file for p in warnings(checkpoint.problems)] == ["../../evil.json", "a\\b.safetensors"]
    assert len(checkpoint.shards) == 3
    assert not hub.asked("evil.json", ok=False)


def test_an_index_that_lists_a_shard_the_hub_does_not_have(hub: Hub, copied: Copied) -> None:
    folder = copied("nvfp4-csf-hf")
    (folder / "model-00002-of-00003.safetensors").unlink()
    hub.add("org/lacking", folder)
    problems = [str(p) for p in opened("org/lacking").problems]
    assert problems[0] == "model-00002-of-00003.safetensors: is missing, or is a link to a missing file"


# The cache


def test_what_the_cache_has_is_not_asked_for(hub: Hub, sample: Sample) -> None:
    snapshot_download("org/nvfp4-csf-hf")
    del hub.requests[:]
    said: list[str] = []
    source = find_source("org/nvfp4-csf-hf", said.append)
    checkpoint = open_checkpoint(source)
    commit = hub.repositories["org/nvfp4-csf-hf"].commit
    assert checkpoint.label == f"org/nvfp4-csf-hf@{commit}"
    [line] = said
    assert line.startswith(f"{checkpoint.label}: all of its shards are in the cache, so csf-tool does not ask the Hub")
    assert (len(checkpoint.planes), checkpoint.is_remote, hub.requests) == (36, False, [])


def test_a_shard_in_the_cache_is_not_fetched(hub: Hub) -> None:
    snapshot_download("org/nvfp4-csf-container", allow_patterns=["tensors/*-00001-*", "tensors/*-00002-*"])
    del hub.requests[:]
    checkpoint = opened("org/nvfp4-csf-container")
    assert [bool(shard.remote) for shard in checkpoint.shards] == [False, False, True]
    assert {r.path for r in hub.asked("/storage/")} == {
        "/storage/org/nvfp4-csf-container/tensors/model-00003-of-00003.safetensors?signature=1"
    }


def test_some_shards_of_many_in_the_cache_are_not_all_of_it(hub: Hub) -> None:
    """Nothing there says how many there are: the index came after the shards, or never."""
    snapshot_download("org/nvfp4-csf-hf", allow_patterns=["config.json", "*-00001-*"])
    checkpoint = opened("org/nvfp4-csf-hf")
    assert [bool(shard.remote) for shard in checkpoint.shards] == [False, True, True]
    assert checkpoint.problems == []


def test_looking_leaves_nothing_that_passes_for_a_download(hub: Hub) -> None:
    assert opened("org/nvfp4-csf-hf").is_remote
    assert opened("org/nvfp4-csf-hf").is_remote


def test_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot_download("org/nvfp4-csf-hf")
    snapshot_download("org/mxfp4-csf-container", allow_patterns=["*.json", "*-00001-*"])
    del hub.requests[:]
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not opened("org/nvfp4-csf-hf").is_remote
    said = {
        "org/mxfp4-csf-container": r"has 1 of \d shards and lacks tensors/model-00002",
        "org/nvfp4-dense": "has nothing of main: unset HF_HUB_OFFLINE, or",
    }
    for name, state in said.items():
        with pytest.raises(
            EnvironmentFault, match=f"{name}@main: the network is off, because HF_HUB_OFFLINE is set.*{state}"
        ):
            opened(name)
    assert not hub.requests


# Ranges


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 3 * BLOCK_BYTES), st.integers(0, BLOCK_BYTES)), max_size=12), st.integers(0, 99)
)
def test_blocks_cover_the_ranges_and_little_else(pairs: list[tuple[int, int]], gap: int) -> None:
    ranges = [(begin, begin + nbytes) for begin, nbytes in pairs]
    blocks = coalesced(ranges, gap)
    assert all(0 < end - begin <= BLOCK_BYTES for begin, end in blocks)
    assert all(a[1] <= b[0] for a, b in pairwise(blocks))
    edges = {0, *(edge for r in ranges for edge in r), *(edge for b in blocks for edge in b)}
    for at in edges:
        wanted = any(begin <= at < end for begin, end in ranges)
        near = any(begin - gap <= at < end + gap for begin, end in ranges)
        covered = any(begin <= at < end for begin, end in blocks)
        assert covered >= wanted
        assert near >= covered


@pytest.fixture
def served(hub: Hub, tmp_path: Path) -> tuple[bytes, RemoteFile]:
    """A file of random bytes, and the same on the Hub."""
    data = random.Random(5).randbytes(700_000)
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "x.safetensors").write_bytes(data)
    commit = hub.add("org/served", tmp_path / "served").commit
    ranges = Ranges(HubRef("org/served", commit, hub.endpoint), RetryPolicy((0.001, 0.001)))
    return data, RemoteFile(HubFile("x.safetensors", len(data), building.sha256(data), ""), ranges)


@pytest.mark.parametrize("order", ["as they lie", "two ends by turns", "any"])
def test_reading_ahead_gives_the_bytes_and_asks_once(
    hub: Hub, served: tuple[bytes, RemoteFile], monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Blocks and room are as small beside this file as the real ones beside a real shard."""
    data, remote = served
    for name, value in {"BLOCK_BYTES": 40_000, "GAP_BYTES": 1000, "AHEAD_BYTES": 100_000, "AHEAD_BLOCKS": 4}.items():
        monkeypatch.setattr(remote_file, name, value)
    monkeypatch.setattr(ReadAhead.__init__, "__defaults__", (1000,))
    wanted = [(at, at + 3000) for at in range(0, 690_000, 7000)]
    if order == "two ends by turns":
        wanted = [r for pair in zip(wanted[:49], wanted[49:], strict=False) for r in pair]
    elif order == "any":
        random.Random(1).shuffle(wanted)
    with remote.open() as reader:
        reader.expect(wanted)
        for begin, end in wanted:
            assert reader.read(begin, end) == data[begin:end]
    assert hub.sent() == sum(end - begin for begin, end in wanted)
    assert len(hub.asked("/storage/")) == len(wanted)
    assert len(hub.asked("resolve", ok=False)) <= hub_ranges.CONNECTIONS


def test_neighbours_are_one_request(hub: Hub, served: tuple[bytes, RemoteFile]) -> None:
    data, remote = served
    with remote.open() as reader:
        reader.expect([(at, at + 1000) for at in range(0, 700_000, 50_000)])
        assert all(reader.read(at, at + 1000) == data[at : at + 1000] for at in range(0, 700_000, 50_000))
        assert reader.read(123, 456) == data[123:456]
    assert [r.range for r in hub.asked("/storage/")] == ["bytes=0-650999"]


def test_chunks_are_the_file(hub: Hub, served: tuple[bytes, RemoteFile], monkeypatch: pytest.MonkeyPatch) -> None:
    data, remote = served
    monkeypatch.setattr(remote_file, "BLOCK_BYTES", 100_000)
    with remote.open() as reader:
        assert b"".join(reader.chunks(11, len(data))) == data[11:]
        with pytest.raises(CheckpointError, match="ends at byte 700000, 1 bytes short"):
            list(reader.chunks(0, len(data) + 1))
        with pytest.raises(CheckpointError, match="ends at byte 700000, 2 bytes short"):
            reader.read(len(data) - 1, len(data) + 2)
    assert hub.sent() == len(data) - 11


# What may pass is tried again


@pytest.mark.parametrize(
    "fault",
    [
        Fault("/storage/", sent=1000),
        Fault("/storage/", times=2, status=503),
        Fault("/storage/", status=429, headers={"Retry-After": "0"}),
        Fault("/resolve/", status=500),
        Fault("/storage/", declared=-1),
        Fault("/storage/", declared=1),
    ],
    ids=str,
)
def test_a_fault_that_passes(hub: Hub, served: tuple[bytes, RemoteFile], fault: Fault) -> None:
    data, remote = served
    hub.faults.append(fault)
    assert remote.open().read(5, 600_000) == data[5:600_000]
    assert fault.times == 0


def test_a_server_is_given_the_time_it_asks_for(
    hub: Hub, served: tuple[bytes, RemoteFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    hub.faults.append(Fault("/storage/", status=429, headers={"Retry-After": "17"}))
    hub.faults.append(Fault("/resolve/", status=429, headers={"RateLimit": '"resolvers";r=0;t=41'}))
    hub.faults.append(Fault("/storage/", status=503))
    ranges = Ranges(served[1].ranges._ref, RetryPolicy((0.25, 0.5, 1, 2), longest_wait=60))
    monkeypatch.setattr(ranges.cancel, "wait", slept.append)
    assert ranges.fetch(served[1].file, 0, 9) == served[0][:9]
    assert slept == [41, 17, 1]


def test_an_address_that_has_run_out_is_asked_for_again(hub: Hub, served: tuple[bytes, RemoteFile]) -> None:
    data, remote = served
    reader = remote.open()
    assert reader.read(0, 10) == data[:10]
    hub.faults.append(Fault("/storage/", status=403))
    assert reader.read(10, 20) == data[10:20]
    assert [r.status for r in hub.asked("x.safetensors", ok=False)] == [302, 206, 403, 302, 206]


# What does not pass is said


REFUSALS = {
    "no repository, logged in": (
        "org/nowhere", None, UsageError, r"no such repository on http://127.* check the name, or log in"
    ),
    "no revision": ("org/nvfp4-dense@v9", None, UsageError, r"org/nvfp4-dense@v9: the repository has no such branch"),
    "gated": (
        "org/nvfp4-dense",
        Fault("-of-00003.safetensors", 99, 403, headers={"X-Error-Code": "GatedRepo"}),  # what is small can be read
        EnvironmentFault,
        r"is gated: accept its conditions at http://127.*/org/nvfp4-dense, then log in \(`hf auth login`",
    ),
    "forbidden": (
        "org/nvfp4-dense",
        Fault("/api/models/org", 99, 403, headers={"X-Error-Message": "Your network is blocked"}),
        EnvironmentFault,
        r"access is refused \(403: Your network is blocked",
    ),
    "bad token": (
        "org/nvfp4-dense",
        Fault("/api/models/org", 99, 401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}),
        EnvironmentFault,
        r"no such repository, or it is private, .* \(401\): .* log in \(`hf auth login`",
    ),
    "too many requests, for long": (
        "org/nvfp4-dense",
        Fault("/api/models/org", 99, 429, headers={"Retry-After": "3600"}),
        EnvironmentFault,
        r"too many requests \(429\) in 1 try: run the command again in 3600 seconds",
    ),
    "too many requests for the listing": (
        "org/nvfp4-dense",
        Fault("blobs", 99, 429, headers={"Retry-After": "1"}),
        EnvironmentFault,
        r"too many requests \(429\) in 4 tries: run the command again in 1 seconds",
    ),
    "too many requests, again and again": (
        "org/nvfp4-dense",
        Fault("/storage/", 99, 429),
        EnvironmentFault,
        r"model-0000\d-of-00003.safetensors: too many requests \(429\) in 4 tries: run the command again later",
    ),
    "server down": (
        "org/nvfp4-dense",
        Fault("/api/models/org", 99, 503),
        EnvironmentFault,
        r"the server failed 4 times, last with status 503: run the command again later",
    ),
    "connections dropped": (
        "org/nvfp4-dense",
        Fault("/storage/", 99, sent=100),
        EnvironmentFault,
        r"no complete answer in 4 tries. The last error: .*: check the network, the proxy and HF_ENDPOINT",
    ),
    "short answers": (
        "org/nvfp4-dense",
        Fault("/storage/", 99, declared=-7),
        EnvironmentFault,
        r"no complete answer in 4 tries. The last error: 65529 bytes arrived for a range of 65536",
    ),
    "Range ignored": (
        "org/nvfp4-dense",
        Fault("/storage/", 99, whole=True),
        EnvironmentFault,
        r"localhost ignores Range: it answers a request for 65536 bytes with the whole file .*`hf download`",
    ),
    "another range": (
        "org/nvfp4-dense",
        Fault("/storage/", 99, headers={"Content-Range": "bytes 1-65536/1008776"}),
        EnvironmentFault,
        r"the answer to a request for bytes 0-65535 is bytes 1-65536/1008776",
    ),
    "another size": (
        "org/nvfp4-dense",
        Fault("/storage/", 99, headers={"Content-Range": "bytes 0-65535/9999999"}),
        EnvironmentFault,
        r"changed between two requests \(it has 9999999 bytes now, but was listed with \d+\): start again",
    ),
    "another file behind the link": (
        "org/nvfp4-dense",
        Fault("-of-00003.safetensors", 99, 302, headers={"X-Linked-ETag": '"abc"', "Location": "/storage/x"}),
        EnvironmentFault,
        r"changed between two requests \(X-Linked-E[tT]ag is \"abc\", but the listing has [0-9a-f]{64}\)",
    ),
    "listed and not there": (
        "org/nvfp4-dense",
        Fault("-00002-of-00003", 99, 404, headers={"X-Error-Code": "EntryNotFound"}),
        CheckpointError,
        r"model-00002-of-00003.safetensors: the Hub lists the file, but answers that it does not exist",
    ),
    "redirects in circles": (
        "org/nvfp4-dense",
        Fault("/storage/", 99, 302, headers={"Location": "/storage/again"}),
        EnvironmentFault,
        "redirected more than 8 times",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_line_with_its_remedy(hub: Hub, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, fault, kind, said = REFUSALS[case]
    if "logged in" in case:
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.faults += [fault] if fault else []
    with pytest.raises(CsfToolError, match=said) as raised:
        opened(f"hf://{name}")
    assert type(raised.value) is kind
    assert "\n" not in str(raised.value)


def test_a_private_repository_wants_a_login(hub: Hub, sample: Sample) -> None:
    hub.add("org/mine", sample("nvfp4-csf-hf"), private=True)
    with pytest.raises(
        EnvironmentFault, match=r"no such repository, or it is private, .* \(401\): .*there is no local org/mine"
    ):
        opened("org/mine")


def test_no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first question to a machine that refuses connections is asked twice, not for a quarter of a minute."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        EnvironmentFault, match=r"no complete answer in 2 tries\. .* HF_ENDPOINT \(now http://127.0.0.1:9\)"
    ):
        opened("org/nvfp4-dense")


def test_a_file_that_changes_while_it_is_read(hub: Hub, served: tuple[bytes, RemoteFile]) -> None:
    reader = served[1].open()
    assert reader.read(0, 10) == served[0][:10]
    hub.faults.append(Fault("/storage/", headers={"ETag": '"other"'}))
    with pytest.raises(EnvironmentFault, match=r'its ETag is "other" now, but was "of the storage"\): start again'):
        reader.read(10, 20)


def test_of_an_ignored_range_nothing_is_read(hub: Hub, served: tuple[bytes, RemoteFile]) -> None:
    hub.faults.append(Fault("/storage/", 99, whole=True))
    with pytest.raises(EnvironmentFault, match="ignores Range"):
        served[1].open().read(0, 10)
    assert served[1].ranges.bytes_fetched == 0
