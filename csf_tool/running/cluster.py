"""Running shards on a Dask cluster: an executor like any other, whose workers share the storage."""

import asyncio
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.coders.coded import CodedPlane, PlaneScales
from csf_tool.coders.decoder import Decoder, make_decoder
from csf_tool.coders.encoder import Encoder, make_encoder
from csf_tool.errors import CsfToolError, EnvironmentFault, UsageError, not_installed
from csf_tool.running.jobs import default_jobs
from csf_tool.text import brief

_RETRIES = 2
"""Most times that a shard is tried again after a worker's error; a worker that dies costs no retry."""

_CONNECT_SECONDS = 20

_ADDRESS = re.compile(r"(?:[a-z]+://)?(?:[^\s/:\[\]]+|\[[0-9a-fA-F:.%]+\]):(\d{1,5})(?:/.*)?")
_HIGHEST_PORT = 65535


def _require_scheduler(address: str) -> None:
    """Ask the server at an address what it is: a client that was made for another one is closed with a traceback.

    Raises:
        EnvironmentFault: it is something else of Dask, such as a worker.
    """
    from distributed import Security, rpc

    async def ask() -> Any:
        async with rpc(address, connection_args=Security().get_connection_args("client")) as server:
            return await asyncio.wait_for(server.identity(), _CONNECT_SECONDS)

    found = asyncio.run(ask())
    kind = found.get("type") if isinstance(found, dict) else None
    if kind != "Scheduler":
        raise EnvironmentFault(f"--cluster {address}: is not a Dask scheduler, but: {brief(kind)}")


@contextmanager
def cluster_executor(address: str | None) -> Iterator[Executor | None]:
    """An executor over the Dask cluster at `address`; None without an address.

    Raises:
        UsageError: the address is none that a scheduler can have.
        EnvironmentFault: dask.distributed is not installed, or no scheduler answers there.
    """
    if address is None:
        yield None
        return
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[1]) <= _HIGHEST_PORT:
        raise UsageError(f"--cluster {address}: give the scheduler's address, tcp://HOST:PORT (its usual port is 8786)")
    try:
        from distributed import Client
    except ImportError as error:
        raise not_installed("dask", "distributed").within("--cluster") from error
    try:
        _require_scheduler(address)
        client: Any = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (CsfToolError, ImportError):
        raise
    except Exception as error:  # what a server that is none may say is taken by distributed for anything
        reason = str(error) or f"{type(error).__name__} within {_CONNECT_SECONDS} s"
        raise EnvironmentFault(f"--cluster {address}: no Dask scheduler answers: {reason}") from error
    with client:
        yield client.get_executor(pure=False, retries=_RETRIES)


def require_files(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose shards are not files, which is what workers read.

    Raises:
        UsageError: it is on the Hub.
    """
    if checkpoint.is_remote:
        raise UsageError(
            f"{checkpoint.label}: the workers of a cluster can only read files: fetch it first with `hf download`"
        )


@dataclass(frozen=True)
class RemoteDecoder:
    """A decoder by the name of its device, made on the worker that uses it."""

    name: str

    @property
    def device(self) -> str:
        """The device's name for reports, as the workers were asked for it."""
        return f"{self.name} of the cluster's workers"

    def decode(self, streams: Iterable[PlaneStreams]) -> Iterator[CodedPlane]:
        """See `csf_tool.coders.decoder.Decoder.decode`."""
        return _decoder(self.name).decode(streams)


@dataclass
class RemoteEncoder:
    """An encoder by the name of its device, made on the worker that uses it."""

    name: str
    nbytes: int = 0
    """Scales that the run will encode: a worker cannot know how many of them will be its own."""

    @property
    def device(self) -> str:
        """The device's name for reports: which one `auto` is, each worker finds out."""
        return "the workers' devices" if self.name == "auto" else f"{self.name} of the cluster's workers"

    def expect(self, nbytes: int, jobs: int) -> None:  # noqa: ARG002 (the workers have jobs of their own)
        """See `csf_tool.coders.encoder.Encoder.expect`."""
        self.nbytes = nbytes

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """See `csf_tool.coders.encoder.Encoder.encode`."""
        encoder = _encoder(self.name)
        encoder.expect(self.nbytes, default_jobs())
        return encoder.encode(planes)


@cache
def _decoder(name: str) -> Decoder:
    return make_decoder(name)


@cache
def _encoder(name: str) -> Encoder:
    return make_encoder(name)
