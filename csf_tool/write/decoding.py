"""Shards whose planes are decoded while they are written, for `expand`, or read, to prove a container."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from csf_tool.checkpoint.logical import LogicalShard, Range
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.coders.decoder import Decoder
from csf_tool.write.output import OutputShard, Part, Renderer, Rendering


def decoded_shard(shard: LogicalShard) -> OutputShard:
    """The dense shard as one to write."""
    return OutputShard(shard.name, shard.header, shard.parts, shard.size, tuple(shard.sources), shard.sha256)


def decode_parts(parts: Sequence[Part], readers: Readers, decoder: Decoder) -> Iterator[memoryview | Range]:
    """Parts of a shard in order, each plane as its dense scales.

    Raises:
        StreamError: the streams of a plane break a rule of the format.
    """
    decoded = decoder.decode(readers.streams(p).require_decodable() for p in parts if isinstance(p, Plane))
    for part in parts:  # the decoder gives the planes in this order, too
        yield part if isinstance(part, Range) else next(decoded).scales.data.cast("B")


@dataclass(frozen=True)
class DecodingRenderer(Renderer):
    """Renderer that decodes the planes of shards."""

    decoder: Decoder

    def render(self, shard: OutputShard, readers: Readers) -> "_Decoding":
        """See `csf_tool.write.output.Renderer`."""
        return _Decoding(shard, readers, self.decoder)


@dataclass(frozen=True)
class _Decoding(Rendering):
    """Proved by the engine alone: of the original no more than the SHA-256 can be known."""

    _shard: OutputShard
    _readers: Readers
    _decoder: Decoder

    def __iter__(self) -> Iterator[memoryview | Range]:
        yield memoryview(self._shard.header)
        yield from decode_parts(self._shard.parts, self._readers, self._decoder)
