"""How a local engine is started: its settings, as arguments and environment of vLLM's server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_UNIPROC = "vllm.v1.executor.uniproc_executor.UniProcExecutor"

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # One thread an engine: several engines share few cores, and OpenMP's barriers spin.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    # See eldr.capture.plugin: NIXL's progress thread would keep a core busy for every idle engine.
    "ELDR_NIXL_PROGRESS_US": "500",
}


@dataclass(frozen=True)
class EngineSpec:
    """How to start one engine.

    Attributes:
        model: folder of the model; served under its folder's name, or `served_name`.
        log_dir: folder for the engine's log file, `NAME.log`.
        name: name of the engine in logs and errors.
        connector: "eldr" (capture over NIXL), "nixl" (stock NixlConnector) or "none" (plain vLLM).
        role: vLLM's kv_role: kv_producer (prefill), kv_consumer (decode) or kv_both.
        options: settings of eldr.capture, e.g. {"step_log": path}.
        kv_transfer_config: vLLM's own, in place of what `connector`, `role` and `options` give.
        kv_cache_bytes: size of the KV cache.
        executor: "uniproc" (one process less, no stalls under load), or "mp", which tensor parallelism needs.
        port: HTTP port, or None for a free one.
        extra_args: further arguments of vLLM's server.
        extra_env: further environment variables.
    """

    model: Path
    log_dir: Path
    name: str = "engine"
    connector: Literal["eldr", "nixl", "none"] = "eldr"
    role: Literal["kv_both", "kv_producer", "kv_consumer"] = "kv_both"
    options: Mapping[str, object] = field(default_factory=dict)
    kv_transfer_config: Mapping[str, Any] | None = None
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    kv_cache_bytes: int = 64 << 20
    block_size: int = 32
    max_model_len: int = 1024
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    tensor_parallel_size: int = 1
    executor: Literal["uniproc", "mp"] = "uniproc"
    enforce_eager: bool = True
    served_name: str | None = None
    port: int | None = None
    extra_args: Sequence[str] = ()
    extra_env: Mapping[str, str] = field(default_factory=dict)

    def arguments(self, port: int) -> list[str]:
        """Arguments of vLLM's server (the `vllm` command itself fails with the CPU package)."""
        flags = {
            "model": self.model,
            "served-model-name": self.served_name or Path(self.model).name,
            "host": "127.0.0.1",
            "port": port,
            "dtype": self.dtype,
            "block-size": self.block_size,
            "kv-cache-memory-bytes": self.kv_cache_bytes,
            "max-model-len": self.max_model_len,
            "max-num-seqs": self.max_num_seqs,
            "max-num-batched-tokens": self.max_num_batched_tokens,
            "tensor-parallel-size": self.tensor_parallel_size,
            "distributed-executor-backend": _UNIPROC if self.executor == "uniproc" else "mp",
        }
        arguments = [part for flag, value in flags.items() for part in (f"--{flag}", str(value))]
        if self.enforce_eager:  # else torch.compile traces the routers before anything can be hooked to them
            arguments.append("--enforce-eager")
        if (transfer := self._transfer()) is not None:
            arguments += ["--kv-transfer-config", json.dumps(transfer)]
        return [*arguments, *self.extra_args]

    def _transfer(self) -> Mapping[str, Any] | None:
        if self.kv_transfer_config is not None or self.connector == "none":
            return self.kv_transfer_config
        common = {"kv_role": self.role, "kv_buffer_device": "cpu"}
        if self.connector == "nixl":
            return {"kv_connector": "NixlConnector", **common}
        return {
            "kv_connector": "EldrConnector",
            "kv_connector_module_path": "eldr.capture.connector",
            **common,
            "kv_connector_extra_config": {"eldr": dict(self.options)},
        }
