"""Figure 6: the overview of the system, a schematic."""

from eldr.paper.figure import Figure, Result, register

register(
    Figure(
        id="fig6",
        title="Overview of the system",
        says="A schematic of prefill with capture, fit, and routing at the hand-off. There is nothing to "
        "measure in it.",
        claims={},
        pieces=dict,
        result=lambda _: Result([], {}),
        draw=None,
        why=lambda _: (
            "A schematic has no numbers. Ours is [overview.svg](overview.svg), drawn from the code that is "
            "here; [architecture.md](architecture.md) tells the same in words."
        ),
        change=lambda _: "Nothing.",
    )
)
