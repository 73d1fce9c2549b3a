"""What a long run says where no terminal shows bars."""

import io

from rich.console import Console

from eldr.bench.progress import Stages


def test_each_stage_is_told_when_it_begins_and_when_it_is_done() -> None:
    out = io.StringIO()
    stages = Stages(Console(file=out, width=80), 2)
    with stages.stage("start [engines]"):
        assert out.getvalue() == "  [1/2] start [engines] ...\n"
    with stages.stage("serve", 3) as advance:
        advance()
    lines = out.getvalue().splitlines()
    assert lines[1].startswith("✓ [1/2] start [engines]")
    assert lines[2] == "  [2/2] serve ..."
    assert lines[3].startswith("✓ [2/2] serve 3/3")
