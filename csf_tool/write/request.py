"""Requests to write, of commands and of Python functions alike, whatever they write."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.coders.decoder import Decoder, make_decoder
from csf_tool.coders.encoder import Encoder, make_encoder
from csf_tool.devices import require_device_name
from csf_tool.errors import UsageError
from csf_tool.running.cluster import RemoteDecoder, RemoteEncoder, cluster_executor, require_files
from csf_tool.running.jobs import default_jobs
from csf_tool.write.consumed import finished_removal
from csf_tool.write.run import Share, WriteOptions, Written


@dataclass(frozen=True)
class WriteRequest:
    """The options of a run as they are given; see `csf_tool.expand` for their meaning."""

    jobs: int | None = None
    shards: str | None = None
    recheck: bool = False
    drop_cache: bool | None = None
    ignore_space: bool = False
    adopt: bool = False
    consume_source: bool = False
    cluster: str | None = None
    all_shards: bool = False
    dry_run: bool = False

    def consumed(
        self, source: Path, destination: Path, operation: str, options: Mapping[str, Any] | None = None
    ) -> Written | None:
        """The result of such a run with `consume_source` that had only its last source shards to remove: gone now.

        A dry run leaves them.
        """
        if not self.consume_source:
            return None
        chosen = {**(options or {}), **({"all_shards": True} if self.all_shards else {})}
        return finished_removal(source, destination, operation, chosen, dry_run=self.dry_run)

    def require_sense(self) -> None:
        """Refuse options that do not fit together.

        Raises:
            UsageError: they do not.
        """
        Share.parse(self.shards)
        if self.consume_source and (self.shards or self.cluster):
            problem = "removes shards that other parts may need: run it without --shards and --cluster"
            raise UsageError(f"--consume-source {problem}")

    def place(self, path: Path) -> Path:
        """The path as all who work at the run know it: workers of a cluster have working folders of their own."""
        return path.absolute() if self.cluster else path

    def decoder(self, device: str) -> Decoder:
        """The decoder for a device: here, or of the cluster's workers."""
        require_device_name(device)
        is_cpu = device in ("auto", "cpu")
        return RemoteDecoder(device) if self.cluster and not is_cpu else make_decoder(device)

    def encoder(self, device: str, tell: Callable[[str], None] = lambda _: None) -> Encoder:
        """The encoder for a device: here, or of the cluster's workers. `tell` is told why it is not a GPU."""
        require_device_name(device)
        return RemoteEncoder(device) if self.cluster else make_encoder(device, tell)

    @contextmanager
    def options(self, checkpoint: Checkpoint, *, link: bool = False) -> Iterator[WriteOptions]:
        """The options that the operation takes, while the cluster is connected.

        Raises:
            UsageError: the options do not fit together, or the cluster's workers cannot read the checkpoint.
            EnvironmentFault: no cluster answers.
        """
        if self.cluster:
            require_files(checkpoint)
        with cluster_executor(self.cluster) as executor:
            yield WriteOptions(
                jobs=self.jobs or default_jobs(),
                share=Share.parse(self.shards),
                recheck=self.recheck,
                drop_cache=self.drop_cache,
                consume_source=self.consume_source,
                ignore_space=self.ignore_space,
                adopt=self.adopt,
                link=link,
                executor=executor,
                dry_run=self.dry_run,
            )
