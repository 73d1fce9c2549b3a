"""Balanced K-means against `k-means-constrained` and a plain Lloyd start: objective and CPU time.

    make bench-kmeans

On made-up signatures of skewed groups: what an assignment costs depends on rows and clusters, hardly on the
length of the signatures. Each run has a process of its own that ends at a limit of CPU time.
"""

import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import numpy as np

from eldr.bench.kmeans_page import write_plot, write_table
from eldr.bench.machine import describe_machine
from eldr.files import replacing
from eldr.profile.balance import assign_balanced
from eldr.profile.kmeans import BalancedKMeans, mean_directions, seed_centroids
from eldr.profile.prices import Labels, gap, raise_prices, repair
from eldr.program import run
from eldr.types import Matrix

LENGTH, GROUPS, TOKENS = 128, 24, 60
STARTS, STEPS = 4, 50
EXACT_UP_TO = 4_000_000
"""Cosines up to which the gap is also measured against the exact assignment."""


def draw_signatures(n: int, rng: np.random.Generator) -> Matrix:
    """Return unit rows [n, LENGTH]: counts of GROUPS groups of different sizes, noisy as short prompts."""
    preference = rng.gamma(0.3, size=(GROUPS, LENGTH))
    share = (preference / preference.sum(axis=1, keepdims=True))[
        rng.choice(GROUPS, n, p=rng.dirichlet(np.full(GROUPS, 0.7)))
    ]
    rows = rng.poisson(TOKENS * share * rng.gamma(2, 0.5, share.shape)).astype(np.float32)
    rows[~rows.any(axis=1), 0] = 1
    unit: Matrix = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def by_eldr(rows: Matrix, clusters: int) -> Labels:
    """`BalancedKMeans` as `eldr fit` runs it."""
    return BalancedKMeans(clusters, starts=STARTS, steps=STEPS).fit(rows).labels_


def by_lloyd(rows: Matrix, clusters: int) -> Labels:
    """The best of as many plain K-means, then one balanced assignment to its centroids."""
    rng = np.random.default_rng(0)
    found = max(
        (_lloyd(rows, seed_centroids(rows, clusters, rng)) for _ in range(STARTS)), key=lambda f: f[0]
    )
    return assign_balanced(rows @ found[1].T)[0]


def _lloyd(rows: Matrix, centroids: Matrix) -> tuple[float, Matrix]:
    labels: Labels = np.full(len(rows), -1)
    for _ in range(STEPS):
        similarity = rows @ centroids.T
        previous, labels = labels, similarity.argmax(axis=1)
        if np.array_equal(previous, labels):
            break
        centroids = mean_directions(rows, labels, centroids)
    return float(similarity.max(axis=1).sum(dtype=np.float64)), centroids


