"""The checkpoint that SGLang's files make, and its weights with the scales decoded."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from csf_tool.engines.containers import is_container
from csf_tool.engines.decoded import Tally, decoded_weights
from csf_tool.engines.read_files import checkpoint_of
from csf_tool.engines.sglang.plugin import logger
from csf_tool.engines.sglang.versions import sglang_reads, warn_of_untested_version
from csf_tool.loading.tensors import opened


def decoded(
    stored: Iterable[tuple[str, torch.Tensor]], files: list[str], device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Stored tensors as SGLang reads them from files, with scales on a device in the place of streams."""
    folder = Path(files[0]).parent
    checkpoint = checkpoint_of(folder.parent if is_container(folder.parent) else folder, files)
    if all(sglang_reads(plane.fmt.name) for plane in checkpoint.planes):
        yield from stored
        return
    warn_of_untested_version()
    begun, tally = time.perf_counter(), Tally()
    yield from decoded_weights(stored, checkpoint, device, tally)
    seconds = time.perf_counter() - begun
    logger.info("%s: csf-tool %s of the %.2f s that loading took", checkpoint.path, tally, seconds)


def files_of(container: Path) -> tuple[str, list[str], bool]:
    """The folder and the shards of a container, and that these are safetensors: as `_prepare_weights` gives them."""
    shards = opened(container).shards
    return str(container), sorted(str(shard.path) for shard in shards), True
