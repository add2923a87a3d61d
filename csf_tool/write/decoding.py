"""Shards whose planes are decoded while they are written, for `expand`, or read, to prove a container."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from csf_tool.checkpoint.logical import LogicalShard, Range
from csf_tool.checkpoint.plane_tables import Plane
from csf_tool.checkpoint.streams import Readers
from csf_tool.coders.cross_checked import CrossCheckedDecoder
from csf_tool.coders.decoder import Decoder, NumpyDecoder
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


def require_sound(parts: Sequence[Part], readers: Readers, decoder: Decoder) -> None:
    """Check that a decoder decodes every plane as the CPU does: a hash that differs may be a fault of its device.

    Raises:
        EnvironmentFault: it does not.
    """
    if not isinstance(decoder, NumpyDecoder):
        streams = (readers.streams(part) for part in parts if isinstance(part, Plane))
        for _ in CrossCheckedDecoder(decoder, every=1).decode(streams):
            pass


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

    def require_sound(self) -> None:
        """See `csf_tool.write.output.Rendering`."""
        require_sound(self._shard.parts, self._readers, self._decoder)
