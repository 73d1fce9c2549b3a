"""Tensor operations of the count cache against plain loops."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from eldr.capture.counts import CountCache, active_experts, rows_of, unseen_choices  # noqa: E402

BLOCKS, SIZE, LAYERS, EXPERTS, TOP_K = 10, 4, 3, 8, 2


class Oracle:
    """What the cache must hold, token by token."""

    def __init__(self) -> None:
        self.counts = np.zeros((BLOCKS, LAYERS, EXPERTS), dtype=int)

    def clear(self, blocks: list[int]) -> None:
        self.counts[blocks] = 0

    def add(self, slots: list[int], ids: np.ndarray) -> None:
        for slot, row in zip(slots, ids, strict=True):
            for layer, experts in enumerate(row):
                for expert in experts:
                    if slot >= 0 and expert >= 0:
                        self.counts[slot // SIZE, layer, expert] += 1


def routing(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Ids [rows, L, k]: k distinct experts a layer."""
    order = rng.permuted(np.tile(np.arange(EXPERTS), (rows, LAYERS, 1)), axis=-1)
    return order[..., :TOP_K]


@pytest.mark.parametrize("seed", range(20))
def test_cache_is_the_loop_over_random_steps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache, oracle = CountCache(BLOCKS, SIZE, LAYERS, EXPERTS, "cpu"), Oracle()
    for _ in range(12):
        fresh = rng.choice(BLOCKS, rng.integers(0, 4), replace=False).tolist()
        slots = rng.choice(BLOCKS * SIZE, rng.integers(1, 20), replace=False)
        slots[rng.random(len(slots)) < 0.1] = -1
        ids = routing(rng, len(slots))
        ids[rng.random(ids.shape) < 0.05] = -1
        for target in (cache, oracle):
            target.clear(fresh)
        cache.add(torch.tensor(slots), torch.tensor(ids))
        oracle.add(slots.tolist(), ids)
        # A slot may be drawn in several steps: a count then passes the block size, which fits one byte.
        np.testing.assert_array_equal(cache.counts[:BLOCKS].numpy(), oracle.counts)
        blocks = rng.choice(BLOCKS, 3, replace=False).tolist()
        np.testing.assert_array_equal(cache.total(blocks).numpy(), oracle.counts[blocks].sum(axis=0))


def test_padding_rows_touch_no_block() -> None:
    cache = CountCache(BLOCKS, SIZE, LAYERS, EXPERTS, "cpu")
    cache.add(torch.tensor([-1, -1]), torch.zeros((2, LAYERS, TOP_K), dtype=torch.int32))
    assert cache.counts[:BLOCKS].sum() == 0


def test_a_block_is_full_at_its_size_however_often_one_expert_is_chosen() -> None:
    size = 255
    cache = CountCache(1, size, LAYERS, EXPERTS, "cpu")
    cache.add(torch.arange(size), torch.full((size, LAYERS, 1), 5))
    assert cache.counts.dtype == torch.uint8
    assert cache.total([0])[:, 5].tolist() == [size] * LAYERS


def test_larger_blocks_get_a_wider_type() -> None:
    cache = CountCache(1, 256, LAYERS, EXPERTS, "cpu")
    cache.add(torch.arange(256), torch.full((256, LAYERS, 1), 5))
    assert cache.total([0])[:, 5].tolist() == [256] * LAYERS


def test_bytes_of_a_block() -> None:
    assert CountCache(4, 16, 48, 128, "cpu").block_bytes == 48 * 128


@pytest.mark.parametrize("seed", range(10))
def test_active_experts_are_the_distinct_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    slots = np.arange(9)
    slots[[2, 7]] = -1
    ids = routing(rng, 9)
    ids[4, 1, 0] = -1
    real = ids[slots >= 0]
    expected = [len({int(e) for e in real[:, layer].ravel()} - {-1}) for layer in range(LAYERS)]
    found = active_experts(torch.tensor(slots), torch.tensor(ids, dtype=torch.int32), EXPERTS)
    assert found.tolist() == expected


def test_unseen_choices_of_real_rows_only() -> None:
    ids = torch.full((3, LAYERS, TOP_K), -1, dtype=torch.int32)
    ids[0] = 1
    assert int(unseen_choices(torch.tensor([0, 1, -1]), ids)) == LAYERS * TOP_K


def test_rows_are_found_by_slot() -> None:
    assert rows_of(torch.tensor([40, 7, 12, -1]), [12, 40]).tolist() == [2, 0]
