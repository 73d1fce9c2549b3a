"""Which models the workers serve: one model for a whole pool, and the one that the profile was fitted for."""

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec

from eldr.errors import ConfigError, ProfileError, UpstreamError
from eldr.pool import Worker
from eldr.proxy.fields import JSON_ERRORS
from eldr.proxy.upstream import Upstream

PATH = "/v1/models"


class _Models(msgspec.Struct):
    data: list[dict[str, Any]]


async def served_models(
    upstream: Upstream, worker: Worker, timeout_s: float, authorization: str | None = None
) -> list[dict[str, Any]] | None:
    """The model cards of a worker; None when it wants a key to tell. UpstreamError where it cannot."""
    status, body = await upstream.get(worker, PATH, timeout_s, authorization)
    if status in (401, 403):
        return None
    if status != 200:
        raise UpstreamError(
            f"worker {worker.id} ({worker.url}) answers {PATH} with {status}; is it an engine?"
        )
    try:
        return msgspec.json.decode(body, type=_Models).data
    except JSON_ERRORS:
        return []


async def merged_models(
    upstream: Upstream, workers: Iterable[Worker], timeout_s: float, authorization: str | None
) -> list[dict[str, Any]]:
    """The model cards of all workers that answer, one for each id, in the order of workers."""
    asked = (served_models(upstream, worker, timeout_s, authorization) for worker in workers)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    cards: dict[Any, dict[str, Any]] = {}
    for answer in answers:
        if isinstance(answer, BaseException):
            if not isinstance(answer, UpstreamError):
                raise answer
            continue
        for card in answer or []:
            cards.setdefault(card.get("id"), card)
    return list(cards.values())


class ModelGuard:
    """Keeps workers out that serve another model than the first one seen, or than the profile's.

    KV cache of one model read by another gives wrong text with status 200.
    """

    def __init__(self, profile_model: str | None) -> None:
        self._profile_model = profile_model
        self._ids: set[str] | None = None
        self._names: set[str] = set()
        self._first = ""

    @property
    def model(self) -> str:
        """The profile's model, or the one that the first worker serves; "" before there is one."""
        return self._profile_model or min(self._ids or {""})

    def check(self, worker: Worker, cards: list[dict[str, Any]]) -> None:
        """Raise ConfigError or ProfileError, naming both models, for a worker that does not belong here.

        One that lists no model belongs nowhere, and decides nothing for the others.
        """
        ids = {str(card["id"]) for card in cards if card.get("id")}
        names = ids | {str(card["root"]) for card in cards if card.get("root")}
        if not ids:
            raise ConfigError(f"worker {worker.id} lists no model; look at {worker.url}{PATH}")
        if self._ids is None:
            self._ids, self._names, self._first = ids, names, worker.id
        if not ids & self._ids:
            raise ConfigError(
                f"worker {worker.id} serves {_listed(ids)} but {self._first} serves {_listed(self._ids)}; "
                "a router serves one model"
            )
        self._check_profile(worker.id, names)

    def expect(self, profile_model: str) -> None:
        """Keep out who serves another model than this. Raises ProfileError where the first worker does."""
        self._profile_model = profile_model
        if self._names:
            self._check_profile(self._first, self._names)

    def fits(self, model: str) -> bool:
        """Do the workers serve the model of this name, as far as is known?"""
        return not self._names or bool(_short({model}) & _short(self._names))

    def _check_profile(self, worker: str, names: set[str]) -> None:
        if self._profile_model is not None and not _short({self._profile_model}) & _short(names):
            raise ProfileError(
                f"the profile was fitted for model {self._profile_model!r}, worker {worker} serves "
                f"{_listed(names)}; calibrate and fit with the running model"
            )


def _short(names: set[str]) -> set[str]:
    """Names as they are and without their folders, since a model may be named by its path on one machine."""
    return names | {name.rstrip("/").rpartition("/")[2] for name in names}


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(map(repr, names))) or "no model"
