"""Sends prompts to a running engine and keeps what it says about their expert choices."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import aiohttp

from eldr.calibrate.journal import Journal
from eldr.calibrate.observation import Observation, Source
from eldr.calibrate.prompts import Prompt
from eldr.errors import CalibrationError, ConfigError, EldrError, UpstreamError

Progress = Callable[[], None]

HOPELESS_AFTER = 20
"""So many failures without one success are the engine's fault, not the prompts'."""


@dataclass(frozen=True, slots=True)
class Target:
    """The engine to measure on. model: the name to send; timeout_s: for one whole request."""

    url: str
    model: str
    max_tokens: int = 64
    concurrency: int = 8
    timeout_s: float = 300.0
    sampling: dict[str, object] = field(default_factory=lambda: {"temperature": 0.0})


@dataclass(slots=True)
class Outcome:
    """observed: (prompt, observation) in prompt order; failed: one line for each prompt that gave none."""

    observed: list[tuple[Prompt, Observation]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """name: what requests call the model; root: the folder or hub name that the engine loaded it from."""

    name: str
    root: str


async def served_model(url: str) -> ServedModel:
    """The first model that an engine serves. ConfigError for what is no URL, UpstreamError where nothing
    answers as an engine.
    """
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(10)) as session,
            session.get(f"{url}/v1/models") as answer,
        ):
            answer.raise_for_status()
            card = (await answer.json())["data"][0]
            return ServedModel(str(card["id"]), str(card.get("root") or card["id"]))
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
        raise ConfigError(
            f"{url!r} is not the URL of an engine; give one such as http://127.0.0.1:8000"
        ) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
        raise UpstreamError(
            f"no engine answers at {url}/v1/models ({_describe(error)}); is it running?"
        ) from error


async def collect(
    target: Target, prompts: list[Prompt], source: Source, journal: Journal, progress: Progress = lambda: None
) -> Outcome:
    """Measure the prompts that the journal does not hold yet, `concurrency` at a time.

    A prompt that the engine refuses is counted and named. Raises CalibrationError when the engine gives no
    usable answer at all, UpstreamError when it cannot be reached any more, ConfigError when the journal
    cannot be written. The journal keeps what was measured.
    """
    run = _Run(target, source, journal, progress)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(target.timeout_s)) as session:
        queue = iter(pending(prompts, journal))
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(target.concurrency):
                    group.create_task(run.drain(session, queue))
        except* EldrError as errors:
            raise errors.exceptions[0] from None
    observed = [
        (prompt, journal.done[prompt_key(prompt)]) for prompt in prompts if prompt_key(prompt) in journal.done
    ]
    if run.failed and not observed:
        raise CalibrationError(f"no prompt gave expert counts; {run.failed[0]}")
    return Outcome(observed, run.failed)


def prompt_key(prompt: Prompt) -> str:
    """Names a prompt in a journal: equal prompts give equal counts, wherever they stand."""
    return hashlib.sha256(prompt.text.encode()).hexdigest()


def pending(prompts: Sequence[Prompt], journal: Journal) -> list[Prompt]:
    """The distinct prompts that the journal does not hold."""
    distinct = {prompt_key(prompt): prompt for prompt in prompts}
    return [prompt for key, prompt in distinct.items() if key not in journal.done]


@dataclass(slots=True)
class _Run:
    target: Target
    source: Source
    journal: Journal
    progress: Progress
    failed: list[str] = field(default_factory=list)

    async def drain(self, session: aiohttp.ClientSession, queue: Iterable[Prompt]) -> None:
        for prompt in queue:
            try:
                observation = self.source.parse(await self._ask(session, prompt))
                self._check_shape(observation)
                self.journal.append(prompt_key(prompt), observation)
            except CalibrationError as error:
                self._fail(prompt, error)
            self.progress()

    async def _ask(self, session: aiohttp.ClientSession, prompt: Prompt) -> dict[str, object]:
        body = self.source.body(
            {
                "model": self.target.model,
                "prompt": prompt.text,
                "max_tokens": self.target.max_tokens,
                **self.target.sampling,
            }
        )
        url = f"{self.target.url}/v1/completions"
        try:
            async with session.post(url, json=body) as answer:
                if answer.status >= 400:
                    raise CalibrationError(f"status {answer.status}: {(await answer.text())[:200]}")
                value = await answer.json()
        except TimeoutError as error:
            raise CalibrationError(f"no answer within {self.target.timeout_s:.0f} s") from error
        except (aiohttp.ClientError, OSError) as error:
            done = len(self.journal.done)
            raise UpstreamError(
                f"the engine at {url} broke off ({_describe(error)}); "
                f"{done} prompts are done, run again to continue"
            ) from error
        except ValueError as error:
            raise CalibrationError(f"the answer is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise CalibrationError("the answer is not a JSON object")
        return value

    def _check_shape(self, new: Observation) -> None:
        for old in self.journal.done.values():
            if (old.prefill.shape, old.top_k) != (new.prefill.shape, new.top_k):
                raise CalibrationError(
                    f"counts {new.prefill.shape} top-{new.top_k} after {old.prefill.shape} top-{old.top_k}: "
                    "the engine serves another model now"
                )
            return

    def _fail(self, prompt: Prompt, error: CalibrationError) -> None:
        self.failed.append(f"{prompt.origin}: {error}")
        if not self.journal.done and len(self.failed) >= HOPELESS_AFTER:
            raise CalibrationError(
                f"the first {len(self.failed)} prompts all failed; {self.failed[0]}"
            ) from error


def _describe(error: BaseException) -> str:
    return str(error) or type(error).__name__
