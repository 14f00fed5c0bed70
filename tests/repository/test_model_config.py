"""`models/<name>/config.yaml`."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from cohort.batching import BatchPolicy, Padding
from cohort.errors import ConfigInvalid
from cohort.repository import (
    ConfigProblems,
    ModelConfig,
    VersionPolicy,
    WarmUp,
    load_model_config,
    parse_model_config,
)
from cohort.repository.yaml_files import MAX_FILE_BYTES
from cohort.session import Provider, SessionOptions

FILE = "iris/config.yaml"


def problems(text: str) -> dict[str, str]:
    """Return the problems of a config: sentences by key."""
    with pytest.raises(ConfigProblems) as caught:
        parse_model_config(text, FILE)
    assert all(problem.file == FILE for problem in caught.value.problems)
    return {problem.key: problem.sentence for problem in caught.value.problems}


@pytest.mark.parametrize("none", ["[]", "{}"])
def test_there_may_be_no_examples(none: str) -> None:
    """Examples may be absent as in the commented example of the file, and in the former way."""
    assert parse_model_config(f"example: {none}", FILE).example == ()


def test_an_example_may_name_a_file_of_the_version() -> None:
    """The file must be in its folder: no other file of the machine is read."""
    given = parse_model_config("example: [rows.npz, {x: [1, 4]}]", FILE).example
    assert given == ("rows.npz", {"x": [1, 4]})
    assert parse_model_config("example: rows.npz", FILE).example == ("rows.npz",)
    for other in ("../rows.npz", "/tmp/rows.npz", "a/rows.npz", ".rows.npz", "rows.npy", "text"):
        with pytest.raises(ConfigProblems, match=r"a \.npz in the version's folder"):
            parse_model_config(f"example: {other}", FILE)


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    """No file, an empty one and one of comments alone are the same."""
    assert load_model_config(tmp_path) == ModelConfig()
    assert parse_model_config("", FILE) == parse_model_config("# later\n", FILE) == ModelConfig()
    assert ModelConfig().providers is None
    assert ModelConfig().batching == BatchPolicy()


def test_every_key_is_read() -> None:
    """The example of the design is read key by key."""
    config = parse_model_config(
        """
        providers: [tensorrt, {cuda: {device_id: 0}}, cpu]
        provider_policy: require
        versions: {latest: 2}
        session: {intra_op_threads: 2, graph_optimization: basic, optimized_cache: false,
                  custom_op_libraries: [libops.so]}
        batching:
          max_batch_size: 16
          max_queue_delay_ms: 0.5
          max_queue_size: 100
          max_queue_seconds: 2.5
          latency_budget_ms: 20
          pad: {input_ids: {axis: 1, value: 0, multiple: 16}}
          trust: true
        timeout_ms: 1000
        memory_limit_mb: 512
        max_output_mb: 16
        warm_up: {rows: [1, 4]}
        load_timeout_s: 30
        """,
        FILE,
    )
    assert config == ModelConfig(
        providers=(Provider("tensorrt"), Provider("cuda", {"device_id": 0}), Provider("cpu")),
        provider_policy="require",
        versions=VersionPolicy(latest=2),
        session=SessionOptions(2, "basic", False, ("libops.so",)),
        batching=BatchPolicy(16, 0.5, 100, 2.5, 20.0, {"input_ids": Padding(1, 0, 16)}, trust=True),
        timeout_ms=1000.0,
        memory_limit_mb=512,
        max_output_mb=16,
        warm_up=WarmUp((1, 4)),
        load_timeout_s=30.0,
    )


def test_all_problems_come_at_once() -> None:
    """A wrong key, a wrong type and a wrong value do not hide each other."""
    found = problems("""
        batching: {max_batchsize: 3, max_queue_size: "32", max_batch_size: 0}
        provider_policy: requir
        providers: [cpu, cudda]
        timeout_ms: .inf
    """)
    assert found["batching"] == "unknown key 'max_batchsize'; did you mean 'max_batch_size'?"
    assert found["batching.max_queue_size"] == (
        "must be a whole number, got the string '32'; take the quotes away"
    )
    assert found["batching.max_batch_size"].startswith("must be from 1 to")
    assert "prefer, require, require_all" in found["provider_policy"]
    assert "did you mean 'cuda'?" in found["providers[1]"]
    assert found["timeout_ms"] == "must be a finite number, got inf"
    assert len(found) == 6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("versions: {latst: 2}", "versions: unknown key 'latst'; did you mean 'latest'?"),
        ("versions: {latest: 2, only: 1}", "versions: unknown key 'only'; available: latest"),
    ],
)
def test_an_unknown_key_of_versions_is_told_as_any_other(text: str, said: str) -> None:
    """The error is clear although `versions` has several forms."""
    with pytest.raises(ConfigInvalid) as caught:
        parse_model_config(text, FILE)
    assert str(caught.value) == f"iris/config.yaml: {said}"


def test_error_names_file_key_and_remedy() -> None:
    """Each problem has one line, and the error has the first one's facts."""
    with pytest.raises(ConfigInvalid) as caught:
        parse_model_config("timeout: 3\nwarmup: 4", FILE)
    assert str(caught.value).splitlines() == [
        "iris/config.yaml: unknown key 'timeout'; did you mean 'timeout_ms'?",
        "iris/config.yaml: unknown key 'warmup'; did you mean 'warm_up'?",
    ]
    assert (caught.value.file, caught.value.key) == (FILE, "")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "max_batch_size: 8",
            "unknown key 'max_batch_size'; did you mean batching.max_batch_size?",
        ),
        (
            "batching: {timeout_ms: 8}",
            "unknown key 'timeout_ms'; it belongs at the top level of the file",
        ),
        ("providers: cpu", "must be a list, got the string 'cpu'; write [cpu]"),
        ("providers: [gpu]", "'gpu' is not an execution provider; did you mean 'cuda'?"),
        ("providers: [MPS]", "'MPS' is not an execution provider; did you mean 'coreml'?"),
        ("timeout_ms:30", "; a colon and a space go between a key and its value"),
        ("timeout_ms: 30s", "write the number alone: the unit is in the key's name"),
        ("batching:\n\ttrust: true", "line 2: a tab; YAML is indented by spaces"),
    ],
)
def test_a_common_mistake_is_told_with_what_was_meant(text: str, said: str) -> None:
    """A key one level off, a unit, a scalar for a list, other names of hardware."""
    (problem,) = problems(text).values()
    assert problem.endswith(said)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("batching: {max_batch_size: true}", "batching.max_batch_size"),
        ("batching: {max_batch_size: 3.0}", "batching.max_batch_size"),
        ("batching: {max_queue_delay_ms: true}", "batching.max_queue_delay_ms"),
        ("batching: {max_queue_delay_ms: -1}", "batching.max_queue_delay_ms"),
        ("batching: {latency_budget_ms: 0}", "batching.latency_budget_ms"),
        ("batching: {latency_budget_ms: .nan}", "batching.latency_budget_ms"),
        ("batching: {trust: 1}", "batching.trust"),
        ("batching: {trust: yes}", "batching.trust"),
        ("batching: {pad: {x: {axis: 0}}}", "batching.pad.x.axis"),
        ("batching: {pad: {x: {axes: 1}}}", "batching.pad.x"),
        ("batching: {pad: {x: {multiple: 0}}}", "batching.pad.x.multiple"),
        ("batching: {pad: [x]}", "batching.pad"),
        ("batching:", "batching"),
        ("session: {intra_op_threads: -1}", "session.intra_op_threads"),
        ("session: {custom_op_libraries: a.so}", "session.custom_op_libraries"),
        ("session: {custom_op_libraries: [3]}", "session.custom_op_libraries[0]"),
        ("timeout_ms: 0", "timeout_ms"),
        ("timeout_ms: 1e400", "timeout_ms"),
        ("warm_up: {rows: [1, 0]}", "warm_up.rows[1]"),
        ("warm_up: [1]", "warm_up"),
        ("providers: []", "providers"),
        ("providers: cuda", "providers"),
        ("providers: [{cuda: {}, cpu: {}}]", "providers[0]"),
        ("versions: []", "versions"),
        ("versions: newest", "versions"),
        ("versions: {latest: 0}", "versions"),
        ("versions: {latest: true}", "versions"),
        ("versions: {oldest: 1}", "versions"),
        ("versions: [1, '2']", "versions"),
        ("versions: 2", "versions"),
        ("[1]", ""),
        ("1: 2", ""),
        ("2001-01-01: 2", ""),
    ],
)
def test_value_that_does_not_fit_is_named(text: str, key: str) -> None:
    """Nothing is taken for something else: no text for a number, no true for a one."""
    assert list(problems(text)) == [key]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", "line 2: duplicate key 'a'"),
        ("a: [", "line 1"),
        ("a: &x [*x]", "aliases"),
        ("[" * 5000, "nested too deeply"),
        ("x: " + "[" * 230 + "]" * 230, "nested too deeply"),
        ("x: !!python/object:os.system rm", "line 1"),
        ("x: !!int foo", "not YAML"),
        ("x: " + "9" * 5000, "not YAML"),
        ("a: 1\n---\nb: 2", "line 2"),
        ("a: \x00", "not YAML"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(text: str, says: str) -> None:
    """YAML's darker corners are problems of the file, with the line if it is known."""
    assert says in problems(text)[""]


def test_a_billion_laughs_are_not_heard_out() -> None:
    """Ten lines that stand for a billion values are refused before they are built."""
    lines = ["a0: &a0 [lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert "aliases" in problems("\n".join(lines))[""]
    merges = ["a0: &a0 {k: v}"]
    merges += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 10)]
    assert "aliases" in problems("\n".join(merges))[""]


