"""The engines of a comparison on this machine: one prefill worker, K decode workers, and a plain vLLM beside
them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eldr.bench.compare import Pool
from eldr.bench.engine import EngineSpec, LocalEngine, running
from eldr.bench.settings import Settings
from eldr.errors import EngineError

MODEL_NAME = "eldr-embedded"

SAME_FOR_ALL = ("--no-enable-prefix-caching",)
"""Every policy serves the same prompts, and a later one must not find them prefilled."""

ENGINE_BYTES = 950 << 20
"""Memory of an engine without its weights, most of it PyTorch and vLLM themselves."""


@dataclass(frozen=True, slots=True)
class LocalPool:
    """Running engines. plain: vLLM without the plug-in, for reference outputs; stop it when they are
    there.
    """

    plain: LocalEngine
    prefill: LocalEngine
    decode: list[LocalEngine]

    def pool(self, settings: Settings) -> Pool:
        """What a comparison needs to know of them."""
        return Pool(
            model=MODEL_NAME,
            prefill={"p0": self.prefill.url},
            decode={engine.spec.name: engine.url for engine in self.decode},
            profile=settings.profile,
            log_dir=settings.logs,
            step_logs={engine.spec.name: settings.step_log(engine.spec.name) for engine in self.decode},
        )


def replay_engine(settings: Settings) -> LocalEngine:
    """An engine like the decode workers, not started."""
    return local_engine(settings, "replay", "eldr")


@contextmanager
def local_pool(settings: Settings) -> Iterator[LocalPool]:
    """Start all engines in parallel, and stop them at the end, whatever happens. EngineError if one does not
    start.
    """
    plain = local_engine(settings, "plain", "none")
    prefill = local_engine(settings, "p0", "eldr")
    decode = [local_engine(settings, f"d{index}", "eldr") for index in range(settings.decode)]
    with running([plain, prefill, *decode]):
        yield LocalPool(plain, prefill, decode)


def local_engine(settings: Settings, name: str, connector: Literal["eldr", "none"]) -> LocalEngine:
    """An engine with a step log of its own, not started."""
    log = settings.step_log(name)
    log.unlink(missing_ok=True)
    return LocalEngine(
        EngineSpec(
            model=settings.model,
            log_dir=settings.logs,
            name=name,
            connector=connector,
            dtype=settings.dtype,
            served_name=MODEL_NAME,
            extra_args=SAME_FOR_ALL,
            options={"step_log": str(log)} if connector == "eldr" else {},
        )
    )


def check_memory(settings: Settings) -> None:
    """EngineError where this machine has too little free memory for the engines; unknown is enough."""
    needed = (settings.decode + 2) * (ENGINE_BYTES + _weights_bytes(settings))
    free = _free_memory_bytes()
    if free is not None and free < needed:
        raise EngineError(
            f"{settings.decode + 2} engines need about {needed / 2**30:.1f} GiB of memory, "
            f"{free / 2**30:.1f} GiB are free; use fewer decode workers or free some memory"
        )


def _weights_bytes(settings: Settings) -> int:
    stored = sum(file.stat().st_size for file in settings.model.glob("*.safetensors"))
    return 2 * stored if settings.dtype == "float32" else stored


def _free_memory_bytes() -> int | None:
    """Memory that new processes could use; None where the system (not Linux) does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024
