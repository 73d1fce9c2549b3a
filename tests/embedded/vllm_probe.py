"""Run by test_vllm in its own process: greedy answers and prompt logprobs of real vLLM, as JSON."""

import json
import sys


def main() -> None:
    from vllm import LLM, SamplingParams

    job = json.load(sys.stdin)
    llm = LLM(
        job["model"],
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        kv_cache_memory_bytes=64 << 20,
        max_model_len=256,
    )
    params = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], prompt_logprobs=0, ignore_eos=True)
    results = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], params, use_tqdm=False)
    chat = llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=4), use_tqdm=False)
    answers = [
        {
            "tokens": list(result.outputs[0].token_ids),
            "prompt_logprobs": [
                entry[token].logprob
                for entry, token in zip(result.prompt_logprobs[1:], result.prompt_token_ids[1:], strict=True)
            ],
        }
        for result in results
    ]
    print("\n" + json.dumps({"answers": answers, "chat_prompt": chat[0].prompt}))


if __name__ == "__main__":
    main()
