"""Whether a source's numbers may be held against the paper's, or only their direction."""

from collections.abc import Mapping
from typing import Any

from eldr.paper.figure import Role

TINY = ("eldr-embedded",)
"""Models whose numbers are their own: far smaller than those of the paper."""


def role_of(facts: Mapping[str, Any], *, fitted: bool = False) -> Role:
    """The role of a finding on a source with these facts (model, evidence).

    fitted: whether synthetic models were made to have this number, so that it shows nothing of its own.
    """
    if facts["evidence"] == "model" and fitted:
        return "fitted"
    return "direction" if facts["model"] in TINY else "number"
