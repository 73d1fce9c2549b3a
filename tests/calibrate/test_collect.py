import numpy as np
import pytest

from eldr.calibrate.assemble import assemble
from eldr.calibrate.collect import ServedModel, Target, collect, served_model
from eldr.calibrate.journal import Header, Journal
from eldr.calibrate.prompts import Prompt
from eldr.calibrate.routed_experts import RoutedExperts
from eldr.errors import CalibrationError, ConfigError, UpstreamError

from .fake_engine import EXPERTS, LAYERS, TOP_K, FakeEngine, choices, oracle_counts

HEADER = Header(model="fake-moe", source="routed_experts", max_tokens=4)


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text, f"domain{place % 2}", f"p.jsonl:{place + 1}") for place, text in enumerate(texts)]


async def measure(engine: FakeEngine, path, wanted, **options):
    async with engine.serve() as url:
        with Journal(path, HEADER) as journal:
            return await collect(
                Target(url, "fake-moe", 4, **options), wanted, RoutedExperts(EXPERTS), journal
            )


async def test_counts_are_those_of_the_engines_choices(tmp_path) -> None:
    wanted = prompts("alpha", "bravo!", "charlie")
    outcome = await measure(FakeEngine(), tmp_path / "j", wanted)
    assert [prompt for prompt, _ in outcome.observed] == wanted
    assert outcome.failed == []
    for prompt, seen in outcome.observed:
        ids = choices(prompt.text, len(prompt.text) + 3)
        np.testing.assert_array_equal(seen.prefill, oracle_counts(ids[: len(prompt.text)]))
        np.testing.assert_array_equal(seen.decode, oracle_counts(ids[len(prompt.text) :]))
        assert (seen.prompt_tokens, seen.output_tokens, seen.top_k) == (len(prompt.text), 4, TOP_K)


async def test_layers_without_experts_are_dropped(tmp_path) -> None:
    plain = await measure(FakeEngine(), tmp_path / "a", prompts("alpha", "bravo"))
    mixed = await measure(FakeEngine(dense_layers=(0, 2)), tmp_path / "b", prompts("alpha", "bravo"))
    for (_, left), (_, right) in zip(plain.observed, mixed.observed, strict=True):
        assert right.prefill.shape == (LAYERS, EXPERTS)
        np.testing.assert_array_equal(left.prefill, right.prefill)
        np.testing.assert_array_equal(left.decode, right.decode)


async def test_a_bad_prompt_is_named_and_the_rest_goes_on(tmp_path) -> None:
    outcome = await measure(FakeEngine(), tmp_path / "j", prompts("alpha", "BAD one", "charlie"))
    assert [prompt.text for prompt, _ in outcome.observed] == ["alpha", "charlie"]
    assert len(outcome.failed) == 1
    assert outcome.failed[0].startswith("p.jsonl:2: status 400")
    assert "maximum context length" in outcome.failed[0]


async def test_a_rerun_asks_only_for_what_is_missing(tmp_path) -> None:
    wanted = prompts(*(f"prompt {n}" for n in range(12)))
    first = FakeEngine()
    first.break_after = 5
    with pytest.raises(UpstreamError, match="5 prompts are done, run again to continue"):
        await measure(first, tmp_path / "j", wanted, concurrency=1)
    second = FakeEngine()
    outcome = await measure(second, tmp_path / "j", wanted, concurrency=3)
    assert {body["prompt"] for body in second.requests} == {f"prompt {n}" for n in range(5, 12)}
    fresh = await measure(FakeEngine(), tmp_path / "other", wanted)
    for (_, left), (_, right) in zip(outcome.observed, fresh.observed, strict=True):
        np.testing.assert_array_equal(left.prefill, right.prefill)
        np.testing.assert_array_equal(left.decode, right.decode)


async def test_equal_prompts_are_asked_once_and_counted_each(tmp_path) -> None:
    engine = FakeEngine()
    outcome = await measure(engine, tmp_path / "j", prompts("same", "same", "other"))
    assert len(engine.requests) == 2
    assert [prompt.text for prompt, _ in outcome.observed] == ["same", "same", "other"]


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (FakeEngine(zero=True), "all zero"),
        (FakeEngine(routed=False), "--enable-return-routed-experts"),
    ],
)
async def test_an_engine_without_expert_choices_ends_the_run_early(tmp_path, engine, message) -> None:
    with pytest.raises(CalibrationError, match=message):
        await measure(engine, tmp_path / "j", prompts(*(f"prompt {n}" for n in range(200))))
    assert len(engine.requests) < 60


async def test_no_usable_prompt_at_all_is_an_error(tmp_path) -> None:
    with pytest.raises(CalibrationError, match=r"no prompt gave expert counts; p\.jsonl:1: status 400"):
        await measure(FakeEngine(), tmp_path / "j", prompts("BAD"))


async def test_no_usable_prompt_is_an_error_after_a_run_on_others_too(tmp_path) -> None:
    await measure(FakeEngine(), tmp_path / "j", prompts("alpha"))
    with pytest.raises(CalibrationError, match="no prompt gave expert counts"):
        await measure(FakeEngine(), tmp_path / "j", prompts("BAD"))


@pytest.mark.parametrize("url", ["", "engine", "http://", "http://[", "http://h:99999", "ftp://h"])
async def test_what_is_no_url_is_said(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the URL of an engine"):
        await served_model(url)


async def test_the_served_model_is_the_first() -> None:
    async with FakeEngine().serve() as url:
        assert await served_model(url) == ServedModel("fake-moe", "/models/fake")
    with pytest.raises(UpstreamError, match="no engine answers at"):
        await served_model(url)


async def test_assembled_set_has_the_labels_and_lengths(tmp_path) -> None:
    outcome = await measure(FakeEngine(), tmp_path / "j", prompts("alpha", "bravo!"))
    calibration = assemble(outcome.observed, "fake-moe")
    assert calibration.label.tolist() == ["domain0", "domain1"]
    assert calibration.prompt_tokens.tolist() == [5, 6]
    assert calibration.output_tokens.tolist() == [4, 4]
    assert calibration.prefill_counts.sum(axis=(1, 2)).tolist() == [5 * LAYERS * TOP_K, 6 * LAYERS * TOP_K]
    calibration.save(tmp_path / "cal.npz")
    assert type(calibration).load(tmp_path / "cal.npz").prompt_id.tolist() == ["p.jsonl:1", "p.jsonl:2"]