def test_aliases_within_reason_are_fine() -> None:
    """An anchor saves an operator from writing the same padding twice."""
    config = parse_model_config("batching: {pad: {a: &p {multiple: 8}, b: *p}}", FILE)
    assert config.batching.pad["a"] == config.batching.pad["b"] == Padding(multiple=8)


def test_input_called_by_a_number_can_be_padded() -> None:
    """Old exporters call inputs 0 and 1."""
    assert parse_model_config("batching: {pad: {0: {}}}", FILE).batching.pad == {"0": Padding()}


def test_what_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    """Folders, loops, dead links, pipes, junk and giants in the file's place raise nothing else."""
    path = tmp_path / "config.yaml"

    def sentence() -> str:
        with pytest.raises(ConfigProblems) as caught:
            load_model_config(tmp_path)
        assert caught.value.file == f"{tmp_path.name}/config.yaml"
        return caught.value.problems[0].sentence

    path.mkdir()
    assert "must be a file" in sentence()
    path.rmdir()
    path.symlink_to(path)
    assert "cannot be read" in sentence()
    path.unlink()
    path.symlink_to("nowhere")
    assert "broken link" in sentence()
    path.unlink()
    os.mkfifo(path)
    assert "must be a file" in sentence()
    path.unlink()
    path.write_bytes(b"\x89PNG\xff\xfe")
    assert "UTF-8" in sentence()
    path.write_bytes("timeout_ms: 3".encode("utf-16"))
    assert "UTF-8" in sentence()
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert "too large" in sentence()


