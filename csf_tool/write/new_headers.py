"""Shards whose header alone is new, while all of their data are copied, for `convert`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from csf_tool.checkpoint.logical import Range
from csf_tool.checkpoint.stored import Shard
from csf_tool.checkpoint.streams import Readers
from csf_tool.disk.headers import render_header
from csf_tool.write.output import OutputShard, Renderer, Rendering


def copied_shard(shard: Shard, name: str, marks: dict[str, str], shapes: Mapping[str, tuple[int, ...]]) -> OutputShard:
    """The shard with `marks` in its metadata and the given shapes; its header stays as it is where it can."""
    metadata = shard.header.metadata | marks
    data = Range(shard, shard.header.data_start, shard.size)
    if metadata == shard.header.metadata and all(shapes.get(t.name, t.shape) == t.shape for t in shard.header):
        with shard.open() as reader:
            header = bytes(reader.read(0, shard.header.data_start))
        return OutputShard(name, header, (data,), shard.size, (shard,), copy_of=shard)
    header = render_header(metadata, [(t.name, t.dtype, shapes.get(t.name, t.shape), t.nbytes) for t in shard.header])
    return OutputShard(name, header, (data,), len(header) + data.end - data.begin, (shard,))


class CopyingRenderer(Renderer):
    """Renderer of shards with a new header, whose data are copied as they are."""

    def render(self, shard: OutputShard, readers: Readers) -> "_Copying":  # noqa: ARG002 (see Renderer)
        """See `csf_tool.write.output.Renderer`."""
        return _Copying(shard)


@dataclass(frozen=True)
class _Copying(Rendering):
    """Only the header is new, and of the originals nothing is known."""

    _shard: OutputShard

    def __iter__(self) -> Iterator[memoryview | Range]:
        yield memoryview(self._shard.header)
        yield from (part for part in self._shard.parts if isinstance(part, Range))
