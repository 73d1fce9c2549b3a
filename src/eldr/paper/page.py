"""docs/reproduction.md, from the saved results alone: no number on it is typed."""

from collections.abc import Sequence
from pathlib import Path

from eldr.files import replacing
from eldr.paper.build import Saved, load
from eldr.paper.figure import Claim, Figure, Finding, Table
from eldr.paper.verdict import RULE, judge, verdict

HEAD = """# The paper, figure by figure

ELDR: Expert-Locality-Aware Decode Routing for PD-Disaggregated MoE Serving, arXiv 2607.00466. This page is
written by `make paper` (`eldr paper all`) from the JSON files in [paper/](paper/), which hold every number;
`eldr paper fig4` makes one figure again, `eldr paper list` names them.

**Evidence**, in these words:

- **engine**: a real vLLM run, or a measurement of its kernels;
- **trace**: computed, or simulated, from expert choices that were recorded from a real model;
- **model**: simulated with a synthetic mixture of experts, made to be like one of the paper's models in the
  statistics that are stated; or computed for a model's stated shape.

**Limits.** Neither the paper's hardware (MI300X) nor the weights of its models were at hand, and its code is
not public. No run on 40 GPUs is behind anything here. Step costs come from published kernel measurements.
Recorded expert choices are of other models than the paper's, or of parts of what it needs; where a row says
"model", they are synthetic. Read ratios between policies, which are of equal arrivals, and not milliseconds.
What the paper says is taken from its versions 1 and 3. Some of its numbers were not at hand; the sections say
which.

Simulated figures share the settings that stand under Fig. 10.

**How the verdicts are made.** {rule}

## Summary

| figure | what | the paper | ours | evidence | verdict |
| --- | --- | --- | --- | --- | --- |
"""
NOT_YET = "not yet"


def write_page(figures: Sequence[Figure], folder: Path, page: Path) -> None:
    """Write the page from the results in the folder, which is linked from it by its name."""
    with replacing(page) as file:
        file.write(page_text(figures, folder).encode())


def page_text(figures: Sequence[Figure], folder: Path) -> str:
    """The page in Markdown. A figure without a result is there, as not yet made."""
    saved = [(figure, load(figure, folder)) for figure in figures]
    rows = [row for figure, own in saved for row in summary_rows(figure, own)]
    sections = [section(figure, own, folder) for figure, own in saved]
    return HEAD.format(rule=RULE.replace("\n", " ")) + "\n".join(rows) + "\n\n" + "\n".join(sections)


def summary_rows(figure: Figure, saved: Saved | None) -> list[str]:
    """The figure's lines of the summary: one a claim, with the ranges of its findings."""
    link = f"[{figure.label}](#{_anchor(_heading(figure))})"
    if saved is None:
        return [_row([link, figure.title, "", "", "", NOT_YET])]
    findings = saved.result.findings
    if not findings:
        return [_row([link, figure.title, "", "", "", f"**{verdict(findings, figure.claims)}**"])]
    lines = []
    for number, (key, claim) in enumerate(figure.claims.items()):
        own = [f for f in findings if f.claim == key]
        cells = [link, claim.what, stated(claim), _together(own, claim), _evidence(own)]
        last = f"**{verdict(findings, figure.claims)}**" if not number else ""
        lines.append(_row([*cells, last] if not number else ["", *cells[1:], last]))
    return lines


def section(figure: Figure, saved: Saved | None, folder: Path) -> str:
    """A figure's own part of the page."""
    parts = [f"## {_heading(figure)}", f"**The paper:** {figure.says}"]
    if saved is None:
        return "\n\n".join([*parts, f"Not made yet: `eldr paper {figure.id}`."]) + "\n"
    result = saved.result
    if result.findings:
        parts.append(findings_table(figure, result.findings))
    if (folder / f"{figure.id}.png").exists():
        links = ", ".join(f"[{kind}]({folder.name}/{figure.id}.{kind})" for kind in ("svg", "json"))
        parts.append(f"![{figure.label}: {figure.title}]({folder.name}/{figure.id}.png)\n\n{links}")
    parts += [markdown(table) for table in result.tables]
    parts.append(f"**Verdict: {verdict(result.findings, figure.claims)}.** {figure.why(result)}")
    parts.append(f"**What would change it:** {figure.change(result)}")
    parts.append(f"<sub>`eldr paper {figure.id}`, {saved.created_at[:10]}, {_machine(saved)}</sub>")
    return "\n\n".join(parts) + "\n"


def findings_table(figure: Figure, findings: Sequence[Finding]) -> str:
    """One line a finding: what was compared, with what, on which evidence, and how it stands."""
    columns = ["quantity", "the paper", "ours", "spread", "source", "evidence", ""]
    rows = []
    for finding in findings:
        claim = figure.claims[finding.claim]
        rows.append(
            [
                claim.what,
                stated(claim),
                _value(finding.mean, claim),
                _spread(finding, claim),
                finding.source,
                finding.evidence,
                judge(finding, claim),
            ]
        )
    return markdown(Table("", columns, rows))


def _spread(finding: Finding, claim: Claim) -> str:
    if finding.low is None or finding.high is None:
        return finding.over
    return f"{_value(finding.low, claim)} to {_value(finding.high, claim)} ({finding.over})"


def markdown(table: Table) -> str:
    """A table in Markdown, under its title if it has one."""
    lines = [_row(table.columns), _row(["---"] * len(table.columns)), *map(_row, table.rows)]
    return (f"{table.title}\n\n" if table.title else "") + "\n".join(lines)


def stated(claim: Claim) -> str:
    """What the paper says of a quantity."""
    if claim.low is None or claim.high is None:
        by = f" (by over {claim.slack:g})" if claim.slack else ""
        return {1: "more", -1: "less", 0: "no number"}[claim.sign] + by
    slack = f" (±{claim.slack:g})" if claim.slack else ""
    if claim.low == claim.high:
        return _value(claim.low, claim) + slack
    return f"{_value(claim.low, claim)} to {_value(claim.high, claim)}{slack}"


def _value(value: float, claim: Claim) -> str:
    signed = "+" if claim.unit in ("%", "points") else ""
    return f"{value:{signed}.{claim.digits}f}{' ' * bool(claim.unit)}{claim.unit}"


def _together(findings: Sequence[Finding], claim: Claim) -> str:
    means = sorted(finding.mean for finding in findings)
    if not means:
        return ""
    ends = dict.fromkeys((_value(means[0], claim), _value(means[-1], claim)))
    return " to ".join(ends)


def _evidence(findings: Sequence[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.evidence for finding in findings))


def _machine(saved: Saved) -> str:
    machine = saved.machine
    return f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}"


def _heading(figure: Figure) -> str:
    return f"{figure.label}: {figure.title}"


def _anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    kept = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
