"""The simulator against real engines: a small live run, whose decisions and experts must come out alike."""

from pathlib import Path

import pytest

from eldr.bench.settings import Settings
from eldr.bench.sim_live import POLICIES, decision_log, serve
from eldr.bench.sim_validity_live import check_live
from eldr.cli.simulate import command
from eldr.embedded import model_path

pytestmark = pytest.mark.engine


def test_a_live_run_is_decided_and_decoded_alike_in_the_simulator(tmp_path: Path) -> None:
    settings = Settings(
        out=tmp_path, model=model_path(), decode=2, requests=40, batch=4, max_tokens=48, policies=POLICIES
    )
    serve(settings)
    checks = check_live(tmp_path)
    assert [check.policy for check in checks] == list(POLICIES)
    for check in checks:
        assert check.same + check.within_rounding == check.decisions == 40
        assert check.known_share > 0.2  # a loaded machine blurs when a client sees a token
        assert abs(check.batches_error) < 0.05
    log = decision_log(settings.logs, "p2c")
    command(["--replay", str(log)], standalone_mode=False)  # raises where a decision differs
