"""The settings that the simulated figures share, as a table of the page."""

from collections.abc import Sequence

from eldr.paper import grid
from eldr.paper.figure import Table
from eldr.paper.grid import Run
from eldr.paper.measure import serving, worlds
from eldr.paper.measure.costs import cost_of
from eldr.paper.measure.sources import LAYERS
from eldr.paper.sources import MODELS


def settings_table(recorded: Sequence[tuple[str, str]]) -> Table:
    """How all simulated figures are run, unless they say otherwise. recorded: cells beside the synthetic
    ones."""
    usual = Run(model="", workload="")
    low, high = serving.WINDOW
    shortest, longest = worlds.PROMPT_RANGE
    rows = [
        ["pool", f"{usual.prefill} prefill and {usual.decode} decode workers"],
        ["arrivals", f"Poisson, {serving.SECONDS} s or {serving.LEAST_REQUESTS} requests, whichever is more"],
        ["measured", f"requests that arrive between {low:.0%} and {high:.0%} of that time"],
        [
            "prompts",
            f"log-normal, median {worlds.PROMPT_MEDIAN:g} tokens, {shortest} to {longest}; recorded ones as "
            "they are",
        ],
        [
            "outputs",
            f"log-normal, median {serving.OUTPUT_MEDIAN:g} tokens, at most {serving.OUTPUT_MOST} (an "
            "assumption)",
        ],
        ["calibration", f"{worlds.CALIBRATED} other requests; half of the recorded ones"],
        ["signatures", f"{usual.transformation}, layers chosen greedily, balanced K-means, tau {usual.tau}"],
        ["synthetic models", f"{LAYERS} of their layers, evenly spaced; a step costs what their mean does"],
        ["seeds", f"{len(grid.SEEDS)}; each draws the model, the fit, arrivals and lengths anew"],
        [
            "step costs",
            "; ".join(
                f"{model}: {cost_of(model).name}" for model in (*MODELS, *(model for model, _ in recorded))
            ),
        ],
    ]
    return Table("Settings of the simulated figures", ["what", "setting"], rows)
