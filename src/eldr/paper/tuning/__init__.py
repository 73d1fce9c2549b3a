"""Does the router's self-tuning hold? Closed loops of traffic, studies and changes (docs/tuning.md).

`python -m eldr.paper.tuning` runs them, goes on where it was stopped, and writes docs/bench/tuning.json, a
plot and the generated parts of docs/tuning.md.
"""
