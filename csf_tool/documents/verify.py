"""The JSON document of `verify`."""

from typing import Literal, TypedDict

from csf_tool.documents.problem import ProblemDocument, problem_document
from csf_tool.prove.verdict import Verified


class ShardsCheckedDocument(TypedDict):
    """Shards that were looked at."""

    checked: int
    """Number of shards whose data were read; with `quick`, whose headers were."""
    of: int
    """Number of all shards."""


class CheckDocument(TypedDict):
    """One check."""

    name: Literal["structure", "streams", "decode", "stored", "source", "against"]
    """The check: of headers, names and documents; of the rules of the streams; whether planes decode; of stored
    bytes by hashes; of decoded bytes by the source's hashes; of decoded bytes by the reference."""
    status: Literal["passed", "failed", "warning", "skipped"]
    """The outcome. A `warning` has passed, with something odd; `skipped` had nothing to check by."""
    checked: int
    """Number of things checked: tensors, planes or files, as `note` says."""
    failures: list[ProblemDocument]
    """The faults that it found."""
    warnings: list[ProblemDocument]
    """The oddities that it found."""
    note: str
    """The evidence, or why it was skipped, in words."""


class VerifyDocument(TypedDict):
    """Given by `csf-tool verify --json` and `csf_tool.verify`."""

    schema: Literal["csf-tool.verify/1"]
    """The name and version of this document."""
    ok: bool
    """Whether no check failed. It does not say how much was proved: see `checks`. If false, the exit code is 1."""
    checkpoint: str
    """The path of the checkpoint; for a repository on the Hub, its name and commit."""
    kind: str
    """Layout, CSF or dense, and formats, in words."""
    against: str | None
    """The path of the reference; null without `--against`."""
    device: str
    """The device that decoded planes, in words."""
    quick: bool
    """Whether no data were read."""
    shards: ShardsCheckedDocument
    """Shards that were looked at."""
    failed_files: list[str]
    """Files in which something failed, to be downloaded or verified again."""
    checks: list[CheckDocument]
    """All checks, in a fixed order. `stored`, `source` and `against` say what is proved of the bytes."""
    verdict: str
    """The verdict in words."""
    proved: list[str]
    """Statements that are proved, and by which evidence, in words."""
    unproved: list[str]
    """Statements that are not proved, and why, in words."""


def verify_document(verified: Verified) -> VerifyDocument:
    """The document of `verify`."""
    checked, total = verified.shards
    return {
        "schema": "csf-tool.verify/1",
        "ok": verified.ok,
        "checkpoint": verified.path,
        "kind": verified.kind,
        "against": verified.against,
        "device": verified.device,
        "quick": verified.quick,
        "shards": {"checked": checked, "of": total},
        "failed_files": verified.failed_files,
        "checks": [
            {
                "name": check.name,
                "status": check.status.value,
                "checked": check.checked,
                "failures": list(map(problem_document, check.failures)),
                "warnings": list(map(problem_document, check.warnings)),
                "note": check.note,
            }
            for check in verified.checks
        ],
        "verdict": verified.verdict,
        "proved": verified.proved,
        "unproved": verified.unproved,
    }
