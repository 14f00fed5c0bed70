"""The search for nodes to exclude."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cohort_prepare.quantizing.search import search_nodes

NODES = tuple(f"node{number}" for number in range(10))


def silent(_: str) -> None:
    pass


def noise_by(noisy: Sequence[str]) -> dict[str, float]:
    return {node: 1.0 + noisy.index(node) if node in noisy else 0.001 for node in NODES}


def test_the_smallest_set_of_noisy_nodes_is_found() -> None:
    """Three nodes make the outputs bad; those three are excluded, and no fourth."""
    noisy = ("node2", "node5", "node9")
    noise = noise_by(noisy)

    def noise_of(excluded: Sequence[str]) -> float:
        (alone,) = set(NODES) - set(excluded)
        return noise[alone]

    found = search_nodes(
        NODES,
        noise_of,
        lambda excluded: set(noisy) <= set(excluded),
        seconds=60,
        on_progress=silent,
    )
    assert found.excluded == noisy
    assert found.noise == noise
    assert found.complete


def test_where_half_of_the_nodes_do_not_suffice_none_are_found() -> None:
    """More than half would leave little that is quantized."""
    tried: list[int] = []

    def acceptable(excluded: Sequence[str]) -> bool:
        tried.append(len(excluded))
        return False

    found = search_nodes(NODES, lambda _: 1.0, acceptable, seconds=60, on_progress=silent)
    assert found.excluded is None
    assert tried == [1, 2, 4, 5]


def test_a_search_ends_with_its_time() -> None:
    """The first and the last node are ranked first; what was found until then counts."""
    ticks: Iterator[int] = iter(range(1000))
    ranked: list[str] = []

    def noise_of(excluded: Sequence[str]) -> float:
        ranked.append((set(NODES) - set(excluded)).pop())
        return 1.0

    found = search_nodes(
        NODES, noise_of, lambda _: True, seconds=6, on_progress=silent, clock=lambda: next(ticks)
    )
    assert ranked == ["node0", "node9", "node1"]
    assert found.excluded == ("node0",)
    assert not found.complete
