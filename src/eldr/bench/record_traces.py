"""Records the embedded model's expert choices on public prompts: `python -m eldr.bench.record_traces`.

Starts one vLLM with the capture plug-in in float32, where its choices are those of Hugging Face exactly
(tests/engine/test_exact.py), sends every prompt of the data folder and keeps prompt counts and the ids of
each decoded token. What was measured is in WORK at once: run it again to continue.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import aiohttp
import click
import msgspec
import numpy as np
from rich.progress import Progress

from eldr.bench.engine import EngineSpec, LocalEngine, running
from eldr.bench.load import GREEDY
from eldr.bench.machine import describe_machine
from eldr.bench.workload import cut, data_folder
from eldr.calibrate.collect import prompt_key
from eldr.calibrate.prompts import Prompt, read_prompts
from eldr.capture.tracing import decode_ids
from eldr.embedded import model_path
from eldr.errors import CalibrationError, UpstreamError
from eldr.program import EXISTING_FOLDER, run
from eldr.traces import DecodeIds, ExpertTraces
from eldr.traces.embedded import RECORDED, save
from eldr.wire import decode_counts

MODEL = "eldr-embedded"
SOURCE = (
    "the embedded model through real vLLM (float32) on public prompts, greedy with repetition penalty 1.2"
)

START_TIMEOUT_S = ANSWER_TIMEOUT_S = 1800.0
"""Of the engine and of a request: nobody waits for them, and the machine may be busy."""


class Answer(msgspec.Struct, frozen=True):
    """One line of the journal: what the engine said of a prompt. prompt, ids: its payloads, as they came."""

    key: str
    prompt: dict[str, Any]
    ids: dict[str, Any]


class Journal:
    """Answers on disk as they come. A last line that was cut short is forgotten."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        found = [msgspec.json.decode(line, type=Answer) for line in whole.splitlines()]
        self.done = {answer.key: answer for answer in found}
        self._file = path.open("r+b" if path.exists() else "wb")
        self._file.truncate(len(whole) + 1 if whole else 0)
        self._file.seek(0, 2)

    def append(self, answer: Answer) -> None:
        self._file.write(msgspec.json.encode(answer) + b"\n")
        self._file.flush()
        self.done[answer.key] = answer


def public_prompts(folder: Path, per_file: int | None) -> list[Prompt]:
    """Distinct prompts of both workloads, cut to what the embedded model was trained on; the same as the live
    comparisons send. per_file: the first so many of each file.

    The first of every file come first, then the second ones, so that a part of the record is a balanced one.
    """
    found = [*read_prompts(folder / "tasks").prompts, *read_prompts(folder / "languages").prompts]
    found.sort(key=_line)
    near = [prompt for prompt in found if per_file is None or _line(prompt) <= per_file]
    return list({cut(p.text): Prompt(cut(p.text), p.label, p.origin) for p in near}.values())


def _line(prompt: Prompt) -> int:
    return int(prompt.origin.rpartition(":")[2])


@dataclass(frozen=True, slots=True)
class Recorder:
    """Asks an engine for expert choices. tokens: output tokens a prompt; at_once: requests in flight."""

    url: str
    model: str
    journal: Journal
    tokens: int
    at_once: int
    done: Callable[[], None] = lambda: None

    async def record(self, prompts: list[Prompt]) -> None:
        """Ask for the prompts and keep the answers. UpstreamError where the engine refuses or drops one."""
        queue = iter(prompts)
        timeout, connector = aiohttp.ClientTimeout(ANSWER_TIMEOUT_S), aiohttp.TCPConnector(limit=0)
        session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        try:
            async with session, asyncio.TaskGroup() as group:
                for _ in range(self.at_once):
                    group.create_task(self._drain(session, queue))
        except* UpstreamError as errors:
            raise errors.exceptions[0] from None

    async def _drain(self, session: aiohttp.ClientSession, queue: Iterator[Prompt]) -> None:
        for prompt in queue:
            self.journal.append(await self._ask(session, prompt))
            self.done()

    async def _ask(self, session: aiohttp.ClientSession, prompt: Prompt) -> Answer:
        trace = {"kv_transfer_params": {"eldr": {"trace": "ids"}}}
        body = {"model": self.model, "prompt": prompt.text, "max_tokens": self.tokens, **GREEDY, **trace}
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as reply:
                if reply.status != 200:
                    raise UpstreamError(
                        f"{prompt.origin}: status {reply.status}: {(await reply.text())[:200]}"
                    )
                params = (await reply.json())["kv_transfer_params"]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise UpstreamError(f"{prompt.origin}: {reason}; run it again to continue") from error
        return Answer(prompt_key(prompt), params["eldr"], params["eldr_decode_ids"])


