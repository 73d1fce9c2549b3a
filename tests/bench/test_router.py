import time

import pytest

from eldr.bench.router import RouterProcess
from eldr.errors import EngineError


def test_a_router_that_does_not_start_is_said_with_its_own_words(tmp_path) -> None:
    workers = {"p0": "http://127.0.0.1:9"}, {"d0": "http://127.0.0.1:10"}
    router = RouterProcess(*workers, "jsq", tmp_path / "absent.safetensors", tmp_path / "router.log")
    began = time.monotonic()
    with (
        pytest.raises(EngineError, match=r"the router ended with status 1: eldr: .*absent\.safetensors"),
        router,
    ):
        pass
    assert time.monotonic() - began < 25  # it was noticed, not waited for
