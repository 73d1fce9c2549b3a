"""The cost files are what the tables give today."""

import msgspec
import pytest

from eldr.bench.cost_parts import Parts
from eldr.bench.sim_costs import FIG_2_RATIO, all_costs
from eldr.bench.workload import data_folder
from eldr.sim import cost_names, named_cost


def test_files_are_those_that_the_tables_make() -> None:
    data = data_folder()
    if data is None or not (data / "latency").is_dir():
        pytest.skip("no latency tables: set ELDR_DATA to the data folder")
    made = {cost.name: cost for cost in all_costs(Parts(data / "latency"))}
    assert sorted(made) == list(cost_names())
    for name, cost in made.items():
        stored = named_cost(name)
        for part in ("moe", "attention", "rest", "prefill", "transfer"):
            fresh, kept = (msgspec.structs.asdict(getattr(c, part)) for c in (cost, stored))
            assert fresh == pytest.approx(kept, rel=1e-4), (name, part)


def test_mi300x_has_the_ratio_of_the_papers_figure() -> None:
    moe = named_cost("mi300x-qwen3-30b-a3b").moe
    many, few = (moe.fixed_us + moe.active_us * active for active in (128, 16))
    assert many / few == pytest.approx(FIG_2_RATIO, rel=1e-4)
