"""The fit on expert choices of a real model: DeepSeek-V2-Lite, four tasks of very different sizes."""

from collections import Counter

import numpy as np
import pytest

from eldr.profile.dataset import CalibrationSet
from eldr.profile.fit import fit_profile
from support.traces import deepseek_v2_lite


@pytest.fixture(scope="module")
def recorded() -> CalibrationSet:
    return deepseek_v2_lite()


def test_prefill_foretells_decode(recorded: CalibrationSet) -> None:
    _, report = fit_profile(recorded, 4, layers="all")
    assert report.rho["counts"] is not None
    assert 0.70 < report.rho["counts"] < 0.92  # the paper's range for prefill against decode


def test_clusters_are_tasks_and_activate_fewer_experts(recorded: CalibrationSet) -> None:
    profile, report = fit_profile(recorded, 8, transformation="counts")
    assert profile.info.rho is not None
    assert report.rho["counts"] is not None
    assert profile.info.rho > report.rho["counts"]
    pure = sum(max(labels.values()) for labels in report.compositions) / len(recorded)
    assert pure > 0.85
    for figure in report.active:
        assert figure.mixed is not None
        assert figure.by_cluster is not None
        assert figure.by_cluster < 0.96 * figure.mixed


def test_new_requests_find_their_task(recorded: CalibrationSet) -> None:
    order = np.random.default_rng(0).permutation(len(recorded))
    train, test = recorded.rows(order[:150]), recorded.rows(order[150:])
    profile, report = fit_profile(train, 6, layers="all")
    signatures = profile.signature_transform().transform_many(test.prefill_counts)
    nearest = (signatures @ profile.centroids.T).argmax(axis=1)
    task = [Counter(labels).most_common(1)[0][0] for labels in report.compositions]
    assert np.mean([task[k] == label for k, label in zip(nearest, test.label, strict=True)]) > 0.8
