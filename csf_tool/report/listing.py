"""The report of `ls`: aligned for a terminal, a record a line for pipes and files."""

import json
import sys
from collections.abc import Iterable
from itertools import chain, groupby, islice
from operator import attrgetter

from csf_tool.documents.listing import list_document, tensor_documents
from csf_tool.look.listing import Listed, Listing
from csf_tool.text import escape

_LINES_AT_A_TIME = 1000


def print_listing(listing: Listing) -> None:
    """Print the list to stdout: it can be hundreds of thousands of lines, and is printed as it is made."""
    _print(_aligned(listing) if sys.stdout.isatty() else _records(listing))


def print_json_listing(listing: Listing) -> None:
    """Print the document of the list to stdout, a line a tensor: indented, it would take a minute and a half."""
    head = json.dumps(list_document(listing), indent=2).removesuffix("]\n}")
    pieces = map(json.dumps, tensor_documents(listing))
    _print(chain([head], (f"{',' if i else ''}\n    {piece}" for i, piece in enumerate(pieces)), ["\n  ]\n}\n"]))


def _print(lines: Iterable[str]) -> None:
    waiting = iter(lines)
    while some := list(islice(waiting, _LINES_AT_A_TIME)):
        sys.stdout.writelines(some)


def _records(listing: Iterable[Listed]) -> Iterable[str]:
    """A line a tensor, without a header line, so that each line is a tensor: name, dtype, shape, bytes, shard."""
    for tensor in listing:
        cells = escape(tensor.name), escape(tensor.dtype), _shape(tensor), str(tensor.nbytes), escape(tensor.shard)
        yield "\t".join(cells) + "\n"


def _aligned(listing: Iterable[Listed]) -> Iterable[str]:
    """The tensors of each shard below its name, in columns; the name comes last, in one piece however long it is."""
    for shard, tensors in groupby(listing, attrgetter("shard")):
        rows = [(escape(t.dtype), _shape(t), f"{t.nbytes:,}", escape(t.name)) for t in tensors]
        dtypes, shapes, sizes = (max(len(row[i]) for row in rows) for i in range(3))
        yield f"{escape(shard)}\n"
        for dtype, shape, nbytes, name in rows:
            yield f"  {dtype:<{dtypes}}  {shape:<{shapes}}  {nbytes:>{sizes}}  {name}\n"


def _shape(tensor: Listed) -> str:
    """The shape as in JSON, without blanks: a scalar's is not empty either."""
    return f"[{','.join(map(str, tensor.shape))}]"
