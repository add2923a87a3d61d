"""The report of `compress`."""

from typing import Any

from rich.console import RenderableType

from csf_tool.checkpoint.causes import Causes, Sentence
from csf_tool.report.written import complete_already, written_json, written_lines
from csf_tool.text import count, escape, percent, size
from csf_tool.write.compress import Compressed
from csf_tool.write.selection import LeftDense

SCHEMA = "csf-tool.compress/1"


def compress_json(compressed: Compressed) -> dict[str, Any]:
    """The JSON document; every block scale left dense is in it, with the reason."""
    formats = [totals.format.name for totals in compressed.by_format]
    return {
        "schema": SCHEMA,
        **written_json(compressed),
        "layout": compressed.target.layout.name,
        "format": formats[0] if len(formats) == 1 else None,
        "formats": formats,
        "device": compressed.device,
        "planes": compressed.planes,
        "scales": {"dense_bytes": compressed.dense_bytes, "csf_bytes": compressed.csf_bytes},
        "by_format": [{**vars(totals), "format": totals.format.name} for totals in compressed.by_format],
        "left_dense": [
            {"tensor": entry.plane.name, "dense_bytes": entry.plane.dense_bytes, "reason": entry.reason}
            for entry in compressed.left
        ],
    }


def compress_report(compressed: Compressed) -> list[RenderableType]:
    """The summary for people: what became smaller, what stayed dense and why."""
    if compressed.was_complete:
        return complete_already(compressed)
    saved = compressed.dense_bytes - compressed.csf_bytes
    planes = " and ".join(count(of.planes, f"{of.format.title} plane") for of in compressed.by_format)
    lines: list[RenderableType] = [
        f"Wrote {escape(compressed.destination)} ({compressed.target.layout.words}): "
        f"{planes}, {size(compressed.dense_bytes)} -> {size(compressed.csf_bytes)} "
        f"({percent(saved, compressed.dense_bytes)} saved); "
        f"{size(compressed.bytes_written)} in {compressed.seconds:.1f} s; encoded on {compressed.device}."
    ]
    if compressed.target.gives_receipts and not compressed.missing:
        lines.append("Every original shard was rebuilt from it and has its SHA-256.")
    lines += written_lines(compressed)
    if compressed.left:
        lines.append(f"Left dense: {count(len(compressed.left), 'block scale')}.")
        lines += _reasons(compressed.left)
    return lines


def _reasons(left: list[LeftDense]) -> list[str]:
    """The reasons, the most frequent first; of reasons that differ in names and numbers alone, that of one plane."""
    found: Causes[None] = Causes()
    for entry in left:
        found.add(None, Sentence(entry.reason, tensor=entry.plane.name), entry.reason)
    causes = sorted(found.told[None].values(), key=lambda cause: -cause.problems)
    lines = [
        f"  {cause.problems:>7,}  {'' if cause.is_uniform else f'as {escape(cause.first.tensor)}: '}"
        + escape(cause.first.words)
        for cause in causes
    ]
    rest = found.rest[None]
    return lines + ([f"  {rest:>7,}  for other reasons (--json has all)"] if rest else [])
