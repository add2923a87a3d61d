"""Tokens and log-probabilities of models, by vLLM's offline engine: a JSON document of them by folder.

usage: python -m tests.engines.generate OPTIONS MODEL... (OPTIONS are further arguments of LLM, as JSON)
"""

import json
import sys
from typing import Any

PROMPTS = ["hello world", "abc"]
TOKENS = 12


def main() -> None:
    from vllm import LLM, SamplingParams

    options = json.loads(sys.argv[1])
    found: dict[str, Any] = {}
    for model in sys.argv[2:]:
        llm = LLM(model=model, enforce_eager=True, max_model_len=128, max_num_seqs=4, dtype="bfloat16", **options)
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=1)
        answers = [answer.outputs[0] for answer in llm.generate(PROMPTS, sampling, use_tqdm=False)]
        found[model] = [[list(a.token_ids), a.cumulative_logprob] for a in answers]
        llm.llm_engine.engine_core.shutdown()
        del llm
    print("\n" + json.dumps(found))


if __name__ == "__main__":
    main()
