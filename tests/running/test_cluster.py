"""expand on a real local Dask cluster of separate processes, one of them killed midway; parts and finish."""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from typer.testing import CliRunner

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.cli import app
from csf_tool.errors import CheckpointError, EnvironmentFault
from csf_tool.progress import Silent
from csf_tool.running.cluster import RemoteDecoder, cluster_executor
from csf_tool.write.expand import Expanded, expand
from csf_tool.write.run import WriteOptions
from tests.building import tree
from tests.fixture_types import Copied, Sample

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Two worker processes, replaced by a nanny when they die."""
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
    ) as running:
        yield running


def test_a_cluster_writes_the_same_as_one_machine(sample: Sample, tmp_path: Path, cluster: LocalCluster) -> None:
    source, out = str(sample("mxfp4-csf-container")), str(tmp_path / "out")
    arguments = ["expand", source, out, "--cluster", cluster.scheduler_address, "--device", "cpu"]
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert tree(tmp_path / "out") == tree(sample("mxfp4-dense"))


SLOW = """
import time
from csf_tool.disk import new_file as writer

copy = writer.NewFile.copy

def slowly(self, *arguments):
    time.sleep(0.1)
    copy(self, *arguments)

writer.NewFile.copy = slowly
"""


def test_a_shard_of_a_worker_that_dies_is_written_elsewhere(
    sample: Sample, tmp_path: Path, cluster: LocalCluster
) -> None:
    client = Client(cluster, set_as_default=False)
    client.run(exec, SLOW, {})
    with cluster_executor(cluster.scheduler_address) as executor, ThreadPoolExecutor(1) as here:
        opened = open_checkpoint(sample("nvfp4-csf-hf").absolute())
        running = here.submit(
            expand, opened, tmp_path / "out", RemoteDecoder("cpu"), Silent(), WriteOptions(executor=executor)
        )
        partial = wait_for_partial(tmp_path / "out", running)
        os.kill(int(partial.name.rsplit("-", 2)[-2]), signal.SIGKILL)
        done = running.result(timeout=120)
    client.close()
    assert done.missing == []
    dense = tree(sample("nvfp4-dense"))
    ours = tree(tmp_path / "out")
    assert {n: d for n, d in ours.items() if "index" not in n} == {n: d for n, d in dense.items() if "index" not in n}


def wait_for_partial(folder: Path, running: Future[Expanded]) -> Path:
    """The first partial shard that a worker has begun; its name ends in host, process and a random part."""
    while not running.done():
        for path in folder.glob(".model-*.partial"):
            return path
        time.sleep(0.01)
    raise AssertionError(f"it ended before a partial shard was seen: {running.result()}")


def test_errors_of_a_worker_arrive_as_they_are(copied: Copied, tmp_path: Path, cluster: LocalCluster) -> None:
    source = copied("mxfp4-csf-container")
    shard = source / "tensors" / "model-00002-of-00002.safetensors"
    raw = bytearray(shard.read_bytes())
    raw[-1] ^= 1
    shard.write_bytes(raw)
    with (
        cluster_executor(cluster.scheduler_address) as executor,
        pytest.raises(CheckpointError, match="the rebuilt shard's SHA-256"),
    ):
        expand(
            open_checkpoint(source), tmp_path / "out", RemoteDecoder("cpu"), Silent(), WriteOptions(executor=executor)
        )


def test_no_scheduler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("csf_tool.running.cluster._CONNECT_SECONDS", 1)
    with pytest.raises(EnvironmentFault, match="no Dask scheduler answers"), cluster_executor("tcp://127.0.0.1:9"):
        pass


def test_parts_by_themselves_and_finish(sample: Sample, tmp_path: Path) -> None:
    source, out = str(sample("nvfp4-csf-hf")), str(tmp_path / "out")
    run = CliRunner().invoke
    for part in ("2/3", "1/3"):
        result = run(app, ["expand", source, out, "--device", "cpu", "--shards", part, "--json"])
        assert result.exit_code == 0
        assert json.loads(result.stdout)["missing_shards"]
    assert not (tmp_path / "out" / "config.json").exists()
    too_early = run(app, ["finish", source, out])
    assert (too_early.exit_code, "is not complete: it lacks 1 shard, model-" in too_early.stderr) == (3, True)
    result = run(app, ["expand", source, out, "--device", "cpu", "--shards", "3/3", "--json"])
    assert json.loads(result.stdout)["missing_shards"] == []
    assert (tmp_path / "out" / "config.json").exists()
    assert not (tmp_path / "out" / ".csf-tool").exists()


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "a/b", "1/0"])
def test_parts_that_do_not_exist(sample: Sample, tmp_path: Path, part: str) -> None:
    arguments = ["expand", str(sample("nvfp4-csf-hf")), str(tmp_path / "out"), "--device", "cpu", "--shards", part]
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize("address", ["localhost", "tcp://localhost", ":8786", "tcp://host:port", "8786", "a b:1"])
def test_an_address_without_host_or_port_is_wrong_usage(sample: Sample, tmp_path: Path, address: str) -> None:
    source = str(sample("nvfp4-csf-hf"))
    result = CliRunner().invoke(app, ["expand", source, str(tmp_path / "out"), "--cluster", address])
    assert (result.exit_code, "give the scheduler's address, tcp://HOST:PORT" in result.stderr) == (2, True)


@pytest.mark.parametrize("answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 5])
def test_a_server_that_is_no_scheduler(monkeypatch: pytest.MonkeyPatch, answer: bytes | None) -> None:
    monkeypatch.setattr("csf_tool.running.cluster._CONNECT_SECONDS", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                held.append(client)
                if answer is not None:
                    client.sendall(answer)
                    client.close()

        held: list[socket.socket] = []
        threading.Thread(target=serve, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EnvironmentFault, match=r"no Dask scheduler answers: ."), cluster_executor(address):
            pass
        server.shutdown(socket.SHUT_RDWR)


def test_a_worker_is_no_scheduler(cluster: LocalCluster) -> None:
    worker = next(iter(cluster.scheduler_info["workers"]))
    with pytest.raises(EnvironmentFault, match="is not a Dask scheduler"), cluster_executor(worker):
        pass
