"""Metrics of language models."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from cohort.generative.events import Admitted, Closed, Ended, GenerationState, Preempted, Stepped
from cohort.metrics import GenerationMetrics
from cohort.metrics.generation import ENGINE_COUNTERS
from cohort.workers.merged_metrics import merge_metrics
from tests.aviary import open_aviary
from tests.fakes import exposed, make_metrics
from tests.parrot_callers import ask

STATE = GenerationState(running=3, waiting=2, cache_used=256, cache_prefixes=128, cache_total=1024)
EVENTS = (
    Admitted(prompt=70, cached=16, waited=0.1, again=False),
    Stepped(prompt=54, answer=1, between=(), seconds=0.1, variants=[""]),
    Preempted(tokens=71),
    Admitted(prompt=71, cached=0, waited=0.1, again=True),
    Stepped(prompt=71, answer=29, between=(0.1,) * 29, seconds=0.1, variants=[""] * 29),
    Ended("OK", prompt=70, cached=16, answer=30, seconds=1.0),
)


def samples(text: str) -> dict[str, float]:
    """The samples of model m by name, without buckets."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model") == "m" and "le" not in sample.labels
    }


def tokens(text: str) -> dict[str, dict[str, float]]:
    """The counters of tokens and pre-emptions by name, by variant."""
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        if family.name in {name for name, _, _ in ENGINE_COUNTERS}:
            for sample in family.samples:
                found.setdefault(family.name, {})[sample.labels["variant"]] = sample.value
    return found


def test_tokens_are_counted_from_zero() -> None:
    """A version has all counters from its load, so that a rate includes its first requests."""
    metrics = make_metrics()
    generation = GenerationMetrics(metrics)
    metrics.register(generation)
    generation.observer("m", "1", lambda: STATE)
    assert tokens(exposed(metrics)) == {name: {"": 0} for name, _, _ in ENGINE_COUNTERS}


def test_tokens_of_a_variant_are_counted_from_its_first_request() -> None:
    """A variant has all counters before its first answer has a token."""
    metrics = make_metrics()
    generation = GenerationMetrics(metrics)
    metrics.register(generation)
    generation.observer("m", "1", lambda: STATE)
    metrics.version("m", "1").tokens_of("canary")
    assert tokens(exposed(metrics)) == {
        name: {"": 0, "canary": 0} for name, _, _ in ENGINE_COUNTERS
    }


async def test_tokens_are_timed_from_arrival_and_from_each_other(tmp_path: Path) -> None:
    """An answer of four tokens has one first token, three gaps and one mean time."""
    async with open_aviary(tmp_path) as aviary:
        aviary.metrics.register(GenerationMetrics(aviary.metrics))
        _, heard = ask(aviary, "one two three four")
        await heard.over.wait()
        counted = samples(exposed(aviary.metrics))
    assert counted["gen_ai_server_time_to_first_token_seconds_count"] == 1
    assert counted["model_time_between_tokens_seconds_count"] == 3
    assert counted["gen_ai_server_time_per_output_token_seconds_count"] == 1
    between = counted["model_time_between_tokens_seconds_sum"]
    each = counted["gen_ai_server_time_per_output_token_seconds_sum"]
    assert abs(between - 3 * each) < 1e-9


async def test_a_cut_answer_has_no_time_per_token(tmp_path: Path) -> None:
    """Its first token counts, because its caller got it."""
    async with open_aviary(tmp_path) as aviary:
        aviary.metrics.register(GenerationMetrics(aviary.metrics))
        _, heard = ask(aviary, "a " * 60, leave_after=4)
        await heard.over.wait()
        counted = samples(exposed(aviary.metrics))
    assert counted["gen_ai_server_time_to_first_token_seconds_count"] == 1
    assert counted["gen_ai_server_time_per_output_token_seconds_count"] == 0


def test_workers_sum_their_sequences_and_tokens() -> None:
    """Two workers have twice the sequences, tokens and memory of one, and the same usage."""
    metrics = make_metrics()
    generation = GenerationMetrics(metrics)
    metrics.register(generation)
    observe = generation.observer("m", "1", lambda: STATE)
    for event in EVENTS:
        observe(event)
    one = exposed(metrics)
    merging = merge_metrics([one, one])
    while True:
        try:
            next(merging)
        except StopIteration as end:
            both = samples(b"".join(end.value).decode())
            break
    assert samples(one)["model_sequences_running"] == 3
    assert both == {
        "model_sequences_running": 6,
        "model_sequences_waiting": 4,
        "model_kv_cache_used_bytes": 512,
        "model_kv_cache_prefix_bytes": 256,
        "model_kv_cache_total_bytes": 2048,
        "model_kv_cache_usage_ratio": 0.25,
        "model_prompt_tokens_total": 140,
        "model_generated_tokens_total": 60,
        "model_prefix_hit_tokens_total": 32,
        "model_preemptions_total": 2,
    }


def test_a_closed_engine_has_no_state() -> None:
    """Its counts stay; those of a newer engine of the version are not lost."""
    metrics = make_metrics()
    generation = GenerationMetrics(metrics)
    metrics.register(generation)
    old = generation.observer("m", "1", lambda: STATE)
    generation.observer("m", "1", lambda: STATE._replace(running=1))
    old(EVENTS[-1])
    old(Closed())
    counted = samples(exposed(metrics))
    assert counted["model_sequences_running"] == 1
    assert counted["model_prompt_tokens_total"] == 70


def test_tokens_are_counted_by_variant() -> None:
    """Two variants of one version have separate counts of tokens, hits and pre-emptions."""
    metrics = make_metrics()
    generation = GenerationMetrics(metrics)
    metrics.register(generation)
    observe = generation.observer("m", "1", lambda: STATE)
    observe(Stepped(9, 3, (), 0.1, variants=["stable", "canary", "canary"]))
    for variant, tokens in (("stable", 5), ("canary", 7)):
        observe(Preempted(tokens, variant))
        observe(Ended("OK", tokens, 1, 2, 1.0, variant))
    counted = {
        (sample.name, sample.labels["variant"]): sample.value
        for family in text_string_to_metric_families(exposed(metrics))
        for sample in family.samples
        if sample.labels.get("variant")
    }
    assert counted == {
        ("model_prompt_tokens_total", "stable"): 5,
        ("model_prompt_tokens_total", "canary"): 7,
        ("model_generated_tokens_total", "stable"): 1,
        ("model_generated_tokens_total", "canary"): 2,
        ("model_prefix_hit_tokens_total", "stable"): 1,
        ("model_prefix_hit_tokens_total", "canary"): 1,
        ("model_preemptions_total", "stable"): 1,
        ("model_preemptions_total", "canary"): 1,
    }
