"""python -m eldr.paper.parallel: run what is missing of the study, then write JSON, plot and page."""

from eldr.paper.parallel.cases import pieces
from eldr.paper.parallel.page import draw, write_page
from eldr.paper.parallel.results import Saved, collect
from eldr.paper.parallel.validity import validity
from eldr.paper.study import Study
from eldr.program import run

STUDY = Study(
    name="expert_parallelism",
    page="expert-parallelism.md",
    saved=Saved,
    pieces=lambda kept: [validity(), *pieces(kept)],
    collect=collect,
    draw=draw,
    write_page=write_page,
)

if __name__ == "__main__":
    run(STUDY.command())
