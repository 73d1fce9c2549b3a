import numpy as np
import pytest

from eldr.sim import ClusterSpec, simulate
from eldr.sim.prefill import PrefixCache

from .small import requests, seconds


def test_prompts_that_wait_are_prefilled_together_up_to_a_number_of_tokens() -> None:
    """1 s a step: the first runs alone, then 60 + 40 tokens fit into 100, then the last."""
    run = requests([0.0, 0.1, 0.2, 0.3], prompt_tokens=[50, 60, 40, 10])
    spec = ClusterSpec(prefill=1, decode=1, prefill_batch_tokens=100)
    records = simulate(run, spec, "jsq", None, seconds(prefill=1.0, fixed=0.01)).records
    assert records.prefill_done_s.tolist() == pytest.approx([1.0, 2.0, 2.0, 3.0])


def test_the_least_loaded_prefill_worker_takes_a_request() -> None:
    run = requests([0.0, 0.1, 0.2])
    spec = ClusterSpec(prefill=2, decode=1, prefill_batch_tokens=1)
    records = simulate(run, spec, "jsq", None, seconds(prefill=1.0, fixed=0.01, transfer=0.5)).records
    assert records.prefill_worker.tolist() == [0, 1, 0]
    assert records.decided_s.tolist() == pytest.approx([1.0, 1.1, 2.0])
    assert records.first_token_s[0] == pytest.approx(1.51)


def test_a_shared_prefix_is_prefilled_once() -> None:
    """A token a second: 40 of 50 are shared, and 32 of these are whole blocks of 16."""
    run = requests([0.0, 100.0, 200.0], prompt_tokens=50, prefix=[3, 3, 4], prefix_tokens=40)
    spec = ClusterSpec(prefill=1, decode=1, prefix_blocks=100)
    records = simulate(run, spec, "jsq", None, seconds(prefill_token=1.0, fixed=0.1)).records
    assert records.cached_tokens.tolist() == [0, 32, 0]
    assert (records.prefill_done_s - records.arrival_s).tolist() == pytest.approx([50, 18, 50])


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    cache = PrefixCache(10, block_tokens=4)
    cache.keep(0, prefix=1, prefix_tokens=8, prompt_tokens=8)
    assert cache.hit_tokens(1, 8, 8) == 4
    assert cache.hit_tokens(1, 8, 9) == 8


def test_the_least_recently_used_blocks_go_first_and_a_prompts_end_before_its_beginning() -> None:
    cache = PrefixCache(6, block_tokens=1)
    cache.keep(0, prefix=1, prefix_tokens=3, prompt_tokens=4)  # text 1: 3 blocks, its rest: 1
    cache.keep(1, prefix=2, prefix_tokens=2, prompt_tokens=2)  # text 2: 2 blocks; full
    assert cache.used == 6
    cache.keep(2, prefix=-1, prefix_tokens=0, prompt_tokens=2)  # the rest of 0 goes, then the end of text 1
    assert (cache.hit_tokens(1, 3, 9), cache.hit_tokens(2, 2, 9)) == (2, 2)
    cache.keep(3, prefix=1, prefix_tokens=1, prompt_tokens=1)  # used again: text 1 is now the youngest
    cache.keep(4, prefix=-1, prefix_tokens=0, prompt_tokens=2)
    assert (cache.hit_tokens(1, 3, 9), cache.hit_tokens(2, 2, 9)) == (2, 0)
    assert cache.used == 6


def test_the_cache_agrees_with_one_that_keeps_single_blocks() -> None:
    rng = np.random.default_rng(0)
    cache, capacity, blocks = PrefixCache(12, block_tokens=1), 12, []
    for request in range(300):
        prefix, shared, own = int(rng.integers(4)), int(rng.integers(1, 5)), int(rng.integers(0, 3))
        kept = [("text", prefix, n) for n in range(shared)]
        length = 0
        while length < shared and ("text", prefix, length) in blocks:
            length += 1
        assert cache.hit_tokens(prefix, shared, shared + own + 1) == length
        cache.keep(request, prefix, shared, shared + own)
        older = [b for b in blocks if b[:2] == ("text", prefix)]  # all of a text is as young as its last use
        used = sorted(set(older) | set(kept), key=lambda block: block[2])
        rest = [("own", request, n) for n in range(own)]
        blocks = [b for b in blocks if b not in used] + rest[::-1] + used[::-1]
        blocks = blocks[-capacity:]
