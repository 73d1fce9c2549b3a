"""Reads the step counters of decode engines from their Prometheus pages."""

import asyncio
from collections.abc import Mapping

import aiohttp
import msgspec
from msgspec.structs import astuple
from prometheus_client.parser import text_string_to_metric_families

from eldr.errors import UpstreamError


class Steps(msgspec.Struct, frozen=True):
    """Counters of one engine since its start, or their difference over a run.

    active_sum, active_count: of the histogram eldr_active_experts, one observation a decode step and layer.
    decode_steps, other_steps: of eldr_steps_total; the others compute prompt tokens too.
    tokens: output tokens generated.
    """

    active_sum: float = 0.0
    active_count: float = 0.0
    decode_steps: float = 0.0
    other_steps: float = 0.0
    tokens: float = 0.0

    @property
    def active_experts(self) -> float:
        """Mean distinct experts a decode step and layer. UpstreamError where there was none."""
        if not self.active_count:
            raise UpstreamError(
                "the decode workers report no eldr_active_experts; is EldrConnector loaded in them?"
            )
        return self.active_sum / self.active_count

    @property
    def mean_batch(self) -> float:
        """Output tokens a step."""
        return self.tokens / (self.decode_steps + self.other_steps)

    def __sub__(self, earlier: "Steps") -> "Steps":
        return Steps(*(a - b for a, b in zip(astuple(self), astuple(earlier), strict=True)))

    def __add__(self, other: "Steps") -> "Steps":
        return Steps(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


_FIELDS = {
    "eldr_active_experts_sum": "active_sum",
    "eldr_active_experts_count": "active_count",
    "vllm:generation_tokens_total": "tokens",
}


def parse_steps(page: str) -> Steps:
    """The counters in a /metrics page, added up over labels; zero where a counter has not appeared yet."""
    totals = dict.fromkeys(Steps.__struct_fields__, 0.0)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "eldr_steps_total":
                totals["decode_steps" if sample.labels.get("kind") == "decode" else "other_steps"] += (
                    sample.value
                )
            elif sample.name in _FIELDS:
                totals[_FIELDS[sample.name]] += sample.value
    return Steps(**totals)


async def scrape(session: aiohttp.ClientSession, url: str) -> Steps:
    """The counters of the engine at `url` now. UpstreamError where it does not answer."""
    try:
        async with session.get(f"{url}/metrics") as answer:
            answer.raise_for_status()
            return parse_steps(await answer.text())
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UpstreamError(f"no metrics at {url}/metrics: {error}") from error


async def scrape_all(session: aiohttp.ClientSession, workers: Mapping[str, str]) -> dict[str, Steps]:
    """The counters of every worker (name -> URL)."""
    pages = await asyncio.gather(*(scrape(session, url) for url in workers.values()))
    return dict(zip(workers, pages, strict=True))
