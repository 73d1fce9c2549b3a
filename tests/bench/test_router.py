import subprocess

import pytest

from eldr.bench.router import RouterProcess
from eldr.errors import EngineError


def test_a_router_that_does_not_start_is_said_with_its_own_words(tmp_path, monkeypatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen):
        def __init__(self, *args, **options) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    workers = {"p0": "http://127.0.0.1:9"}, {"d0": "http://127.0.0.1:10"}
    router = RouterProcess(*workers, "jsq", tmp_path / "absent.safetensors", tmp_path / "router.log")
    with (
        pytest.raises(EngineError, match=r"the router ended with status 1: eldr: .*absent\.safetensors"),
        router,
    ):
        pass
    assert [process.returncode for process in started] == [1]  # it was noticed, not ended
