"""The paper's evaluation, figure by figure: computed, drawn and compared with what the paper says.

A figure is one frozen `Figure` in a file of `eldr.paper.figures`. Its numbers come from pieces, pure
functions of their settings that run in worker processes and whose results are kept (`pieces`, `runner`).
From these a figure makes a `Result`, which `build` saves as JSON with its plot, and `page` writes
docs/reproduction.md from the saved results alone.
"""
