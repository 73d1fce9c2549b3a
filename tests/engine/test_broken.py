"""When vLLM's routing hook is compiled away, no sum betrays it: all choices would read as expert 0."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eldr.bench.engine import EngineSpec, LocalEngine
from eldr.proxy.handoff import PREFILL_PARAMS
from engine.client import complete, metrics, random_prompts

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def compiled(model: Path, logs: Path) -> Iterator[LocalEngine]:
    with LocalEngine(EngineSpec(model=model, log_dir=logs, name="compiled", enforce_eager=False)) as engine:
        yield engine


def test_a_dead_hook_gives_no_payload_but_an_alarm(compiled: LocalEngine) -> None:
    (prompt,) = random_prompts(40, [70])
    before = metrics(compiled)
    leg = complete(compiled, prompt, 1, kv_transfer_params=PREFILL_PARAMS)
    traced = complete(compiled, prompt, 4, kv_transfer_params={"eldr": {"trace": True}})
    after = metrics(compiled) - before

    assert leg.params is not None
    assert leg.params["do_remote_prefill"] is True  # the hand-off itself is unharmed
    assert "eldr" not in leg.params
    assert not traced.params
    assert after["eldr_unseen_choices_total"] > 0
    assert after["eldr_payloads_total{outcome=missing}"] == 2
    assert after["eldr_active_experts_count"] == 0
    assert "--enforce-eager" in compiled.log_path.read_text()
