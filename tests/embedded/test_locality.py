"""The figures of the card on data whose answer is known."""

import numpy as np
import pytest

from eldr.embedded import locality

RNG = np.random.default_rng(0)


def domain_requests(per_domain: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Choices [requests, 6 tokens, 1 layer, top-2] of two domains: experts 0-3, and experts 4-7."""
    labels = np.repeat(["a", "b"], per_domain)
    choices = np.stack([np.stack([RNG.permutation(4)[:2] for _ in range(6)]) for _ in labels])[:, :, None]
    return (choices + 4 * (labels == "b")[:, None, None, None]).astype(np.uint8), labels


def test_counts_sum_to_tokens_times_top_k() -> None:
    choices, _ = domain_requests()
    counts = locality.counts_of(choices, 8)
    assert counts.shape == (20, 1, 8)
    assert (counts.sum(-1) == 6 * 2).all()
    assert counts[0, 0, 4:].sum() == 0


def test_active_experts_counts_distinct_ones() -> None:
    choices = np.array([[[[0, 1]]], [[[1, 2]]], [[[6, 7]]]], dtype=np.uint8)
    active = locality.one_hot(choices, 8)
    assert locality.active_experts(active, [np.array([0, 1])]) == 3
    assert locality.active_experts(active, [np.array([0, 1]), np.array([1, 2])]) == 3.5
    assert locality.active_experts(active, [np.array([0, 1, 2])]) == 5


def test_grouped_batches_keep_to_a_label_and_mixed_ones_do_not() -> None:
    _, labels = domain_requests()
    grouped = locality.grouped_batches(labels, 5, 8, RNG)
    assert all(len(set(labels[batch])) == 1 and len(set(batch)) == 5 for batch in grouped)
    assert {labels[batch[0]] for batch in grouped} == {"a", "b"}
    mixed = locality.mixed_batches(labels, 12, 4, RNG)
    assert all(len(set(labels[batch])) == 2 and len(set(batch)) == 12 for batch in mixed)


def test_groups_are_drawn_by_size_and_small_ones_left_out() -> None:
    labels = np.array(["big"] * 60 + ["middle"] * 20 + ["small"] * 3)
    drawn = [labels[batch[0]] for batch in locality.grouped_batches(labels, 4, 400, RNG)]
    assert drawn.count("big") == pytest.approx(300, abs=40)
    assert "small" not in drawn


def test_clusters_of_half_the_requests_find_the_domains_of_the_other() -> None:
    choices, labels = domain_requests(20)
    known = np.arange(40) % 2 == 0
    clusters = locality.cluster_labels(locality.counts_of(choices, 8), known, 2)
    assert len(set(zip(clusters, labels, strict=True))) == 2


def test_correlation_is_high_within_stable_domains_and_absent_without() -> None:
    (prefill, labels), (decode, _) = domain_requests(), domain_requests()
    stable = locality.prefill_decode_correlation(
        locality.counts_of(prefill, 8), locality.counts_of(decode, 8), labels
    )
    assert stable["pooled"] == pytest.approx(1.0, abs=0.05)
    assert stable["by_request"] > 0.7
    assert set(stable["by_domain"]) == {"a", "b"}
    shuffled = locality.prefill_decode_correlation(
        locality.counts_of(prefill, 8), locality.counts_of(decode[RNG.permutation(20)], 8), labels
    )
    assert shuffled["by_request"] < 0.5


def test_rho_sees_the_domains() -> None:
    prefill, _ = domain_requests(20)
    decode, _ = domain_requests(20)
    rho = locality.signature_quality(locality.counts_of(prefill, 8), locality.counts_of(decode, 8))
    assert min(rho.values()) > 0.7
