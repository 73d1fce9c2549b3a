import numpy as np

from eldr.counting import count_experts


def test_counts_equal_a_loop() -> None:
    ids = np.random.default_rng(0).integers(0, 8, (50, 3, 2), dtype=np.int16)
    counts = count_experts(ids, 8)
    assert (counts.shape, counts.dtype) == ((3, 8), np.uint32)
    for layer in range(3):
        for expert in range(8):
            assert counts[layer, expert] == (ids[:, layer] == expert).sum()


def test_no_token_counts_nothing() -> None:
    assert count_experts(np.zeros((0, 3, 2), np.uint8), 8).tolist() == [[0] * 8] * 3
