"""The JSON document of `identity`."""

from typing import Literal, TypedDict

from csf_tool.documents.problem import ProblemDocument, problem_document
from csf_tool.prove.identity import Identity


class IdentityDocument(TypedDict):
    """Given by `csf-tool identity --json` and `csf_tool.identity`."""

    schema: Literal["csf-tool.identity/1"]
    """The name and version of this document."""
    checkpoint: str
    """The path of the checkpoint; for a repository on the Hub, its name and commit."""
    scheme: str
    """The rule by which the identity is made: a fixed word."""
    identity: str
    """The identity: a SHA-256 in hex. Two are comparable only if `scheme` and `basis` are the same."""
    basis: Literal["manifest", "digests", "sizes"]
    """The facts that it is made of: a container's manifest, the SHA-256 of every shard, or (far weaker) their sizes."""
    shards: dict[str, str]
    """The SHA-256 of each shard in hex, or its size in decimal; empty with the basis `manifest`."""
    problems: list[ProblemDocument]
    """Recorded hashes that differ from the computed ones, and shards left out."""


def identity_document(identity: Identity) -> IdentityDocument:
    """The document of `identity`."""
    return {
        "schema": "csf-tool.identity/1",
        "checkpoint": identity.path,
        "scheme": identity.scheme,
        "identity": identity.digest,
        "basis": identity.basis.value,
        "shards": identity.shards,
        "problems": list(map(problem_document, identity.problems)),
    }
