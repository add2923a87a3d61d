"""Tied weights: tensors that an index lists and no shard holds, because the config says that another one is used."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from csf_tool.checkpoint.config import load_config

TIED_KEY = "tie_word_embeddings"

_LANGUAGE = re.compile(r"(text|llm|language|lm|thinker|talker|decoder|model)(_config)?")
"""Keys of the configs of a language model inside another one. Those of vision or audio speak of other weights."""

_WORDS = r"embed_tokens|word_embeddings|wte|embed|embeddings|embed_in|embed_out|tok_embeddings|shared|lm_head|unembed"
_TIED = re.compile(
    rf"(.*\.)?({_WORDS}|shared_head\.head)\.weight|([^\d]*\.)?(head|output|output_layer|decoder)\.weight"
)
"""Names of input embeddings and of heads. Words that other modules have as well count outside of layers only."""


def tied_names(root: Path, missing: Iterable[str]) -> set[str]:
    """Choose those of the `missing` tensors that the config in a folder explains."""
    found = {name for name in missing if _TIED.fullmatch(name)}
    return found if found and _ties(load_config(root)) else set()


def _ties(config: Any) -> bool:
    """Whether a config ties the embeddings, at the top or in that of its language model."""
    if not isinstance(config, dict):
        return False
    inner = (value for key, value in config.items() if _LANGUAGE.fullmatch(key))
    return config.get(TIED_KEY) is True or any(map(_ties, inner))
