"""The step cost of each model: a file of the simulator's, or derived from one by what differs."""

from msgspec.structs import replace

from eldr.sim import StepCost
from eldr.sim.costs import named_cost

FILES = {
    "qwen3-30b-a3b": "mi300x-qwen3-30b-a3b",
    "gpt-oss-120b": "h200-gpt-oss-120b",
    "gemma-4-26b-a4b": "h200-gemma-4-26b-a4b",
    "qwen3-235b-a22b": "mi300x-qwen3-235b-a22b",
}


def cost_of(model: str) -> StepCost:
    """The cost of a model of the figures."""
    return DERIVED[model]() if model in DERIVED else named_cost(FILES[model])


def gpt_oss_20b() -> StepCost:
    """GPT-OSS-20B: layers like those of GPT-OSS-120B, but 24 of them with 32 experts each."""
    base = named_cost(FILES["gpt-oss-120b"])
    share = 24 / base.layers
    return replace(
        base,
        name="h200-gpt-oss-20b",
        model="GPT-OSS-20B",
        layers=24,
        experts=32,
        attention=replace(
            base.attention,
            fixed_us=share * base.attention.fixed_us,
            sequence_us=share * base.attention.sequence_us,
            context_us=share * base.attention.context_us,
        ),
        rest=replace(base.rest, fixed_us=share * base.rest.fixed_us),
        evidence="derived from GPT-OSS-120B's on an H200: the same layers, fewer of them",
        fits=(),
    )


DERIVED = {"gpt-oss-20b": gpt_oss_20b}
