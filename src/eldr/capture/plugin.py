"""The entry point (`vllm.general_plugins`) that vLLM runs in each of its processes."""

from __future__ import annotations

import importlib
import os
from typing import Any

PROGRESS_DELAY = "ELDR_NIXL_PROGRESS_US"
"""Environment variable: microseconds that NIXL's progress thread sleeps between polls; unset or 0 leaves
NIXL alone.
"""

_CONNECTOR = "EldrConnector"


def register() -> None:
    """Makes EldrConnector known to vLLM by name. May be called any number of times."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    slow_down_nixl()
    allow_amx()
    if _CONNECTOR not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(_CONNECTOR, "eldr.capture.connector", _CONNECTOR)


def slow_down_nixl() -> None:
    """Lets NIXL's progress thread sleep between polls, if PROGRESS_DELAY asks for it.

    NIXL's Python binding starts that thread with no delay, so an idle engine burns a core. That is right on
    a server with a NIC and cores to spare; with several engines on two cores it starves the models.
    """
    delay_us = int(os.environ.get(PROGRESS_DELAY, "0"))
    if delay_us <= 0:
        return
    # vLLM sets this just before it imports NIXL itself, and warns if NIXL came first.
    os.environ.setdefault("UCX_RCACHE_MAX_UNRELEASED", "1024")
    try:
        bindings = importlib.import_module("nixl._api").nixlBind
    except ImportError:
        return  # no NIXL: another connector is in use
    if not hasattr(bindings.nixlAgent, "eldr_wrapped"):
        bindings.nixlAgent = _delayed(bindings.nixlAgent, delay_us)


def allow_amx() -> None:
    """Asks Linux for the CPU's matrix unit (AMX), where it has one, on vLLM's CPU build.

    A process must ask before it uses it, and vLLM's attention does not: it relies on a large matrix product
    having asked first. A decode worker's first step has none, since its prompts come with their KV cache, and
    so the engine dies there with an illegal instruction (vLLM 0.32).
    """
    import torch
    from vllm.platforms import current_platform

    if current_platform.is_cpu() and torch.cpu._is_amx_tile_supported():
        torch.cpu._init_amx()


def _delayed(agent_class: Any, delay_us: int) -> Any:
    def agent(name: str, config: Any) -> Any:
        config.pthrDelay = delay_us
        return agent_class(name, config)

    agent.eldr_wrapped = agent_class  # type: ignore[attr-defined]
    return agent
