"""Scales that are kept compressed are decoded by Triton: through its interpreter where there is no GPU.

The interpreter is chosen when a kernel is defined, so this runs before anything imports `csf_tool.gpu`.
"""

import os
from importlib.util import find_spec

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
else:  # there is no Triton for this platform
    collect_ignore = ["test_kept_layer.py", "test_keeping.py"]
