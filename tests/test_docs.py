"""What the documents state can be checked, and is."""

import re
from pathlib import Path

import numpy as np

from csf_tool.codec import reference
from csf_tool.codec.formats import NVFP4

DOCS = Path(__file__).parent.parent / "docs"


def test_the_plane_in_the_format_document_is_one() -> None:
    """Encoding its dense scales gives its streams, and these decode to its scales."""
    text = (DOCS / "format.md").read_text()
    fixed, words, head = (
        np.frombuffer(bytes.fromhex(found[1]), np.uint8)
        for name in ("fixed", "exceptions", "dense")
        if (found := re.search(rf"```text {name}\n(.*?)```", text, re.DOTALL))
    )
    dense = np.concatenate([head, np.full(26, 0x70, np.uint8)]).reshape(16, 2)
    exceptions = reference.exception_words(words.tobytes())
    got_fixed, got_words = reference.encode(NVFP4, dense)
    assert got_fixed.tobytes() == fixed.tobytes()
    assert got_words.tolist() == exceptions.tolist()
    assert reference.decode(NVFP4, fixed, exceptions, rows=16, cols=2).tolist() == dense.tolist()
