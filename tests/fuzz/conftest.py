"""Routers that the examples of a test share, since starting one takes longer than asking it."""

from collections.abc import Iterator

import pytest

from fuzz.live import Router, beside, one_process, two_processes


@pytest.fixture(scope="module")
def router() -> Iterator[Router]:
    with beside(one_process()) as made:
        yield made


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    with beside(two_processes(tmp_path_factory.mktemp("processes"))) as made:
        yield made
