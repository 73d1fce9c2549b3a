"""The sources of expert choices that figures use, in the order in which they are shown."""

from itertools import product

from eldr.traces.embedded import RECORDED as RECORDED_FILE

REAL = {"deepseek-v2-lite": "tasks", "gpt-oss-20b": "fields of knowledge"}
"""Recorded from models of real size: name -> what its domains are."""

WORKLOADS = ("tasks", "languages")
EMBEDDED = {f"embedded/{workload}": workload for workload in WORKLOADS if RECORDED_FILE.is_file()}
"""The embedded model through real vLLM engines, where its choices have been recorded."""

MODELS = ("qwen3-30b-a3b", "gpt-oss-120b", "gemma-4-26b-a4b")
"""The paper's three models, as synthetic ones."""

SYNTHETIC = {f"{model}/{workload}": workload for model, workload in product(MODELS, WORKLOADS)}

RECORDED = {**REAL, **EMBEDDED}
ALL = {**RECORDED, **SYNTHETIC}


def claim_of(domains: str) -> str:
    """Which workload of the paper domains are like: "languages" or "tasks"."""
    return "languages" if domains.startswith("languages") else "tasks"
