from dataclasses import replace

import numpy as np
import pytest

from eldr.errors import CalibrationError
from eldr.traces import DecodeIds, ExpertTraces
from eldr.traces.base import draw_counts
from traces.made_up import ids


def recorded() -> ExpertTraces:
    """Three requests with 2, 0 and 3 decoded tokens, two of five layers kept, 8 experts, top-2."""
    return ExpertTraces(
        model="m",
        source="made up",
        evidence="trace",
        top_k=2,
        num_layers=5,
        layers=np.array([1, 4]),
        label=np.array(["a", "b", "a"]),
        prompt_tokens=np.array([3, 1, 2], np.int32),
        prefill=np.stack([_count(ids(n, 2, 8, 2, seed=n)) for n in (3, 1, 2)]),
        ids=DecodeIds.join([ids(2, 2, 8, 2, 7), ids(0, 2, 8, 2), ids(3, 2, 8, 2, 8)]),
    )


def _count(chosen: np.ndarray) -> np.ndarray:
    counts = np.zeros((2, 8), np.uint32)
    for token in chosen:
        for layer, experts in enumerate(token):
            counts[layer, experts] += 1
    return counts


def test_rates_are_the_share_of_tokens_that_used_an_expert() -> None:
    traces = recorded()
    rates = traces.decode_rates()
    assert traces.ids is not None
    np.testing.assert_allclose(rates[2], _count(traces.ids.of(2)) / 3)
    np.testing.assert_array_equal(rates[1], 0)
    np.testing.assert_array_equal(traces.decode_rates(np.array([2, 0])), rates[[2, 0]])


def test_rows_follow_an_index_or_a_mask() -> None:
    traces = recorded()
    for index in (np.array([2, 0]), np.array([True, False, True]), slice(1, None)):
        chosen = np.arange(3)[index]
        part = traces.rows(index)
        assert part.label.tolist() == traces.label[chosen].tolist()
        assert part.ids is not None
        assert part.ids.tokens().tolist() == [[2, 0, 3][row] for row in chosen]
        np.testing.assert_array_equal(part.decode_rates(), traces.decode_rates()[chosen])
    assert len(traces.rows(slice(0, 0))) == 0


def test_keeping_layers_says_which_they_are() -> None:
    part = recorded().keep_layers(np.array([1]))
    assert part.layers.tolist() == [4]
    assert part.num_layers == 5
    np.testing.assert_array_equal(part.prefill[:, 0], recorded().prefill[:, 1])
    np.testing.assert_array_equal(part.decode_rates()[:, 0], recorded().decode_rates()[:, 1])


def test_calibration_set_counts_the_recorded_ids() -> None:
    traces = recorded()
    found = traces.calibration_set()
    assert found.output_tokens.tolist() == [2, 0, 3]
    np.testing.assert_allclose(found.decode_counts[2], traces.decode_rates()[2] * 3, rtol=1e-6)
    np.testing.assert_array_equal(found.prefill_counts, traces.prefill)


def test_calibration_set_from_rates_draws_whole_tokens() -> None:
    traces = replace(recorded(), ids=None, rates=np.full((3, 2, 8), 0.25, np.float16))
    found = traces.calibration_set(output_tokens=10)
    assert (found.decode_counts.sum(axis=2) == 20).all()


def test_drawn_counts_have_the_rates_as_their_mean() -> None:
    rates = np.tile(np.array([1.0, 0.5, 0.4, 0.1, 0.0]), (1, 2, 1))
    counts = draw_counts(rates, np.array([100_000]), 2, np.random.default_rng(0))
    np.testing.assert_allclose(counts / 100_000, rates, atol=0.01)


@pytest.mark.parametrize("field", ["label", "layers", "ids", "rates"])
def test_arrays_that_contradict_each_other_are_refused(field: str) -> None:
    wrong = {
        "label": np.array(["a"]),
        "layers": np.array([0]),
        "ids": DecodeIds.join([ids(2, 2, 8, 3)] * 3),
        "rates": np.zeros((3, 2, 7)),
    }
    with pytest.raises(CalibrationError, match=repr(field)):
        replace(recorded(), **{field: wrong[field]})


def test_traces_without_decode_are_refused() -> None:
    with pytest.raises(CalibrationError, match="neither"):
        replace(recorded(), ids=None)
