"""Capacity prices: assignments of many rows to clusters of limited size, nearly balanced or nearly the best.

Each cluster has a price, and each row goes where its cosine less the price is the largest. With the right
prices that is the best balanced assignment (they are the dual of its capacities). Raising the price of every
overfull cluster until its excess leaves comes close in some ten rounds, each of which looks at the rows of
overfull clusters only.
"""

import numpy as np
import numpy.typing as npt

from eldr.types import Matrix

Labels = npt.NDArray[np.int64]
Prices = npt.NDArray[np.float32]

ROUNDS = 60
"""Rounds of raising prices at most; what is still overfull then has few rows too many."""

_EPSILON = np.float32(1e-6)


def raise_prices(similarity: Matrix, capacity: int, prices: Prices) -> tuple[Labels, Prices]:
    """Return the cluster [N] of each row of cosines [N, K] under raised prices, and these prices [K].

    prices: float32 [K] to start from. Clusters may still hold a few rows more than `capacity`.
    """
    prices = prices.copy()
    labels: Labels = (similarity - prices).argmax(axis=1)
    for _ in range(ROUNDS):
        sizes = np.bincount(labels, minlength=len(prices))
        rows = np.flatnonzero((sizes > capacity)[labels])
        if not len(rows):
            break
        regret = _regret(similarity[rows] - prices, labels[rows])
        for cluster in np.flatnonzero(sizes > capacity):
            members = regret[labels[rows] == cluster]
            excess = sizes[cluster] - capacity
            prices[cluster] += np.partition(members, excess - 1)[excess - 1] + _EPSILON
        labels[rows] = (similarity[rows] - prices).argmax(axis=1)
    return labels, prices


def repair(similarity: Matrix, capacity: int, labels: Labels) -> Labels:
    """Return labels [N] with at most `capacity` rows a cluster: excess rows move where they lose the least.

    Not the best assignment: see `gap`.
    """
    labels = labels.copy()
    while True:
        space = capacity - np.bincount(labels, minlength=similarity.shape[1])
        rows = np.flatnonzero((space < 0)[labels])
        if not len(rows):
            return labels
        elsewhere = np.where(space > 0, similarity[rows], -np.inf)
        target = elsewhere.argmax(axis=1)
        loss = similarity[rows, labels[rows]] - elsewhere.max(axis=1)
        leaving = _least(loss, labels[rows], -space)
        arriving = leaving[_least(loss[leaving], target[leaving], space)]
        labels[rows[arriving]] = target[arriving]


def gap(similarity: Matrix, capacity: int, labels: Labels, prices: Prices) -> float:
    """Return by what share the best balanced assignment may be better than `labels`, at the most.

    Weak duality: no balanced assignment has a larger sum than sum_i max_k (s_ik - p_k) + capacity sum_k p_k
    for any p >= 0.
    """
    p = (prices - prices.min()).astype(np.float64)
    bound = float((similarity - p).max(axis=1).sum() + capacity * p.sum())
    return bound / float(similarity[np.arange(len(labels)), labels].sum(dtype=np.float64)) - 1


def _regret(value: Matrix, labels: Labels) -> Matrix:
    """What each row loses by its next best cluster."""
    rows = np.arange(len(labels))
    own = value[rows, labels]
    value[rows, labels] = -np.inf
    regret: Matrix = own - value.max(axis=1)
    return regret


def _least(loss: Matrix, group: Labels, quota: Labels) -> npt.NDArray[np.intp]:
    """Of each group the rows with the least loss, at most quota[group] of them."""
    order = np.lexsort((loss, group))
    sizes = np.bincount(group, minlength=len(quota))
    place = np.arange(len(group)) - np.repeat(sizes.cumsum() - sizes, sizes)
    chosen: npt.NDArray[np.intp] = order[place < quota[group[order]]]
    return chosen