def by_constrained(rows: Matrix, clusters: int) -> Labels:
    """The package `k-means-constrained`: minimum-cost flow, squared distances."""
    from k_means_constrained import KMeansConstrained

    capacity = -(-len(rows) // clusters)
    fitted = KMeansConstrained(
        clusters, size_min=1, size_max=capacity, n_init=STARTS, max_iter=STEPS, random_state=0, n_jobs=1
    ).fit(rows.astype(np.float64))
    labels: Labels = fitted.labels_.astype(np.int64)
    return labels


METHODS: dict[str, Callable[[Matrix, int], Labels]] = {
    "eldr": by_eldr,
    "lloyd": by_lloyd,
    "k-means-constrained": by_constrained,
}


def measure(method: str, n: int, clusters: int) -> dict[str, Any]:
    """Return cpu_s, cosine (of rows and their cluster's direction) and inertia, both as means."""
    rows = draw_signatures(n, np.random.default_rng(0))
    started_s = time.process_time()
    labels = METHODS[method](rows, clusters)
    cpu_s = time.process_time() - started_s
    sizes = np.bincount(labels, minlength=clusters)
    assert sizes.max() <= -(-n // clusters)
    sums = (labels == np.arange(clusters)[:, None]).astype(np.float32) @ rows
    squared = np.einsum("kd,kd->k", sums, sums, dtype=np.float64)
    return {
        "cpu_s": cpu_s,
        "cosine": float(np.sqrt(squared).sum() / n),
        "inertia": float(1 - (squared / np.maximum(sizes, 1)).sum() / n),
        "smallest": int(sizes.min()),
        "largest": int(sizes.max()),
    }


def measure_gap(n: int, clusters: int) -> dict[str, Any]:
    """Return how far from the best an assignment by prices is: at most (by duality), and where affordable
    exactly; as shares of the sum of cosines.
    """
    rows = draw_signatures(n, np.random.default_rng(0))
    similarity = rows @ seed_centroids(rows, clusters, np.random.default_rng(1)).T
    capacity = -(-n // clusters)
    started_s = time.process_time()
    labels, prices = raise_prices(similarity, capacity, np.zeros(clusters, np.float32))
    near = repair(similarity, capacity, labels)
    near_s = time.process_time() - started_s
    found: dict[str, Any] = {"near_s": near_s, "bound": gap(similarity, capacity, near, prices)}
    if similarity.size <= EXACT_UP_TO:
        started_s = time.process_time()
        exact, _ = assign_balanced(similarity)
        found["exact_s"] = time.process_time() - started_s
        places = np.arange(n)
        best, reached = (similarity[places, one].sum(dtype=np.float64) for one in (exact, near))
        found["gap"] = float(best / reached - 1)
    return found


def within(limit_s: int, step: Callable[..., dict[str, Any]], *args: object) -> dict[str, Any]:
    """Run a step in a process of its own; {"limit_s": ...} where it took more of CPU time."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(theirs, limit_s, step, args))
    child.start()
    theirs.close()
    try:
        result: dict[str, Any] = ours.recv()
        return result
    except EOFError:
        return {"limit_s": limit_s}
    finally:
        child.join()


def _report(
    pipe: Connection, limit_s: int, step: Callable[..., dict[str, Any]], args: tuple[Any, ...]
) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    pipe.send(step(*args))


def load_rows(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """What an earlier run kept, by rows and clusters."""
    kept = json.loads(path.read_bytes())["rows"] if path.is_file() else []
    return {(row["n"], row["k"]): row for row in kept}


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="For JSON, plot."
)
@click.option("--page", type=click.Path(path_type=Path, exists=True), help="Document with a part `kmeans`.")
@click.option("--rows", "sizes", multiple=True, type=int, default=(1_000, 10_000, 50_000), show_default=True)
@click.option("--clusters", multiple=True, type=int, default=(8, 64, 256), show_default=True)
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)), default=list(METHODS))
@click.option("--limit", "limit_s", default=60, show_default=True, help="CPU seconds for a run.")
def main(
    out: Path,
    page: Path | None,
    sizes: tuple[int, ...],
    clusters: tuple[int, ...],
    methods: tuple[str, ...],
    limit_s: int,
) -> None:
    """Measure, and write OUT/kmeans.json and .png and the table in PAGE. What is not measured again stays."""
    kept = load_rows(out / "kmeans.json")
    for n, k in [(n, k) for n in sizes for k in clusters]:
        entry = kept.setdefault((n, k), {"n": n, "k": k})
        entry["prices"] = within(limit_s, measure_gap, n, k)
        entry |= {method: within(limit_s, measure, method, n, k) for method in methods}
        click.echo(json.dumps(entry))
        rows = [kept[key] for key in sorted(kept)]
        report = {"machine": describe_machine(), "starts": STARTS, "rows": rows}
        with replacing(out / "kmeans.json") as file:
            file.write(json.dumps(report, indent=2).encode() + b"\n")
    write_plot(report, out / "kmeans.png")
    if page is not None:
        write_table(report, page)


if __name__ == "__main__":
    run(main)
