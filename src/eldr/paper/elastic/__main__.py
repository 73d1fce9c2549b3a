"""python -m eldr.paper.elastic: run what is missing of the study, then write JSON, plot and page."""

from eldr.paper.elastic.cases import pieces
from eldr.paper.elastic.page import draw, write_page
from eldr.paper.elastic.results import Saved, collect
from eldr.paper.study import Study
from eldr.program import run

STUDY = Study(
    name="elastic",
    page="elastic.md",
    saved=Saved,
    pieces=pieces,
    collect=collect,
    draw=draw,
    write_page=write_page,
)

if __name__ == "__main__":
    run(STUDY.command())
