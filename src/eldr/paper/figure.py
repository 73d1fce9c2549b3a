"""What a figure of the paper is: what the paper says, how ours is made, and how the two are compared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from eldr.paper.pieces import Piece
from eldr.registry import Registry

Evidence = Literal["engine", "trace", "model"]
"""engine: a real vLLM run or kernel measurement. trace: expert choices recorded from a real model. model: a
synthetic mixture of experts.
"""

Role = Literal["number", "direction", "fitted"]
"""number: of the paper's model, or one made to be like it, so that the numbers can be compared. direction: of
another model, so that only the sign can. fitted: the model was made to have this number, which shows nothing.
"""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the paper says of one quantity.

    low, high: the range that it gives, equal for a single number; None where it gives a direction only.
    sign: +1 or -1, on which side of `neutral` the paper sees it; 0 where neither side is claimed.
    slack: by how much a number may miss the range and still agree, in the same unit; of a direction, what is
    too little to count.
    """

    what: str
    low: float | None = None
    high: float | None = None
    unit: str = "%"
    sign: int = -1
    neutral: float = 0.0
    slack: float = 0.0
    digits: int = 1


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What we got for one claim, on one source.

    mean, low, high: in the claim's unit; low and high are a 95 % interval, None where there is none.
    over: what the interval spans ("95 % over 5 seeds"), or how far single values lie apart.
    """

    claim: str
    source: str
    evidence: Evidence
    role: Role
    mean: float
    low: float | None = None
    high: float | None = None
    over: str

    @property
    def interval(self) -> tuple[float, float]:
        """Its ends, both the mean where there is none."""
        return (self.mean if self.low is None else self.low, self.mean if self.high is None else self.high)


class Table(msgspec.Struct, frozen=True):
    """Cells of a table on the page, ready to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Result(msgspec.Struct, frozen=True):
    """What a figure shows. series: what its plot is drawn from, JSON only."""

    findings: list[Finding]
    series: dict[str, Any]
    tables: list[Table] = []


Pieces = Sequence[Piece]
Outputs = Mapping[str, Any]
"""What each piece of a figure returned, by the piece's name within the figure."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure or table of the paper.

    says: what it shows in the paper, in a sentence. claims: the same as numbers, by a short name.
    pieces: what has to be computed, by name. result: from what the pieces returned.
    draw: the plot of a result; it gets matplotlib.pyplot. None for a table or a schematic.
    why: why ours differs from the paper's, where it does. change: what would change that.
    """

    id: str
    title: str
    says: str
    claims: Mapping[str, Claim]
    pieces: Callable[[], Mapping[str, Piece]]
    result: Callable[[Outputs], Result]
    draw: Callable[[Any, Result], Any] | None
    why: Callable[[Result], str]
    change: Callable[[Result], str]

    @property
    def label(self) -> str:
        """As the paper names it: Fig. 4, Table 2, Overhead."""
        kind, number = self.id.rstrip("0123456789"), self.id.lstrip("abcdefghijklmnopqrstuvwxyz")
        return f"{ {'fig': 'Fig.', 'table': 'Table'}.get(kind, kind.capitalize()) } {number}".strip()


FIGURES: Registry[Figure] = Registry("figure")


def register(figure: Figure) -> Figure:
    """Add a figure to those that `eldr paper` knows."""
    return FIGURES.register(figure.id)(figure)
