"""transformers made to read CSF checkpoints: to import this is all that there is to do, `uninstall` takes it back.

import csf_tool.engines.transformers
model = transformers.AutoModelForCausalLM.from_pretrained(folder)
"""

from importlib.util import find_spec

if find_spec("transformers") is None:
    raise ModuleNotFoundError(
        "csf_tool.engines.transformers needs transformers, which is not installed here (pip install transformers)",
        name="transformers",
    )

from csf_tool.engines.transformers.swap import install as install
from csf_tool.engines.transformers.swap import uninstall as uninstall

__all__ = ["install", "uninstall"]

install()
