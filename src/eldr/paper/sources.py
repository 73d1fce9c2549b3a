"""The sources of expert choices that figures use, in the order in which they are shown."""

REAL = {"deepseek-v2-lite": "tasks", "gpt-oss-20b": "fields of knowledge"}
"""Recorded from models of real size: name -> what its domains are."""

EMBEDDED: dict[str, str] = {}
"""The embedded model through real vLLM engines."""

SYNTHETIC: dict[str, str] = {}
"""Synthetic models in the shape of the paper's."""

DOMAINS = {**REAL, **EMBEDDED}
PREDICTED = {**REAL, **EMBEDDED, **SYNTHETIC}
BATCHED = {**REAL, **EMBEDDED, **SYNTHETIC}


def claim_of(domains: str) -> str:
    """Which workload of the paper domains are like: "languages" or "tasks"."""
    return "languages" if domains.startswith("languages") else "tasks"