def test_byte_order_mark_is_no_problem(tmp_path: Path) -> None:
    """Windows editors write one."""
    (tmp_path / "config.yaml").write_bytes(b"\xef\xbb\xbftimeout_ms: 5")
    assert load_model_config(tmp_path).timeout_ms == 5


@given(st.text() | st.text(alphabet="ab:[]{}&*!<>|-? \n'\"#%,012.~"))
def test_random_text_is_read_or_refused(text: str) -> None:
    """For any text, the only exception is ConfigInvalid."""
    with contextlib.suppress(ConfigInvalid):
        parse_model_config(text, FILE)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)
keys = st.sampled_from(
    ["providers", "versions", "session", "batching", "timeout_ms", "warm_up", "other"]
)


@given(st.dictionaries(keys, values))
def test_random_values_are_read_or_refused(tree: dict[str, object]) -> None:
    """This holds for well-formed files with any values."""
    written = io.StringIO()
    YAML(typ="safe", pure=True).dump(tree, written)
    with contextlib.suppress(ConfigInvalid):
        parse_model_config(written.getvalue(), FILE)


counts = st.integers(1, 1000)
seconds = st.floats(1, 1e6, allow_nan=False)
batchings = st.builds(
    BatchPolicy,
    max_batch_size=counts,
    max_queue_delay_ms=seconds,
    max_queue_size=counts,
    max_queue_seconds=st.floats(0.001, 86_400),
    latency_budget_ms=seconds,
    pad=st.dictionaries(
        st.from_regex(r"[a-z_0-9]{1,9}", fullmatch=True),
        st.builds(
            Padding,
            axis=st.integers(1, 4),
            value=st.floats(allow_nan=False, allow_infinity=False),
            multiple=counts,
        ),
        max_size=3,
    ),
    trust=st.booleans(),
)


@given(batchings, seconds, st.lists(counts).map(tuple))
def test_config_that_is_written_is_read_back(
    batching: BatchPolicy, timeout: float, rows: tuple[int, ...]
) -> None:
    """The keys are the fields, and values survive the way through YAML."""
    config = ModelConfig(batching=batching, timeout_ms=timeout, warm_up=WarmUp(rows))
    written = io.StringIO()
    tree = {"batching": asdict(batching), "timeout_ms": timeout, "warm_up": {"rows": list(rows)}}
    YAML(typ="safe", pure=True).dump(tree, written)
    assert parse_model_config(written.getvalue(), FILE) == config


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {7}),
        ("versions: {latest: 2}", {3, 7}),
        ("versions: {latest: 9}", {1, 3, 7}),
        ("versions: all", {1, 3, 7}),
        ("versions: [1, 7, 1]", {1, 7}),
        ("versions: [3, 4]", {3}),
    ],
)
def test_versions_say_what_is_wanted(text: str, wanted: set[int]) -> None:
    """They are the latest ones, all, or the named ones, of those on disk."""
    assert parse_model_config(text, FILE).versions.wanted([3, 1, 7]) == wanted
    assert parse_model_config(text, FILE).versions.wanted([]) == frozenset()
