"""A model that this process serves in one of the ways: vLLM with it, its answers, its speed, and what loading took."""

import gc
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from vllm_ways import WAYS, tell


class Served:
    """A model in vLLM; several may be in one process, and take turns."""

    def __init__(self, name: str, args: Any, memory: dict[str, Any]) -> None:
        """`memory` are vLLM's options that say how much of it is taken."""
        from vllm import LLM
        from vllm.v1.worker import workspace

        way = WAYS[name]
        tiny: dict[str, Any] = {"enforce_eager": True} if args.tiny else {}
        graphs: dict[str, Any] = {"compilation_config": {"cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64]}}
        backend = way.backend or ("emulation" if args.tiny else None)
        options: dict[str, Any] = (tiny or graphs) | ({"moe_backend": backend} if backend else {})
        if way.compressed:
            options["model_loader_extra_config"] = {"csf": way.keep}
        self._llm = LLM(
            model=str(args.folder / ("csf" if way.compressed else "dense")),
            max_model_len=512,
            max_num_seqs=64,
            enable_prefix_caching=False,
            **options,
            **memory,
        )
        # vLLM has one for a process, and makes a new one for each model. The graphs of this model point into its own.
        self._scratch = workspace._manager

    def generate(self, batch: int, **sampling: Any) -> list[Any]:
        """Answer a batch of prompts."""
        from vllm import SamplingParams
        from vllm.v1.worker import workspace

        workspace._manager = self._scratch
        greedy = SamplingParams(temperature=0, ignore_eos=True, **sampling)
        answers: list[Any] = self._llm.generate(prompts(batch), greedy, use_tqdm=False)
        return answers

    def answers(self) -> dict[str, Any]:
        """Tokens and log-probabilities, of eight prompts together and of one, and a digest of them."""
        answers = [
            [[token.token_ids[i], *map(value, sorted(token.logprobs[i].items()))] for i in range(24)]
            for n in (8, 1)
            for token in (answer.outputs[0] for answer in self.generate(n, max_tokens=24, logprobs=3))
        ]
        return {"answers": answers, "digest": hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16]}

    def seconds(self, batch: int, tokens: int) -> float:
        """How long generating so many tokens takes."""
        start = time.perf_counter()
        self.generate(batch, max_tokens=tokens)
        return time.perf_counter() - start


def value(item: tuple[int, Any]) -> list[Any]:
    return [item[0], item[1].logprob]


def prompts(number: int) -> list[dict[str, list[int]]]:
    """Prompts of 32 tokens, each another."""
    return [{"prompt_token_ids": [(7 * i + 13 * j + i * j) % 256 for j in range(32)]} for i in range(number)]


def measure_loading(repeat: int) -> None:
    """Have vLLM's worker tell how long loading the model took, the first time and later, and what memory it took."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model
    from vllm.v1.worker.gpu_worker import Worker

    def allocated() -> int:
        gc.collect()
        if not torch.cuda.is_available():
            return 0
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    def once(config: Any) -> tuple[float, int, int]:
        """Seconds of loading a model that is let go, and the peaks of the process's and the device's memory."""
        allocated()
        new_peaks()
        start = time.perf_counter()
        try:
            with set_current_vllm_config(config):
                get_model(vllm_config=config)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            return time.perf_counter() - start, *peaks()
        finally:  # layers by name, each of which is new the next time
            for known in ("static_forward_context", "static_all_moe_layers"):
                getattr(config.compilation_config, known, {}).clear()

    def measured(load_model: Callable[..., None]) -> Callable[..., None]:
        def load(self: Any, *args: Any, **kwargs: Any) -> None:
            times = [once(self.vllm_config) for _ in range(repeat + 1)] if repeat else []
            before, start = allocated(), time.perf_counter()
            load_model(self, *args, **kwargs)
            first = times[0][0] if times else time.perf_counter() - start
            seconds, host, device = zip(*times[1:], strict=True) if times[1:] else ((), (), ())
            tell(first_load=first, later_loads=seconds, host=host, device=device, bytes=allocated() - before)

        return load

    Worker.load_model = measured(Worker.load_model)


def new_peaks() -> None:
    """Have `peaks` count from here on."""
    import torch

    with suppress(OSError):  # not every container allows it
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peaks() -> tuple[int, int]:
    """The most bytes that the process has had resident, and on the device."""
    import torch

    status = Path("/proc/self/status").read_text().splitlines()
    host = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024
    return host, torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
