"""Learning from live requests: what refitting and the test for drift are worth when what is asked changes.

`python -m eldr.paper.drift` runs the study, goes on where it was stopped, and writes
docs/bench/drift.json, a plot and the generated parts of docs/learning.md.
"""
