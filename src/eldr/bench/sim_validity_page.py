"""The checks of the simulator as Markdown."""

from collections.abc import Iterator, Sequence

from eldr.bench.sim_validity_active import ActiveCheck
from eldr.bench.sim_validity_cost import CostCheck, RestCheck
from eldr.bench.sim_validity_live import LiveCheck
from eldr.bench.sim_validity_queues import QueueCheck
from eldr.sim.comparison import Interval


def page(
    active: Sequence[ActiveCheck],
    costs: Sequence[CostCheck],
    rest: Sequence[RestCheck],
    queues: Sequence[QueueCheck],
    live: Sequence[LiveCheck],
) -> str:
    """All of them."""
    verdicts = _table(["what", "target", "reached", ""], list(_verdicts(active, costs, queues, live)))
    parts = [verdicts, _active(active), _costs(costs), _rest(rest), _live(live), _queues(queues)]
    return "\n\n".join(parts) + "\n"


def _verdicts(
    active: Sequence[ActiveCheck],
    costs: Sequence[CostCheck],
    queues: Sequence[QueueCheck],
    live: Sequence[LiveCheck],
) -> Iterator[list[str]]:
    """What was aimed at, what came out, and whether that is enough."""
    mean = sum(abs(check.error) for check in active) / len(active)
    yield ["active experts, mean error", "2 %", f"{mean:.2%}", _met(mean, 0.02)]
    for part in ("moe", "attention"):
        errors = [check.error for check in costs if check.part == part and check.error is not None]
        if errors:
            yield [
                f"{part} of a step, error on unseen points",
                "none set",
                f"{min(errors):.1%} to {max(errors):.1%}",
                "",
            ]
    if live:
        decisions, same = sum(c.decisions for c in live), sum(c.same + c.within_rounding for c in live)
        yield [
            "a live run's decisions taken again",
            "all",
            f"{same} of {decisions}",
            _met(decisions - same, 0),
        ]
        for name, errors in (
            ("on the live batches", [c.batches_error for c in live]),
            ("at the live batch sizes", [c.sized_error for c in live]),
            ("in batches of its own", [c.error for c in live]),
        ):
            worst = max(errors, key=abs)
            yield [
                f"active experts of the live run, {name}",
                "5 %",
                f"{worst:+.1%} at most",
                _met(abs(worst), 0.05),
            ]
    worst = max((check.same_input.mean for check in queues), key=abs)
    yield ["waiting times, same input", "none set", f"{worst:+.1%} at most", ""]
    inside = [
        q
        for q in queues
        if q.error.low is not None and q.error.high is not None and q.error.low <= 0 <= q.error.high
    ]
    yield [
        "waiting times, closed form within the interval",
        "all",
        f"{len(inside)} of {len(queues)}",
        _met(len(queues) - len(inside), 0),
    ]


def _met(value: float, most: float) -> str:
    return "met" if value <= most else "**not met**"


def _active(checks: Sequence[ActiveCheck]) -> str:
    worst = max(checks, key=lambda check: abs(check.error))
    mean = sum(abs(check.error) for check in checks) / len(checks)
    rows = [
        [
            c.model,
            c.members,
            str(c.batch),
            f"{c.counted:.2f}",
            f"{c.expected:.2f}",
            f"{c.error:+.2%}",
            f"{c.batch_error:.1%}",
        ]
        for c in checks
    ]
    header = ["model", "batches", "size", "counted", "expected", "error", "of one step"]
    return "\n".join(
        [
            "### Active experts: expected unions against counts of real batches\n",
            f"Mean error {mean:.2%}, largest {worst.error:+.2%} "
            f"({worst.model}, {worst.members}, batch {worst.batch}). "
            '"Of one step" is the mean error of a single step, which the expectation averages over.\n',
            _table(header, rows),
        ]
    )


def _costs(checks: Sequence[CostCheck]) -> str:
    rows = [
        [
            c.cost,
            c.part,
            str(c.points),
            "" if c.r2 is None else f"{c.r2:.4f}",
            "" if c.error is None else f"{c.error:.1%}",
        ]
        for c in checks
    ]
    return "\n".join(
        [
            "### Step costs: error on measurements that the fit had not seen\n",
            _table(["cost", "part", "measurements", "R2", "error"], rows),
        ]
    )


def _rest(checks: Sequence[RestCheck]) -> str:
    rows = [
        [c.gpu, f"{c.derived_ms:.2f}", f"{c.measured_ms:.2f}", f"{c.error:+.0%}", f"{c.share_of_step:.0%}"]
        for c in checks
    ]
    return "\n".join(
        [
            "### The rest of a step, derived against measured (Qwen3-30B-A3B, batch 32)\n",
            _table(["GPU", "derived ms", "measured ms", "error", "share of the step"], rows),
        ]
    )


def _live(checks: Sequence[LiveCheck]) -> str:
    title = "### One run live on vLLM and in the simulator\n"
    if not checks:
        return title + "\nNot measured: `python -m eldr.bench.sim_live` records one."
    rows = [
        [
            c.policy,
            f"{c.same} of {c.decisions}"
            + (f" (+{c.within_rounding} within rounding)" if c.within_rounding else ""),
            f"{c.counted:.2f} / {c.expected:.2f}",
            f"{c.batches_error:+.2%}",
            f"{c.live_active:.2f} / {c.sized_active:.2f}",
            f"{c.sized_error:+.1%}",
            f"{c.live_active:.2f} / {c.simulated_active:.2f}",
            f"{c.error:+.1%}",
            f"{c.live_batch:.1f} / {c.simulated_batch:.1f}",
            f"{c.live_tpot_p50_ms:.0f} / {c.simulated_tpot_p50_ms:.0f}",
        ]
        for c in checks
    ]
    header = [
        "policy",
        "same decisions",
        "live batches",
        "error",
        "live sizes",
        "error",
        "own batches",
        "error",
        "batch",
        "TPOT p50 ms",
    ]
    return "\n".join(
        [
            title,
            f"Embedded model, 1P{checks[0].decode_workers}D, a backlog; pairs are live / simulated. "
            "Decisions: the router's log, taken again. Live batches: active experts of the steps whose batch "
            f"is known from the times of requests ({min(c.known_share for c in checks):.0%} or more). "
            "Own batches: the whole run simulated, with step times fitted to it, so TPOT is no prediction. "
            "Live sizes: the same with each batch size weighted as live: what else runs here shifts them.\n",
            _table(header, rows),
        ]
    )


def _queues(checks: Sequence[QueueCheck]) -> str:
    rows = [
        [c.queue, f"{c.load:.0%}", f"{c.closed_form_s * 1e3:.1f}", _percent(c.error), _percent(c.same_input)]
        for c in checks
    ]
    return "\n".join(
        [
            "### Mean waiting times against closed forms\n",
            'With 95 % intervals over seeds. "Same input": against the plainest recursion over the same '
            "arrivals and service times.\n",
            _table(["queue", "load", "closed form ms", "error", "same input"], rows),
        ]
    )


def _percent(value: Interval) -> str:
    half = "" if value.high is None else f" ± {value.high - value.mean:.1%}"
    return f"{value.mean:+.1%}{half}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
