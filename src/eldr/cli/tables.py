"""How figures are written in the tables of the command line."""

from collections.abc import Mapping

from rich.markup import escape


def figure(value: float | None, digits: int) -> str:
    """Write a figure, or a dash for one that was not measured."""
    return "-" if value is None else f"{value:.{digits}f}"


def composition(labels: Mapping[str, int]) -> str:
    """Write how many requests have each label, the most frequent first."""
    ordered = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{escape(label) or 'no label'} {count}" for label, count in ordered)


def change(ratio: float | None) -> str:
    """Write a relative change, or a dash for one that was not measured."""
    return "-" if ratio is None else f"{ratio:+.1%}"
