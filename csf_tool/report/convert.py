"""The report of `convert`."""

from rich.console import RenderableType

from csf_tool.report.written import complete_already, head_lines, written_lines
from csf_tool.write.convert import Converted


def convert_report(converted: Converted) -> list[RenderableType]:
    """The summary for people."""
    if converted.was_complete:
        return complete_already(converted)
    return [
        *head_lines(converted, converted.target.value, work="no plane was decoded"),
        *written_lines(converted),
    ]
