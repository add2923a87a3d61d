"""The JSON document of commands that were given several checkpoints."""

from collections.abc import Sequence
from typing import Literal, TypedDict

from csf_tool.documents.problem import ErrorDocument
from csf_tool.documents.stats import StatsDocument
from csf_tool.documents.verify import VerifyDocument


class OneOfSeveralDocument(TypedDict):
    """One of several checkpoints."""

    argument: str
    """The checkpoint as it was named on the command line."""
    exit_code: int
    """The exit code that the command has for this one alone."""
    document: StatsDocument | VerifyDocument | ErrorDocument
    """The document that the command prints for this one alone."""


class SeveralDocument(TypedDict):
    """Given by `csf-tool stats --json` and `csf-tool verify --json` for more than one checkpoint."""

    schema: Literal["csf-tool.several/1"]
    """The name and version of this document."""
    exit_code: int
    """The exit code: the highest of all."""
    checkpoints: list[OneOfSeveralDocument]
    """The checkpoints, in the order in which they were named."""


def several_document(
    arguments: Sequence[str], codes: Sequence[int], documents: Sequence[StatsDocument | VerifyDocument | ErrorDocument]
) -> SeveralDocument:
    """The document of several checkpoints, from that of each."""
    each = zip(arguments, codes, documents, strict=True)
    return {
        "schema": "csf-tool.several/1",
        "exit_code": max(codes),
        "checkpoints": [{"argument": argument, "exit_code": code, "document": found} for argument, code, found in each],
    }
