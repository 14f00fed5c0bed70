"""Show the tokens, times and cache of one language model, by version and variant."""

from deploy.grafana.board import Board, Panel, Query, Variable
from deploy.grafana.boards.parts import (
    OF_MODEL,
    PERCENTILE,
    REPLICA,
    TO_ROLLOUT,
    events,
    quantile,
    rate,
)

CHOSEN = Variable("model", "Model", "model_kv_cache_total_bytes", "model")
NAMED = "{{version}} {{variant}}"


def gauge(metric: str) -> str:
    """Return the query of a gauge's sum by version."""
    return f"sum by (version) ({metric}{{{OF_MODEL}}})"


def by_variant(counter: str) -> str:
    """Return the query of a counter's rate by version and variant."""
    return rate(counter, OF_MODEL, by="version, variant")


LANGUAGE_MODELS = Board(
    "cohort-language-models",
    "Cohort: language models",
    "The tokens, times and cache of one language model, by version and variant.",
    [CHOSEN, REPLICA, PERCENTILE],
    [
        Panel(
            "Time to first token",
            "From a request's arrival, at the percentile chosen above.",
            [
                Query(
                    quantile(
                        "gen_ai_server_time_to_first_token_seconds",
                        OF_MODEL,
                        by="version, variant",
                    ),
                    NAMED,
                )
            ],
            "s",
            link=TO_ROLLOUT,
        ),
        Panel(
            "Time between tokens",
            "From one new piece of an answer to the next, which is what a reader waits.",
            [
                Query(
                    quantile("model_time_between_tokens_seconds", OF_MODEL, by="version, variant"),
                    NAMED,
                )
            ],
            "s",
            link=TO_ROLLOUT,
        ),
        Panel(
            "Time per token",
            "The mean of an answer, after its first token.",
            [
                Query(
                    quantile(
                        "gen_ai_server_time_per_output_token_seconds",
                        OF_MODEL,
                        by="version, variant",
                    ),
                    NAMED,
                )
            ],
            "s",
        ),
        Panel(
            "Tokens",
            "Tokens a second: of prompts, those of them found in the cache, and of answers.",
            [
                Query(by_variant("model_prompt_tokens_total"), f"{NAMED} in"),
                Query(by_variant("model_prefix_hit_tokens_total"), f"{NAMED} found"),
                Query(by_variant("model_generated_tokens_total"), f"{NAMED} out"),
            ],
        ),
        Panel(
            "Running and waiting",
            "Answers at each scrape. Those that wait have no place in the cache.",
            [
                Query(gauge("model_sequences_running"), "{{version}} running"),
                Query(gauge("model_sequences_waiting"), "{{version}} waiting"),
            ],
        ),
        Panel(
            "Cache",
            "Memory of running answers, of kept prompts, which is free, and of the whole cache.",
            [
                Query(gauge("model_kv_cache_used_bytes"), "{{version}} used"),
                Query(gauge("model_kv_cache_prefix_bytes"), "{{version}} prompts"),
                Query(gauge("model_kv_cache_total_bytes"), "{{version}} limit"),
            ],
            "bytes",
        ),
        Panel(
            "Use of the cache",
            "The fullest replica.",
            [Query(f"max by (version) (model_kv_cache_usage_ratio{{{OF_MODEL}}})", "{{version}}")],
            "percentunit",
        ),
        Panel(
            "Pre-emptions",
            "Answers a second that lost their place in the cache, and are computed again.",
            [Query(by_variant("model_preemptions_total"), NAMED)],
        ),
        Panel(
            "Prompts found in the cache",
            "The share of tokens of prompts.",
            [
                Query(
                    f"{by_variant('model_prefix_hit_tokens_total')}"
                    f" / {by_variant('model_prompt_tokens_total')}",
                    NAMED,
                )
            ],
            "percentunit",
        ),
        Panel(
            "Answers by outcome",
            "Responses a second, cut streams included.",
            [Query(rate("model_inference_total", OF_MODEL, by="code"), "{{code}}")],
            "reqps",
        ),
    ],
    events(OF_MODEL),
)
