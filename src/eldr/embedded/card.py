"""The model's card, written from `training.json` and `measured.json`; no figure is typed by hand."""

import json
from pathlib import Path
from typing import Any

from eldr.errors import ConfigError

_SOURCES = """\
| domain | text | licence |
|---|---|---|
| code | Python standard library; TheAlgorithms/Python | PSF; MIT |
| math | openai/grade-school-math, question and answer | MIT |
| medicine | abachaa/MedQuAD, patient questions and answers | CC BY 4.0 |
| law | DCCouncil/law-xml, code of the District of Columbia | statute text; the repository states no licence |
| en, zh, ru, fr, es, de | LibreOffice help, Debian installation guide, Debian handbook \
| MPL-2.0, GPL, GPL |
| en, zh, ru, es, de | google-deepmind/xquad | CC BY-SA 4.0 |
"""

_INTRO = """\
---
license: apache-2.0
tags: [mixture-of-experts, eldr]
---
<!-- Written by `python -m eldr.embedded.measure` from training.json and measured.json. Do not edit. -->
# The embedded model

A mixture-of-experts model so small that two CPU cores serve it ({parameters:.2f} M parameters, Qwen3-MoE
architecture, 4 layers of 64 experts, top-4, bfloat16), trained from scratch by
`python -m eldr.embedded.train` (`make model`). It exists because an untrained router has no domains:
ELDR's demo and tests need experts that specialise. Its text looks like its domain and says nothing; do not
use it for anything else.
"""

_CAVEAT = """\
**Language locality is stronger here than in real traffic.** The six languages are mostly the same help text,
so the language is nearly their only difference; users of a real service differ in language and subject
independently, and the paper finds only 3 to 10 % between languages.
The tasks are the more realistic comparison.
"""


def training_facts(model: Path) -> dict[str, Any]:
    """What `train` wrote about the run that made a model; ConfigError where it did not."""
    try:
        facts: dict[str, Any] = json.loads((model / "training.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{model / 'training.json'} cannot be read ({error}); train writes it") from error
    return facts


def card(training: dict[str, Any], measured: dict[str, Any]) -> str:
    """The whole card as Markdown."""
    sections = (
        _INTRO.format(parameters=training["parameters"] / 1e6),
        "## Data\n" + _SOURCES,
        _training(training, measured),
        _active(measured),
        _CAVEAT,
        _clusters(measured),
        _correlation(measured),
        _rho(measured),
    )
    return "\n".join(sections)


def _training(training: dict[str, Any], measured: dict[str, Any]) -> str:
    losses = measured["validation_loss"]
    return (
        "## Training\n"
        f"{training['tokens'] / 1e6:.1f} M tokens in {training['steps']} steps of {training['sequences']} "
        f"sequences of {training['sequence_tokens']} tokens, {training['seconds'] / 60:.0f} minutes on "
        f"{training['processes']} CPU threads. Muon for matrices, AdamW for the rest; the balance loss is "
        "taken over the whole mixed batch.\n\n"
        f"Validation loss, nats a token: {_listed(losses, '{:.2f}')}.\n\n"
        f"Over the measured prompts the busiest expert gets {measured['largest_load']:.1f} times its even "
        f"share, and {measured['unused_experts']} of {measured['experts']} experts get under a hundredth.\n"
    )


def _active(measured: dict[str, Any]) -> str:
    tables = measured["active_experts"]
    shortest, longest = measured["prefill_tokens"]
    lines = [
        "## Active experts: mixed batches against batches of one domain",
        f"{measured['requests']} held-out requests, prefill of {shortest} to {longest} tokens, "
        f"{measured['decode_tokens']} sampled tokens; distinct experts a layer and decode step.\n",
        "| batch | all ten domains | tasks only | languages only |",
        "|---|---|---|---|",
    ]
    sizes = zip(tables["all"], tables["tasks"], tables["languages"], strict=True)
    lines += [f"| {rows[0]['batch']} | " + " | ".join(map(_change, rows)) + " |" for rows in sizes]
    return "\n".join(lines) + "\n"


def _change(row: dict[str, float]) -> str:
    return f"{row['mixed']:.1f} -> {row['grouped']:.1f} ({row['change']:+.1%})"


def _clusters(measured: dict[str, Any]) -> str:
    tables = measured["clusters"]
    sizes = [row["batch"] for row in next(iter(tables.values()))]
    lines = [
        "## Active experts: batches of one cluster",
        "Clusters fitted to the prefill signatures of one half of the requests, batches drawn from the other "
        "half: what routing by cluster can give when load is no concern.\n",
        "| clusters | " + " | ".join(f"batch {size}" for size in sizes) + " |",
        "|---" * (len(sizes) + 1) + "|",
    ]
    lines += [f"| {k} | " + " | ".join(map(_change, rows)) + " |" for k, rows in tables.items()]
    return "\n".join(lines) + "\n"


def _correlation(measured: dict[str, Any]) -> str:
    correlation = measured["correlation"]
    return (
        "## Does prefill predict decode?\n"
        "Correlation of prefill and decode activation, relative to the mean of all domains: "
        f"{correlation['pooled']:.2f} pooled; by domain {_listed(correlation['by_domain'], '{:.2f}')}; "
        f"{correlation['by_request']:.2f} for a single request (the paper: 0.70 to 0.92).\n"
    )


def _rho(measured: dict[str, Any]) -> str:
    names = {"counts": "raw counts", "log": "1 + log", "idf": "log-IDF"}
    lines = [
        "## Signature quality rho",
        "Spearman rank correlation over request pairs: cosine of signatures against overlap in decode.\n",
        "| counts as | all ten domains | tasks only | languages only |",
        "|---|---|---|---|",
    ]
    for key, name in names.items():
        values = (measured["rho"][group][key] for group in ("all", "tasks", "languages"))
        lines.append(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    touched = f"A prefill touches {measured['touched']:.0%} of a layer's experts on average"
    lines.append(f"\n{touched}: the more it touches, the less document frequency has to go by.")
    return "\n".join(lines) + "\n"


def _listed(values: dict[str, float], form: str) -> str:
    return ", ".join(f"{name} {form.format(value)}" for name, value in values.items())
