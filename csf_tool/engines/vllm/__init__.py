"""vLLM made to read CSF checkpoints. `plugin.register` is its entry point; the rest is imported when it is needed."""

from importlib.util import find_spec

if find_spec("vllm") is None:
    raise ModuleNotFoundError(
        "csf_tool.engines.vllm works inside vLLM, which is not installed here (pip install vllm)", name="vllm"
    )
