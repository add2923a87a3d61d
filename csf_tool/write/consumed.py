"""Results of runs that had removed their source already, and so have nothing left to report but that."""

from pathlib import Path

from csf_tool.checkpoint.open import open_checkpoint
from csf_tool.choices import Target
from csf_tool.write.compress import Compressed
from csf_tool.write.convert import Converted
from csf_tool.write.expand import Expanded
from csf_tool.write.run import Run, Written
from csf_tool.write.targets import TARGETS


def as_expanded(done: Written) -> Expanded:
    """The result of `expand`."""
    return Expanded(**vars(done), device="", planes=0)


def as_compressed(done: Written) -> Compressed:
    """The result of `compress`, with the layout that is there."""
    target = TARGETS[open_checkpoint(Path(done.destination)).layout.name]
    return Compressed(**vars(done), target=target, device="", by_format=[], left=[])


def as_converted(done: Written, to: Target) -> Converted:
    """The result of `convert`."""
    return Converted(**vars(done), target=to)


def as_result(run: Run, done: Written) -> Expanded | Compressed | Converted:
    """The result of whichever operation it was."""
    if run.operation == "convert":
        return as_converted(done, Target(run.options["to"]))
    return as_compressed(done) if run.operation == "compress" else as_expanded(done)
