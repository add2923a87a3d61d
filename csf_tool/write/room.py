"""Room on the destination's disk: what a run needs, before its first byte is written."""

from csf_tool.disk.reader import is_file
from csf_tool.write.fetch import room_to_fetch
from csf_tool.write.journal import Journal
from csf_tool.write.output import Output, OutputShard
from csf_tool.write.run import WriteOptions


def room_needed(output: Output, mine: list[OutputShard], journal: Journal, options: WriteOptions) -> int:
    """Bytes that the files still to write take, and the stored shards that are fetched meanwhile.

    With --consume-source room comes free as the run goes on, and none is asked for.
    """
    if options.consume_source:
        return 0
    new = [shard for shard in output.shards if not (options.link and shard.can_be_linked)]
    sizes = {shard.name: shard.size for shard in new} | {file.target: file.size for file in output.side_files}
    if options.compares:
        present = sum(path.stat().st_size for name in sizes if is_file(path := journal.path_of(name)))
    else:
        present = journal.bytes_there(sizes)
    sources = (source for shard in mine if not journal.finished(shard.name) for source in shard.sources)
    return sum(sizes.values()) + output.documents_bytes - present + room_to_fetch(sources, options.jobs)
