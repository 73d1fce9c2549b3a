"""A whole study of a window: cost, replays, verdicts, the saving."""

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from eldr.adapt.batches import prompt_rates
from eldr.adapt.choice import DEFAULT, JSQ, Choice
from eldr.adapt.costs import learn
from eldr.adapt.replay import Traffic, replay
from eldr.adapt.span import Span
from eldr.adapt.study import Study, study
from eldr.adapt.tune import Tuner
from eldr.adapt.window import GONE, Window

from .traffic import BATCH_LED, CONSTANT, WORKERS, centroids, noise_of, transform_of, window

ALL = np.ones(WORKERS, np.bool_)
BAND = Choice.of("locality_band", tau=0.3)
FEW = (BAND,)


def studied(seen: Window, current: Choice = JSQ, **given: object) -> Study:
    options: dict[str, object] = {"candidates": FEW, **given}
    return study(seen, transform_of(), centroids(), ALL, current, 0, **options)  # type: ignore[arg-type]


def true_saving(choice: Choice, seed: int, **traffic: Any) -> float:
    """Of the whole window, run under both."""
    mine, jsq = (np.nanmean(window(seed, choice=one, **traffic).tpot_s) for one in (choice, JSQ))
    return float(1 - mine / jsq)


def test_a_bad_policy_is_left() -> None:
    tuner = Tuner(JSQ)
    for seed in (0, 1):
        tuner, said = tuner.after(studied(window(seed, 500)).tried)
    assert tuner.current in (DEFAULT, BAND)
    assert said.startswith("changed from jsq()")


ALIKE = Choice.of("locality_band", tau=0.05)
"""A band that sends each domain to its own worker, however full that is."""

NOISY = {"cost": BATCH_LED, "rate": 20.0, "noise": noise_of(0.2)}
"""Steps that wait for requests, which the noise of single ones hides."""


def test_the_default_is_not_left_where_the_cost_cannot_be_told() -> None:
    tuner = Tuner(DEFAULT)
    for seed in (100, 101, 102):
        found = studied(window(seed, choice=DEFAULT, **NOISY), DEFAULT, candidates=(ALIKE,))
        tuner, said = tuner.after(found.tried)
        assert tuner == Tuner(DEFAULT), said
        assert found.saving is not None
        assert found.saving.low < true_saving(DEFAULT, seed, **NOISY) < found.saving.high
        assert found.saving.ratio < 0.15


def test_a_policy_that_only_the_known_ratio_speaks_for_is_left_for_the_default() -> None:
    tuner = Tuner(ALIKE)
    for seed in (100, 101):
        tuner, _ = tuner.after(studied(window(seed, choice=ALIKE, **NOISY), ALIKE, candidates=()).tried)
    assert tuner.current == DEFAULT


def test_where_nothing_can_be_saved_the_interval_holds_zero() -> None:
    for seed in (0, 1):
        seen = window(seed, choice=DEFAULT, cost=CONSTANT, rate=20.0, noise=noise_of(0.5))
        found = studied(seen, DEFAULT, candidates=()).saving
        assert found is not None
        assert found.low <= 0 <= found.high


def test_the_saving_is_estimated_from_the_current_policys_window_alone() -> None:
    found = studied(window(0, choice=DEFAULT), DEFAULT, candidates=()).saving
    assert found is not None
    true = true_saving(DEFAULT, 0)
    assert true > 0.1
    assert found.ratio == pytest.approx(true, abs=0.04)
    assert found.low < true < found.high
    assert found.mean_error == pytest.approx(0, abs=0.03)


def test_jsq_saves_nothing_against_itself() -> None:
    found = studied(window(number=300), candidates=())
    assert found.saving is not None
    assert found.saving.ratio == 0
    assert "0.0 % of jsq's TPOT" in str(found.saving)


def test_a_study_is_repeatable_and_can_be_sent_to_another_process() -> None:
    seen = window(number=300)
    one, other = (studied(seen) for _ in range(2))
    assert str(one) == str(other)
    assert pickle.loads(pickle.dumps(one)).tried == one.tried


def test_where_the_choice_was_made_later_nothing_is_said_of_its_agreement() -> None:
    found = studied(window(number=300), since_s=1e9)
    assert found.saving is not None
    assert found.saving.mean_error is None


def in_one_piece(seen: Window) -> Window:
    """Answers whose tokens all came at once."""
    return replace(seen, finish_s=seen.first_token_s)


def with_a_pause(seen: Window) -> Window:
    """An hour without a request in the middle."""
    later = 3600.0 * (np.arange(len(seen)) >= len(seen) // 2)
    moved = {name: getattr(seen, name) + later for name in ("decided_s", "first_token_s", "finish_s")}
    return replace(seen, **moved)


@pytest.mark.parametrize(
    ("seen", "has", "reason"),
    [
        (window(number=60), ALL, "60 requests with a TPOT, 100 are needed"),
        (in_one_piece(window(number=300)), ALL, "0 requests with a TPOT"),
        (window(number=110, rate=300.0), ALL, "times as long as a request takes, 2.5 are needed"),
        (with_a_pause(window(number=300)), ALL, "requests came in 2 of 20 blocks of time, 3 are needed"),
        (window(number=300), ~ALL, "no decode worker has a centroid"),
        (replace(window(number=300), counts=np.zeros((300, 2, 16), np.uint16)), ALL, "no request has expert"),
        (window(number=300), ALL[:1], "one decode worker leaves no choice"),
    ],
)
def test_where_there_is_too_little_it_says_why(seen: Window, has: np.ndarray, reason: str) -> None:
    found = study(seen, transform_of(), centroids()[: len(has)], has, JSQ, 0, candidates=FEW)
    assert found.reason is not None
    assert reason in found.reason
    assert found.tried == ()
    assert found.saving is None
    assert reason in str(found)


def traffic_of(seen: Window, has: np.ndarray = ALL) -> Traffic:
    return Traffic.of(seen, prompt_rates(seen), Span.of(seen), transform_of(), centroids(), has)


def test_the_first_and_last_requests_do_not_count() -> None:
    seen = window(number=500)
    traffic, span = traffic_of(seen), Span.of(seen)
    decided_s = seen.decided_s[traffic.counted]
    assert decided_s.min() >= span.start_s + span.turn_s
    assert decided_s.max() < span.end_s
    assert len(traffic.requests) == 500
    assert (np.diff(traffic.block) >= 0).all()


def test_requests_of_workers_that_left_and_without_counts_are_replayed() -> None:
    seen = window(number=500)
    seen.worker[::7] = GONE
    seen.counts[::5] = 0
    traffic = traffic_of(seen)
    tpot_s = replay(traffic, learn(seen, prompt_rates(seen), Span.of(seen)).cost, DEFAULT, 0)
    assert np.isfinite(tpot_s).all()
    signatures = traffic.requests.kinds.signatures
    assert signatures is not None
    np.testing.assert_array_equal(signatures.any(axis=1), np.arange(500) % 5 != 0)


def test_workers_without_a_centroid_come_last_and_serve_too() -> None:
    has = np.array([True, False, True, True])
    traffic = traffic_of(window(number=500), has)
    np.testing.assert_array_equal(traffic.centroids, centroids()[[0, 2, 3]])
    assert traffic.workers == WORKERS
