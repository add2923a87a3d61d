"""Tokens and log-probabilities of models, by vLLM's offline engine: a line of JSON a model.

usage: python -m tests.engines.generate OPTIONS MODEL... (OPTIONS are further arguments of LLM, as JSON)
"""

import json
import sys

PROMPTS = ["hello world", "abc"]
TOKENS = 12


def main() -> None:
    from vllm import LLM, SamplingParams

    options = json.loads(sys.argv[1])
    for model in sys.argv[2:]:
        llm = LLM(model=model, enforce_eager=True, max_model_len=128, max_num_seqs=4, dtype="bfloat16", **options)
        sampling = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=1)
        answers = [answer.outputs[0] for answer in llm.generate(PROMPTS, sampling, use_tqdm=False)]
        found = [[list(answer.token_ids), answer.cumulative_logprob] for answer in answers]
        imported = sorted(name for name in sys.modules if name.startswith("csf_tool"))
        print("\n" + json.dumps({"model": model, "answers": found, "imported": imported}), flush=True)
        llm.llm_engine.engine_core.shutdown()
        del llm


if __name__ == "__main__":
    main()
