"""The choice to keep scales compressed: an environment variable, or a key of --model-loader-extra-config."""

import copy
import os
from dataclasses import dataclass
from typing import Any

VARIABLE = "CSF_TOOL_VLLM"
COMPRESSED, DENSE = "compressed", "dense"
KEY = "csf"


@dataclass(frozen=True)
class Choice:
    """The value that was given, and where; that of the variable may be neither of the two."""

    where: str
    value: Any

    @property
    def may_keep(self) -> bool:
        """Whether scales may have to be kept compressed; False where it is certain that they are not."""
        return bool(self.value != DENSE)

    def require_known(self) -> None:
        """Refuse a choice that is none.

        Raises:
            ValueError: it is neither "compressed" nor "dense".
        """
        if self.value not in (COMPRESSED, DENSE):
            raise ValueError(f'{self.where} must be "{COMPRESSED}" or "{DENSE}", not {self.value!r}')


def taken(load_config: Any) -> tuple[Choice, Any]:
    """The choice for a model, and vLLM's LoadConfig without the key, which vLLM would refuse.

    The variable may be meant for other models: it is for the first checkpoint with streams to refuse it.

    Raises:
        ValueError: the key has another value than "compressed" or "dense".
    """
    extra = load_config.model_loader_extra_config
    if not isinstance(extra, dict) or KEY not in extra:
        return Choice(VARIABLE, os.environ.get(VARIABLE, "").strip().lower() or DENSE), load_config
    choice = Choice(f"model_loader_extra_config: {KEY}", extra[KEY])
    choice.require_known()
    rest = copy.copy(load_config)
    rest.model_loader_extra_config = {key: value for key, value in extra.items() if key != KEY}
    return choice, rest
