"""Beyond the paper: the evidence suite that the default policy was chosen on (docs/policies.md).

`eldr paper beyond` runs it, goes on where it was stopped, and writes docs/bench/beyond.json, a plot
and the generated parts of docs/policies.md.
"""
