"""The rule by which our numbers are held against the paper's: the same for every figure, and no judgement."""

from collections.abc import Mapping, Sequence
from typing import Literal

from eldr.paper.figure import Claim, Finding

Verdict = Literal["reproduced", "partly", "not", "no number to compare"]

RULE = """\
A number *agrees* where it lies in the paper's range (widened by the slack that stands beside it, if
any), or where its 95 % interval meets that range and does not reach to no effect. It has the *same
direction* where its interval lies on the paper's side of no effect, *no clear effect* where its
interval has both sides, and *differs* otherwise. Of the tiny embedded model, and of recorded models
in simulated runs, only the direction is compared. What a synthetic model was fitted to have is
shown, but counts for nothing. A figure is **reproduced** when all that was compared agrees (where
the paper gives no number: has its direction) and at least one number was compared; **not** when
nothing agrees or has the same direction; and **partly** otherwise."""

AGREES = "agrees"
DIFFERS = "differs"
UNCLEAR = "no clear effect"
FITTED = "fitted to it"
DIRECTION = "same direction"


def judge(finding: Finding, claim: Claim) -> str:
    """How a finding stands to the paper's claim."""
    if finding.role == "fitted":
        return FITTED
    if finding.role == "number" and _meets(finding, claim):
        return AGREES
    if not _same_side(finding, claim):
        low, high = finding.interval
        return UNCLEAR if claim.sign and low < claim.neutral < high else DIFFERS
    if finding.role == "direction" or claim.low is None or claim.high is None:
        return DIRECTION
    effect, stated = abs(finding.mean - claim.neutral), abs((claim.low + claim.high) / 2 - claim.neutral)
    return f"{DIRECTION}, {'larger' if effect > stated else 'smaller'}"


def verdict(findings: Sequence[Finding], claims: Mapping[str, Claim]) -> Verdict:
    """The verdict on a figure, by RULE."""
    compared = [f for f in findings if f.role != "fitted"]
    said = [judge(finding, claims[finding.claim]) for finding in compared]
    if not said:
        return "no number to compare"
    good = [
        _fully(finding, claims[finding.claim], word) for finding, word in zip(compared, said, strict=True)
    ]
    if all(good) and AGREES in said:
        return "reproduced"
    return "not" if all(word in (DIFFERS, UNCLEAR) for word in said) else "partly"


def _fully(finding: Finding, claim: Claim, word: str) -> bool:
    """Whether more could not be asked of this finding."""
    directional = finding.role == "direction" or claim.low is None
    return word == AGREES or (directional and word == DIRECTION)


def _meets(finding: Finding, claim: Claim) -> bool:
    if claim.low is None or claim.high is None:
        return False
    least, most = claim.low - claim.slack, claim.high + claim.slack
    low, high = finding.interval
    return least <= finding.mean <= most or (_same_side(finding, claim) and high >= least and low <= most)


def _same_side(finding: Finding, claim: Claim) -> bool:
    """Whether all of the interval is on the paper's side; where only that is claimed, by more than the
    slack."""
    low, high = finding.interval
    least = claim.slack if claim.low is None else 0.0
    if claim.sign > 0:
        return low > claim.neutral + least
    return claim.sign < 0 and high < claim.neutral - least
