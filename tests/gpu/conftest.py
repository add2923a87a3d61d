"""Run the Triton kernels on the GPU where there is one, else through Triton's interpreter on the CPU.

The interpreter is chosen when a kernel is defined, so this runs before anything imports `csf_tool.gpu`.
"""

import os
from importlib.util import find_spec

if find_spec("torch") and find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
else:  # the extra "gpu" is not installed, or there is no Triton for this platform
    collect_ignore_glob = ["test_*.py"]
