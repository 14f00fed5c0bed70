"""The metrics of several processes as those of one."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from cohort.workers.merged_metrics import EndedCounts, merge_metrics, write_parent_metrics

TEXT = """\
# HELP requests_total How many, since the start.
# TYPE requests_total counter
requests_total{model="a b",code="OK"} %d
# HELP seconds How long.
# TYPE seconds histogram
seconds_bucket{le="0.1"} %d.0
seconds_bucket{le="+Inf"} 3.0
seconds_sum 1.5
seconds_count 3.0
# HELP server_ready 1 if ready.
# TYPE server_ready gauge
server_ready %d
# HELP memory_held_bytes Held.
# TYPE memory_held_bytes gauge
memory_held_bytes 10.0
# HELP threshold The largest.
# TYPE threshold gauge
threshold %d
"""


def merged(living: list[str], ended: str = "") -> dict[str, float]:
    """Return the samples by name and labels, as a scraper reads them."""
    writing = merge_metrics(living, ended)
    while True:
        try:
            next(writing)
        except StopIteration as end:
            text = b"".join(end.value).decode()
            break
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_counts_are_added_and_gauges_mean_what_they_say() -> None:
    """Parts are added up; what must be so in all is the least, the rest the largest."""
    found = merged([TEXT % (5, 1, 1, -2), TEXT % (7, 2, 0, -1)])
    assert found["requests_totala bOK"] == 12
    assert found["seconds_bucket0.1"] == 3
    assert found["seconds_bucket+Inf"] == found["seconds_count"] == 6
    assert found["seconds_sum"] == 3.0
    assert found["server_ready"] == 0
    assert found["memory_held_bytes"] == 20
    assert found["threshold"] == -1


def test_a_version_batches_if_it_does_in_all_processes() -> None:
    """It does not batch in a process that has not measured it yet."""
    text = '# TYPE model_batching gauge\nmodel_batching{{model="m",version="1"}} {}\n'
    assert merged([text.format(1), text.format(0)]) == {"model_batchingm1": 0}
    assert merged([text.format(1), text.format(1)]) == {"model_batchingm1": 1}


def test_a_process_that_has_ended_leaves_its_counts() -> None:
    """It leaves nothing else; those of several are added up."""
    ended = EndedCounts()
    ended.add(TEXT % (5, 1, 0, 9))
    ended.add(TEXT % (6, 1, 0, 9))
    found = merged([TEXT % (1, 1, 1, 2)], ended.text().decode())
    assert found["requests_totala bOK"] == 12
    assert found["seconds_count"] == 9
    assert found["server_ready"] == 1
    assert found["memory_held_bytes"] == 10
    assert found["threshold"] == 2


def test_what_cannot_be_read_is_left_out() -> None:
    """A line that is torn takes nothing else with it; infinities and NaN stay what they are."""
    text = '# TYPE a gauge\na{x="1"} x\na{x="2"} +Inf\na{x="3"} -Inf\na{x="4"} 0.25\n'
    assert merged([text]) == {"a2": float("inf"), "a3": float("-inf"), "a4": 0.25}


def test_many_lines_are_written_in_several_blocks() -> None:
    """Each is a step for the event loop; together they are the text."""
    lines = "".join(f'a{{x="{number}"}} {number}\n' for number in range(1000))
    text = "# HELP a b\n# TYPE a counter\n" + lines
    assert len(merged([text])) == 1000
    steps = sum(1 for _ in merge_metrics([text]))
    assert steps >= 10


def test_the_parent_counts_workers() -> None:
    """How many there should be, are ready and were replaced, by cause."""
    found = merged([write_parent_metrics(4, 3, {"crashed": 2, "hung": 0}).decode()])
    assert found == {
        "server_workers": 4,
        "server_workers_ready": 3,
        "server_worker_restarts_totalcrashed": 2,
        "server_worker_restarts_totalhung": 0,
    }
