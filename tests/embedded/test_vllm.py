"""The shipped model in real vLLM: the same logits and the same text as the network that was trained."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tokenizers import Tokenizer  # noqa: E402

from eldr.embedded import model_path, prompts_path, wide_model  # noqa: E402
from eldr.embedded.export import load_network  # noqa: E402

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]
NEW_TOKENS = 24
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def probe(model: Path, prompts: list[list[int]]) -> dict[str, object]:
    job = json.dumps({"model": str(model), "prompts": prompts, "max_tokens": NEW_TOKENS})
    command = [sys.executable, str(Path(__file__).with_name("vllm_probe.py"))]
    environment = os.environ | OFFLINE
    done = subprocess.run(
        command, input=job, capture_output=True, text=True, timeout=300, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def own_prompt_logprobs(ids: list[int]) -> np.ndarray:
    with torch.inference_mode():
        logits = load_network(model_path())(torch.tensor([ids])).logits[0]
    return logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def own_greedy(ids: list[int]) -> list[int]:
    network, text = load_network(model_path()), list(ids)
    with torch.inference_mode():
        for _ in range(NEW_TOKENS):
            text.append(int(network(torch.tensor([text])).logits[0, -1].argmax()))
    return text[len(ids) :]


@pytest.mark.parametrize("width", [64, 256])
def test_vllm_computes_what_was_trained(width: int, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_path() / "tokenizer.json"))
    texts = [
        json.loads((prompts_path() / f"{domain}.jsonl").read_text().splitlines()[0])["prompt"]
        for domain in ("code", "zh", "law")
    ]
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    model = model_path() if width == 64 else wide_model(width, tmp_path)
    found = probe(model, prompts)
    for ids, answer in zip(prompts, found["answers"], strict=True):
        np.testing.assert_allclose(answer["prompt_logprobs"], own_prompt_logprobs(ids), atol=2e-3)
        assert answer["tokens"] == own_greedy(ids)
    assert found["chat_prompt"] == "Hello\n"
