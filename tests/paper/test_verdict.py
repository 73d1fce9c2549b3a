"""The one rule by which our numbers are held against the paper's."""

import pytest

from eldr.paper.figure import Claim, Finding, Role
from eldr.paper.verdict import judge, verdict

RANGE = Claim("a change", -10, -5)
ONE = Claim("a change", -8, -8, slack=1)
DIRECTION = Claim("a change")
CLAIMS = {"range": RANGE, "one": ONE, "direction": DIRECTION}


def found(mean: float, half: float | None = None, *, claim: str = "range", role: Role = "number") -> Finding:
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return Finding(
        claim=claim, source="s", evidence="model", role=role, mean=mean, low=low, high=high, over="-"
    )


@pytest.mark.parametrize(
    ("claim", "finding", "said"),
    [
        (RANGE, found(-7), "agrees"),
        (RANGE, found(-5), "agrees"),
        (RANGE, found(-4.9), "same direction, smaller"),
        (RANGE, found(-4.9, 0.2), "agrees"),
        (RANGE, found(-12, 1), "same direction, larger"),
        (RANGE, found(-1, 2), "no clear effect"),
        (RANGE, found(-4, 4.5), "no clear effect"),
        (RANGE, found(-6, 7), "agrees"),
        (RANGE, found(3), "differs"),
        (RANGE, found(-7, role="direction"), "same direction"),
        (RANGE, found(7, role="direction"), "differs"),
        (RANGE, found(7, role="fitted"), "fitted to it"),
        (ONE, found(-9), "agrees"),
        (ONE, found(-9.1), "same direction, larger"),
        (DIRECTION, found(-1, 0.5), "same direction"),
        (DIRECTION, found(-1, 1.5), "no clear effect"),
        (DIRECTION, found(2, 1.5), "differs"),
        (Claim("by more than a little", slack=0.5), found(-0.4), "differs"),
        (Claim("by more than a little", slack=0.5), found(-0.6), "same direction"),
        (Claim("a ratio", 4, 5, "x", sign=1, neutral=1), found(3), "same direction, smaller"),
        (Claim("a ratio", 4, 5, "x", sign=1, neutral=1), found(0.9), "differs"),
        (Claim("no side", 0, 0, sign=0), found(0.5, 1), "differs"),
    ],
)
def test_a_finding(claim: Claim, finding: Finding, said: str) -> None:
    assert judge(finding, claim) == said


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ([], "no number to compare"),
        ([found(-7, role="fitted")], "no number to compare"),
        ([found(-7), found(-8, claim="one")], "reproduced"),
        ([found(-7), found(-1, claim="direction")], "reproduced"),
        ([found(-7), found(9, role="fitted")], "reproduced"),
        ([found(-7), found(-3)], "partly"),
        ([found(-7), found(3)], "partly"),
        ([found(-7, role="direction")], "partly"),
        ([found(3), found(4, claim="one")], "not"),
        ([found(3), found(-1, 2)], "not"),
    ],
)
def test_a_figure(findings: list[Finding], said: str) -> None:
    assert verdict(findings, CLAIMS) == said
