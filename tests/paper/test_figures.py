"""Every figure makes a result, a plot, a verdict and a section of what its pieces return."""

from pathlib import Path

import msgspec
import pytest

from eldr.errors import ConfigError, EldrError
from eldr.paper.build import Saved, load, make, write
from eldr.paper.figure import Result
from eldr.paper.figures import FIGURES
from eldr.paper.page import page_text, section, summary_rows
from eldr.paper.style import plotter
from eldr.paper.verdict import verdict
from paper.made_up import outputs_of

ROOT = Path(__file__).parents[2]
NUMBERED = [f"fig{number}" for number in range(1, 19)]


def result_of(name: str) -> Result:
    """As it comes back from its file."""
    made = FIGURES[name].result(outputs_of(FIGURES[name]))
    return msgspec.json.decode(msgspec.json.encode(made), type=Result)


def saved(name: str) -> Saved:
    machine = {"processor": "a CPU", "cores": 2, "python": "3.11"}
    return Saved(id=name, created_at="2026-01-01T00:00:00+00:00", machine=machine, result=result_of(name))


def test_all_of_the_paper_is_there_and_in_its_order() -> None:
    assert list(FIGURES.names()) == [*NUMBERED, "table2", "overhead"]


@pytest.mark.parametrize("name", FIGURES.names())
def test_a_figure_from_its_pieces(name: str) -> None:
    figure, result = FIGURES[name], result_of(name)
    assert {finding.claim for finding in result.findings} == set(figure.claims)
    text = section(figure, saved(name), Path("paper"))
    assert f"**Verdict: {verdict(result.findings, figure.claims)}.**" in text
    for finding in result.findings:
        assert finding.source in text
    assert "nan" not in text
    assert all(len(row.split(" | ")) == 6 for row in summary_rows(figure, saved(name)))


@pytest.mark.parametrize("name", [name for name in FIGURES.names() if FIGURES[name].draw])
def test_a_plot_has_units_on_its_axes(name: str) -> None:
    draw = FIGURES[name].draw
    assert draw is not None
    plt = plotter()
    drawing = draw(plt, result_of(name))
    named = [axes.get_xlabel() + axes.get_ylabel() for axes in drawing.axes if axes.get_visible()]
    assert any(named)
    plt.close(drawing)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    figure = FIGURES["fig2"]
    paths = write(figure, saved("fig2"), tmp_path)
    assert [path.name for path in paths] == ["fig2.json", "fig2.png", "fig2.svg"]
    assert load(figure, tmp_path) == saved("fig2")
    first = paths[2].read_bytes()
    assert write(figure, saved("fig2"), tmp_path)[2].read_bytes() == first


def test_a_figure_without_all_of_its_pieces_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(EldrError, match="5 of 5 pieces"):
        make(FIGURES["fig2"], tmp_path)


def test_a_file_of_another_version_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "fig2.json").write_text('{"id": "fig2"}')
    with pytest.raises(ConfigError, match="eldr paper fig2"):
        load(FIGURES["fig2"], tmp_path)


def test_a_figure_that_was_not_made_is_on_the_page_as_such(tmp_path: Path) -> None:
    text = page_text([FIGURES["fig2"]], tmp_path)
    assert "not yet" in text
    assert "Not made yet: `eldr paper fig2`" in text


def test_the_page_is_what_the_results_say() -> None:
    figures = [FIGURES[name] for name in FIGURES.names()]
    page = (ROOT / "docs" / "reproduction.md").read_text()
    assert page == page_text(figures, ROOT / "docs" / "paper"), "run `eldr paper page`"
