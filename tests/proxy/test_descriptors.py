"""How many descriptors the router takes, and what it makes of them."""

import logging
import resource

import pytest

from eldr.config import Config, WorkerConfig
from eldr.proxy.descriptors import most_connections, raise_limit
from eldr.settings_front import LimitConfig

NOBODY = (WorkerConfig("x", "http://x"),)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit, for one test."""
    limit = [256, 1024]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limit.__setitem__(slice(2), new))
    return limit


@pytest.mark.parametrize(
    ("soft", "most"), [(128, 21), (10, 1), (20_000, 6_645), (10**9, 16_384), (resource.RLIM_INFINITY, 16_384)]
)
def test_clients_get_a_third_of_the_descriptors(soft: int, most: int, limit: list[int]) -> None:
    limit[0] = soft
    assert most_connections(16_384) == most


@pytest.mark.parametrize(
    ("in_flight", "processes", "warns"), [(320, 1, False), (321, 1, True), (640, 2, False)]
)
def test_the_limit_is_raised_and_told_of_where_it_does_not_do(
    in_flight: int, processes: int, warns: bool, limit: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    limits = LimitConfig(in_flight=in_flight)
    with caplog.at_level(logging.WARNING):
        raise_limit(Config(prefill=NOBODY, decode=NOBODY, limits=limits, processes=processes))
    assert limit == [1024, 1024]
    assert [record.message.rpartition("now ")[2] for record in caplog.records] == (
        ["1024; 1027 are needed"] if warns else []
    )
