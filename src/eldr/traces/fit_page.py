"""docs/synthetic.md: what the synthetic MoE was fitted to, beside what it achieves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from eldr.traces.base import ExpertTraces
from eldr.traces.presets import FITTED, SHAPES
from eldr.traces.recorded import QwenCounts
from eldr.traces.statistics import layer_cosines
from eldr.traces.targets import Target, language_cosines

Achieved = Mapping[str, Sequence[Sequence[float]]]
"""Model -> for each target the values of all draws."""

HEAD = """# The synthetic MoE

Evidence: **model**. This page and `src/eldr/traces/presets.json` are written by `python -m
eldr.traces.fit`.

No public recording has both prefill and decode choices of labelled requests of a model of the paper's size.
What stands in for it is `eldr.traces.synthetic`: the router's logits of a request in a layer and a phase
are

    z = popularity + layer's factor x (domain + topic + request + domain's phase + request's phase)

with Gaussian parts, one number an expert; a token chooses the top k of z + Gumbel noise. Domain, topic and
request are the same in prefill and in decode, the two phase parts are not. Prefill counts are drawn for the
tokens of the prompt, decode is kept as each expert's probability to be chosen by a token. Tokens of a
request choose independently, which leaves out that neighbouring tokens resemble each other; the union over
a batch of different requests does not depend on that.

`preset(model, workload)` gives a model of one of these shapes: SHAPES. The scales are fitted in the shape
of FITTED; the other shapes take them over, since nothing comparable is known of these. Values are of every
third layer and of draws that the fit has not seen. A target in brackets is a band: inside of it any value
is as good; (!) marks what is outside in the fitted shape. Change is that of active experts a step and layer.
"""

TAIL = """
What was not fitted but assumed: domains of tasks are unrelated to each other; each has three equally
frequent topics (the paper has twelve benchmarks in four domains); languages share eight topics, whose scale
is that of the tasks; Russian is as near to German, Spanish and French as English is, Portuguese is as near
to Spanish as French is; the paper's other languages are German and Japanese. How much layers differ follows
the recorded ones: tasks those of DeepSeek-V2-Lite on ESFT, languages those of Qwen3-30B-A3B, by relative
depth. Bengali and Swahili are there to compare cosines, with a share of 0 in the traffic.
"""


@dataclass(frozen=True, slots=True)
class Cosines:
    """Cosines between languages, by pair: recorded and achieved."""

    pairs: list[str]
    recorded: list[float]
    achieved: list[float]

    @classmethod
    def compare(cls, counts: QwenCounts, traces: ExpertTraces) -> Self:
        names = list(counts.languages)
        recorded_rates = np.stack(list(counts.languages.values()))[:, traces.layers]
        both = (layer_cosines(recorded_rates), language_cosines(traces, names))
        rows, columns = np.triu_indices(len(names), 1)
        recorded, found = (matrix[rows, columns].tolist() for matrix in both)
        return cls([f"{names[a]}-{names[b]}" for a, b in zip(rows, columns, strict=True)], recorded, found)

    def sentence(self) -> str:
        """How well they agree."""
        apart = np.array(self.achieved) - np.array(self.recorded)
        correlation = np.corrcoef(self.achieved, self.recorded)[0, 1]
        worst = int(np.abs(apart).argmax())
        return (
            f"Cosines of the {len(self.pairs)} pairs of recorded languages, one draw: correlation with the "
            f"recorded ones {correlation:.3f}, root mean square difference "
            f"{np.sqrt((apart**2).mean()):.3f}, the largest {apart[worst]:+.2f} ({self.pairs[worst]}: "
            f"{self.achieved[worst]:.2f}, recorded {self.recorded[worst]:.2f})."
        )


def page(
    parameters: Mapping[str, Any], tables: Sequence[tuple[str, Sequence[Target], Achieved]], cosines: Cosines
) -> str:
    """The whole page. tables: workload, its targets, and what each shape achieves."""
    shapes = "; ".join(f"`{name}` ({n} layers, {e} experts, top-{k})" for name, (n, e, k) in SHAPES.items())
    parts = [HEAD.replace("SHAPES", shapes).replace("FITTED", f"`{FITTED}`")]
    for workload, goals, achieved in tables:
        parts += [f"\n## {workload}\n", _scales(parameters[workload]["scales"]), "", *_table(goals, achieved)]
    return "\n".join([*parts, "", cosines.sentence(), TAIL])


def _scales(scales: Mapping[str, float]) -> str:
    return "Scales (nats): " + ", ".join(f"{name} {value:.3f}" for name, value in scales.items()) + "."


def _table(goals: Sequence[Target], achieved: Achieved) -> list[str]:
    names = list(achieved)
    head = [f"| statistic | target | {' | '.join(names)} | target from |", "|---" * (len(names) + 3) + "|"]
    rows = []
    for place, goal in enumerate(goals):
        cells = [_cell(goal, achieved[name][place], marked=name == FITTED) for name in names]
        band = f"[{_figure(goal.low)}, {_figure(goal.high)}]"
        rows.append(f"| {goal.name} | {band} | {' | '.join(cells)} | {goal.source} |")
    return [*head, *rows]


def _cell(goal: Target, values: Sequence[float], *, marked: bool) -> str:
    """The mean over draws, ± half their range where there are several, and a mark outside the band."""
    mean = float(np.mean(values))
    spread = f" ± {_figure(float(np.ptp(values)) / 2)}" if len(values) > 1 else ""
    mark = " (!)" if marked and not goal.low <= mean <= goal.high else ""
    return f"{_figure(mean)}{spread}{mark}"


def _figure(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 2 else f"{value:.3f}"
