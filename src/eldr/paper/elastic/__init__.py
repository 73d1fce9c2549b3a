"""Elastic pools: what it costs when a decode worker fails, comes back or joins.

`python -m eldr.paper.elastic` runs the study, goes on where it was stopped, and writes
docs/bench/elastic.json, a plot and the generated parts of docs/elastic.md.
"""
