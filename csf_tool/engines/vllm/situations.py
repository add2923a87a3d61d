"""Situations of vLLM in which scales cannot be kept compressed, and the reason in each."""

import os
from collections.abc import Iterator
from typing import Any

from csf_tool.engines.vllm.versions import TESTED, running_version


def why_not(vllm_config: Any, model_config: Any) -> str | None:
    """The first reason why no layer of a model can keep its scales compressed; None if there is none."""
    return next(_reasons(vllm_config, model_config), None)


def _reasons(vllm_config: Any, model_config: Any) -> Iterator[str]:
    parallel = vllm_config.parallel_config
    if untested := TESTED.says_of(running_version()):
        yield untested
    if getattr(parallel, "enable_eplb", False):
        yield "expert load balancing (EPLB) moves the scales"
    if getattr(parallel, "enable_expert_parallel", False):
        yield "with expert parallelism, a rank has only some of a layer's experts"
    if getattr(parallel, "data_parallel_size", 1) > 1 or getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        yield "with data or context parallelism, the experts of a layer are divided in another way"
    if getattr(parallel, "use_ubatching", False):
        yield "two micro-batches (DBO) would decode into one workspace at the same time"
    if getattr(model_config, "enable_sleep_mode", False):
        yield "the scales that sleep mode discards could not be loaded again"
    if getattr(vllm_config, "weight_transfer_config", None) is not None:
        yield "weights that arrive while serving are dense"
    if getattr(vllm_config, "lora_config", None) is not None:
        yield "LoRA replaces the experts' method"
    if getattr(getattr(vllm_config, "quant_config", None), "online_quantization_config", None) is not None:
        yield "quantising again while loading (online) replaces the experts' method"
    if _offloads(getattr(vllm_config, "offload_config", None)):
        yield "offloading moves the weights to the host"
    if _is_draft(vllm_config, model_config):
        yield "a draft model must not share the workspace of the main model"
    yield from _devices(vllm_config)


def _offloads(offload: Any) -> bool:
    uva, prefetch = getattr(offload, "uva", None), getattr(offload, "prefetch", None)
    return getattr(uva, "cpu_offload_gb", 0) > 0 or getattr(prefetch, "offload_group_size", 0) > 0


def _is_draft(vllm_config: Any, model_config: Any) -> bool:
    draft = getattr(getattr(vllm_config, "speculative_config", None), "draft_model_config", None)
    return model_config is draft or getattr(model_config, "runner", None) == "draft"


def _devices(vllm_config: Any) -> Iterator[str]:
    target = vllm_config.device_config.device
    kind = str(getattr(target, "type", target)).partition(":")[0]
    if getattr(vllm_config.load_config, "device", None) not in (None, kind, str(target)):
        yield f"vLLM loads weights to {vllm_config.load_config.device} first"
    if kind != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        yield f"decoding while serving needs a GPU that Triton knows as cuda, not {kind}"
