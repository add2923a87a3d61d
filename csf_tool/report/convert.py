"""The reports of `convert` and `identity`."""

from typing import Any

from rich.console import RenderableType

from csf_tool.prove.identity import Identity
from csf_tool.report.console import problem_json
from csf_tool.report.written import complete_already, written_json, written_lines
from csf_tool.text import count, escape, size
from csf_tool.write.convert import Converted

CONVERT_SCHEMA = "csf-tool.convert/1"
IDENTITY_SCHEMA = "csf-tool.identity/1"


def convert_json(converted: Converted) -> dict[str, Any]:
    """The JSON document of `convert`."""
    return {
        "schema": CONVERT_SCHEMA,
        **written_json(converted),
        "to": converted.target.value,
        "linked": converted.linked,
    }


def convert_report(converted: Converted) -> list[RenderableType]:
    """The summary for people."""
    if converted.was_complete:
        return complete_already(converted)
    linked = f" ({len(converted.linked)} linked)" if converted.linked else ""
    written = f"{count(len(converted.shards), 'shard')}{linked} and {count(len(converted.other_files), 'other file')}"
    head = f"Wrote {escape(converted.destination)} ({converted.target.value}): {written}, "
    return [
        head + f"{size(converted.bytes_written)} in {converted.seconds:.1f} s; no plane was decoded.",
        *written_lines(converted),
    ]


def identity_json(identity: Identity) -> dict[str, Any]:
    """The JSON document of `identity`."""
    return {
        "schema": IDENTITY_SCHEMA,
        "checkpoint": identity.path,
        "scheme": identity.scheme,
        "identity": identity.digest,
        "basis": identity.basis.value,
        "shards": identity.shards,
        "problems": list(map(problem_json, identity.problems)),
    }
