"""Checkpoints whose config says CSF, and none of whose streams are there: engines would serve them without scales.

For all others one document or two are looked into, and nothing is imported.
"""

from pathlib import Path

_DOCUMENTS = ("config.json", "hf_quant_config.json")
_MARK = b"weight_scale_encoding"


def refuse_lost_streams(folder: str) -> None:
    """Refuse a folder without the streams for which its config has recipes, if weights lack their scales.

    Raises:
        CheckpointError: it is one, or no shard can be read: pointers that were downloaded in place of files, say.
    """
    if not any(_MARK in _bytes_of(Path(folder, name)) for name in _DOCUMENTS):
        return
    from csf_tool.checkpoint.open import open_checkpoint
    from csf_tool.engines.read_files import require_scales

    require_scales(open_checkpoint(folder))


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
