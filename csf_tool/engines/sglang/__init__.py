"""SGLang made to read CSF checkpoints. `plugin.register` is its entry point; the rest is imported when it is needed."""

from importlib.util import find_spec

if find_spec("sglang") is None:
    raise ModuleNotFoundError(
        "csf_tool.engines.sglang works inside SGLang, which is not installed here (pip install sglang)", name="sglang"
    )
