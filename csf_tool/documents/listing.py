"""The JSON document of `ls`."""

from collections.abc import Iterator
from typing import Literal, TypedDict

from csf_tool.look.listing import Listing


class ListedCheckpointDocument(TypedDict):
    """The checkpoint that was looked at."""

    path: str
    """The path; of one on the Hub, repository and commit."""
    kind: str
    """Layout, CSF or dense, and formats, in words."""


class ListedTensorDocument(TypedDict):
    """A tensor."""

    name: str
    """The name."""
    dtype: str
    """The dtype, as safetensors headers have it."""
    shape: list[int]
    """The shape; empty for a scalar."""
    bytes: int
    """Bytes of its data: of a scale, dense; of a stream, as stored."""
    shard: str
    """The stored shard that holds it, relative to the checkpoint's folder; of a scale, its fixed stream."""
    format: str | None
    """The format of the CSF plane that it is, or is a stream of; null for all others."""


class ListDocument(TypedDict):
    """Given by `csf-tool ls --json`."""

    schema: Literal["csf-tool.ls/1"]
    """The name and version of this document."""
    checkpoint: ListedCheckpointDocument
    """The checkpoint that was looked at."""
    names: Literal["dense", "stored"]
    """`dense`: the tensors of the dense checkpoint that it stands for. `stored`: those that its shards hold."""
    pattern: str | None
    """The name or glob that was asked for; null for all tensors."""
    tensors: list[ListedTensorDocument]
    """The tensors, shard by shard in the order of their data."""


def list_document(listing: Listing) -> ListDocument:
    """The document of `ls` but for its tensors, which `tensor_documents` makes one by one."""
    return {
        "schema": "csf-tool.ls/1",
        "checkpoint": {"path": listing.checkpoint.label, "kind": listing.checkpoint.kind},
        "names": "stored" if listing.stored else "dense",
        "pattern": listing.pattern,
        "tensors": [],
    }


def tensor_documents(listing: Listing) -> Iterator[ListedTensorDocument]:
    """The documents of the tensors: hundreds of thousands, which need not be in memory together."""
    for tensor in listing:
        yield {
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
            "shard": tensor.shard,
            "format": tensor.format,
        }
