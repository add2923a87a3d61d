"""Running shards on a Dask cluster: an executor like any other, whose workers share the storage."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from csf_tool.checkpoint.model import Checkpoint
from csf_tool.checkpoint.streams import PlaneStreams
from csf_tool.coders.coded import CodedPlane, PlaneScales
from csf_tool.coders.decoder import Decoder, make_decoder
from csf_tool.coders.encoder import Encoder, make_encoder
from csf_tool.errors import EnvironmentFault, UsageError, not_installed

_RETRIES = 2
"""Most times that a shard is tried again after a worker's error; a worker that dies costs no retry."""

_CONNECT_SECONDS = 20


@contextmanager
def cluster_executor(address: str | None) -> Iterator[Executor | None]:
    """An executor over the Dask cluster at `address`; None without an address.

    Raises:
        EnvironmentFault: dask.distributed is not installed, or no scheduler answers there.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise not_installed("dask", "distributed").within("--cluster") from error
    try:
        client: Any = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise EnvironmentFault(f"--cluster {address}: no Dask scheduler answers: {error}") from error
    with client:
        yield client.get_executor(pure=False, retries=_RETRIES)


def require_files(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint whose shards are not files, which is what workers read.

    Raises:
        UsageError: it is on the Hub.
    """
    if checkpoint.is_remote:
        raise UsageError(f"{checkpoint.label}: workers of a cluster read files: fetch it first with `hf download`")


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


@dataclass(frozen=True)
class RemoteEncoder:
    """An encoder by the name of its device, made on the worker that uses it."""

    name: str

    @property
    def device(self) -> str:
        """The device's name for reports, as the workers were asked for it."""
        return f"{self.name} of the cluster's workers"

    def encode(self, planes: Iterable[PlaneScales]) -> Iterator[CodedPlane]:
        """See `csf_tool.coders.encoder.Encoder.encode`."""
        return _encoder(self.name).encode(planes)


@cache
def _decoder(name: str) -> Decoder:
    return make_decoder(name)


@cache
def _encoder(name: str) -> Encoder:
    return make_encoder(name)
