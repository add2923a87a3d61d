"""The report of `compress`."""

from rich.console import RenderableType

from csf_tool.checkpoint.causes import Causes, Sentence
from csf_tool.report.table import Table
from csf_tool.report.written import complete_already, head_lines, written_lines
from csf_tool.text import count, escape, percent, size
from csf_tool.write.compress import Compressed
from csf_tool.write.selection import LeftDense


def compress_report(compressed: Compressed) -> list[RenderableType]:
    """The summary for people: what became smaller, what stayed dense and why."""
    if compressed.was_complete:
        return complete_already(compressed)
    saved = compressed.dense_bytes - compressed.csf_bytes
    planes = " and ".join(count(of.planes, f"{of.format.title} plane") for of in compressed.by_format)
    planes += f", {size(compressed.dense_bytes)} -> {size(compressed.csf_bytes)} "
    planes += f"({percent(saved, compressed.dense_bytes)} saved)"
    is_all = len(compressed.new_shards) == len(compressed.shards) and not compressed.missing
    lines: list[RenderableType] = [
        *head_lines(
            compressed,
            compressed.target.layout.words,
            planes if is_all else "",
            f"encoded on {compressed.device}",
        )
    ]
    if not is_all:
        lines.append(f"All shards together: {planes}.")
    if compressed.target.gives_receipts and not compressed.missing:
        lines.append("Every original shard was rebuilt from the result, and its SHA-256 is right.")
    lines += written_lines(compressed)
    return [*lines, *left_dense_lines(compressed.left)]


def left_dense_lines(left: list[LeftDense]) -> list[RenderableType]:
    """Lines on the scales that stay dense, and why."""
    return [f"Left dense: {count(len(left), 'block scale')}.", _reasons(left)] if left else []


def _reasons(left: list[LeftDense]) -> Table:
    """The reasons, the most frequent first; of reasons that differ in names and numbers alone, that of one plane."""
    found: Causes[None] = Causes()
    for entry in left:
        found.add(None, Sentence(entry.reason, tensor=entry.plane.name), entry.reason)
    causes = sorted(found.told[None].values(), key=lambda cause: -cause.problems)
    result = Table("reason", "block scales")
    for cause in causes:
        example = "" if cause.is_uniform else f" (for example {escape(cause.first.tensor)})"
        result.add_row(escape(cause.first.words) + example, f"{cause.problems:,}")
    if rest := found.rest[None]:
        result.add_row("other reasons (--json lists all)", f"{rest:,}")
    return result
