"""How long requests stay on each worker, without a clock or lengths: what it holds over what it gets."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MEMORY = 2.0
"""Decisions that are remembered, in units of the requests in flight: about two turns of all batches."""

LEAST = 0.25
"""Stays that are shorter than this, relative to the mean, count as this."""

Floats = npt.NDArray[np.float64]


class Stays:
    """Decaying sums, a decision at a time. held: requests in flight, sent: decisions for each, float64 [K].

    By Little's law held / sent is in proportion to how long a request stays.
    """

    def __init__(self, workers: int) -> None:
        self.held, self.sent = np.zeros(workers), np.zeros(workers)
        self._all_held = self._all_sent = 0.0  # their sums, at hand

    def see(self, in_flight: npt.NDArray[np.int64]) -> None:
        """Count in what the workers [K] hold at a decision, before it is taken."""
        total = float(in_flight.sum())
        kept = 1 - 1 / max(MEMORY * total, len(in_flight), 1)
        self.held *= kept
        self.held += in_flight
        self.sent *= kept
        self._all_held = self._all_held * kept + total
        self._all_sent *= kept

    def add(self, worker: int) -> None:
        """Count in what was decided."""
        self.sent[worker] += 1
        self._all_sent += 1

    def relative(self) -> Floats:
        """The stay on each worker [K] in units of the mean request's, LEAST to 1: longer ones count as 1.

        As if each had got one more request, that stayed as the mean: so one that got none yet has 1.
        """
        mean = self._all_held / max(self._all_sent, 1.0)
        if not mean:
            return np.ones(len(self.held))
        stays = (self.held + mean) / ((self.sent + 1) * mean)
        relative: Floats = np.minimum(np.maximum(stays, LEAST), 1)
        return relative

    def take(self, rows: Sequence[int], other: "Stays", old: Sequence[int]) -> None:
        """Go on, in these rows, with what another knows of its rows."""
        self.held[rows], self.sent[rows] = other.held[old], other.sent[old]
        self._all_held, self._all_sent = float(self.held.sum()), float(self.sent.sum())
