"""Expert parallelism: what locality saves where a step waits for the rank with the most active experts.

`python -m eldr.paper.parallel` runs the study, goes on where it was stopped, and writes
docs/bench/expert_parallelism.json, a plot and the generated parts of docs/expert-parallelism.md.
"""
