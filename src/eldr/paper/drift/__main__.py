"""python -m eldr.paper.drift: run what is missing of the study, then write JSON, plot and page."""

from eldr.paper.drift.cases import pieces
from eldr.paper.drift.page import write_page
from eldr.paper.drift.plot import draw
from eldr.paper.drift.results import Saved, collect
from eldr.paper.study import Study
from eldr.program import run

STUDY = Study(
    name="drift",
    page="learning.md",
    saved=Saved,
    pieces=pieces,
    collect=collect,
    draw=draw,
    write_page=write_page,
)

if __name__ == "__main__":
    run(STUDY.command())
