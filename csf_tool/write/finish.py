"""finish: do the rest of a run whose shards are all written."""

from pathlib import Path

from csf_tool.checkpoint.checkpoint import Checkpoint
from csf_tool.checkpoint.published import StatedOrigin
from csf_tool.choices import CompressTo, Target
from csf_tool.coders.decoder import Decoder
from csf_tool.coders.encoder import Encoder
from csf_tool.errors import EnvironmentFault, UsageError
from csf_tool.progress import Progress
from csf_tool.text import counted
from csf_tool.write.compress import Compressed, CompressOptions, compress
from csf_tool.write.convert import Converted, ConvertOptions, convert
from csf_tool.write.expand import Expanded, expand
from csf_tool.write.journal import Journal
from csf_tool.write.run import NOTHING, Run, WriteOptions, Written
from csf_tool.write.run_notes import finished_run
from csf_tool.write.selection import Rules


def require_all_shards(done: Written) -> None:
    """Check that the result is complete.

    Raises:
        EnvironmentFault: other parts of the run have still to write shards.
    """
    if done.missing:
        raise EnvironmentFault(f"{done.destination}: is not complete: it lacks {counted(done.missing, 'shard')}")


def finish(
    checkpoint: Checkpoint, destination: Path, encoder: Encoder, decoder: Decoder, progress: Progress
) -> Expanded | Compressed | Converted:
    """Go on with the run whose journal lies in `destination`, but write no shard; a finished one is left as it is.

    Raises:
        UsageError: no unfinished run is there, or one of another source.
        CheckpointError: the checkpoint is broken, or the journal is.
        EnvironmentFault: the system cannot read or write.
    """
    run = Journal(destination).run() or (Run.parse(noted) if (noted := finished_run(destination)) else None)
    if run is None:
        raise UsageError(f"{destination}: holds no unfinished run")
    how, wanted = WriteOptions(share=NOTHING), {k: v for k, v in run.options.items() if k != "all_shards"}
    if run.operation == "expand":
        return expand(checkpoint, destination, decoder, progress, how)
    origin = StatedOrigin(**{key: wanted.pop(key) for key in ("family", "source_model_id", "source_revision")})
    if run.operation == "convert":
        target = Target(wanted.pop("to"))
        return convert(checkpoint, destination, target, ConvertOptions(**wanted, origin=origin), progress, how)
    layout = CompressTo(wanted.pop("layout"))
    options = CompressOptions(layout, Rules(**wanted), origin)
    return compress(checkpoint, destination, options, encoder, decoder, progress, how)