def assemble(prompts: list[Prompt], answers: dict[str, Answer], model: str) -> ExpertTraces:
    """The recorded prompts, in their order. CalibrationError where none was recorded."""
    kept = [(prompt, answers[prompt_key(prompt)]) for prompt in prompts if prompt_key(prompt) in answers]
    if not kept:
        raise CalibrationError("no prompt was recorded; is the data folder empty?")
    counts = [decode_counts(answer.prompt) for _, answer in kept]
    layers = counts[0].counts.shape[0]
    return ExpertTraces(
        model=model,
        source=SOURCE,
        evidence="engine",
        top_k=counts[0].top_k,
        num_layers=layers,
        layers=np.arange(layers),
        label=np.array([prompt.label for prompt, _ in kept]),
        prompt_tokens=np.array([one.tokens for one in counts], np.int32),
        prefill=np.stack([one.counts for one in counts]),
        ids=DecodeIds.join([decode_ids(answer.ids) for _, answer in kept]),
    )


@click.command()
@click.option("--data", type=EXISTING_FOLDER, default=None, help="Folder with tasks/ and languages/.")
@click.option("--out", type=click.Path(path_type=Path), default=RECORDED, show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path("report/traces"), show_default=True)
@click.option(
    "--tokens", type=click.IntRange(2), default=64, show_default=True, help="Output tokens a prompt."
)
@click.option("--at-once", type=click.IntRange(1), default=128, show_default=True, help="Requests in flight.")
@click.option("--per-file", type=click.IntRange(1), help="Only the first prompts of each file.")
def main(data: Path | None, out: Path, work: Path, tokens: int, at_once: int, per_file: int | None) -> None:
    """Record the embedded model's expert choices on the prompts of DATA."""
    data = data or data_folder()
    if data is None:
        raise CalibrationError("no prompts: name their folder with --data or ELDR_DATA")
    prompts = public_prompts(data, per_file)
    journal = Journal(work / f"record_{tokens}.jsonl")
    missing = [prompt for prompt in prompts if prompt_key(prompt) not in journal.done]
    spec = EngineSpec(
        model=model_path(),
        log_dir=work,
        name="recorder",
        dtype="float32",
        max_num_seqs=at_once,
        kv_cache_bytes=256 << 20,
    )
    if missing:
        with running([LocalEngine(spec)], START_TIMEOUT_S) as (engine,), Progress() as bar:
            task = bar.add_task("recording", total=len(prompts), completed=len(prompts) - len(missing))
            recorder = Recorder(
                engine.url, engine.model_name, journal, tokens, at_once, lambda: bar.advance(task)
            )
            asyncio.run(recorder.record(missing))
    traces = assemble(prompts, journal.done, MODEL)
    benchmarks = np.array([prompt.origin.partition(".")[0] for prompt in prompts])
    notes = {"recorded": date.today().isoformat(), "output_tokens": tokens, "machine": describe_machine()}
    save(out, traces, benchmarks, notes)
    print(json.dumps({"requests": len(traces), "bytes": out.stat().st_size, "out": str(out)}))


if __name__ == "__main__":
    run(main)
