"""The choice to keep scales compressed: an environment variable, or a key of --model-loader-extra-config."""

import copy
import os
from typing import Any

VARIABLE = "CSF_TOOL_VLLM"
COMPRESSED, DENSE = "compressed", "dense"
KEY = "csf"


def taken(load_config: Any) -> tuple[bool, Any]:
    """Whether scales shall be kept compressed, and vLLM's LoadConfig without the key, which vLLM would refuse.

    Raises:
        ValueError: the variable or the key has another value than "compressed" or "dense".
    """
    extra = load_config.model_loader_extra_config
    if not isinstance(extra, dict) or KEY not in extra:
        return _is_compressed(VARIABLE, os.environ.get(VARIABLE) or DENSE), load_config
    rest = copy.copy(load_config)
    rest.model_loader_extra_config = {key: value for key, value in extra.items() if key != KEY}
    return _is_compressed(f"model_loader_extra_config: {KEY}", extra[KEY]), rest


def _is_compressed(where: str, value: Any) -> bool:
    if value not in (COMPRESSED, DENSE):
        raise ValueError(f'{where} must be "{COMPRESSED}" or "{DENSE}", not {value!r}')
    return bool(value == COMPRESSED)
