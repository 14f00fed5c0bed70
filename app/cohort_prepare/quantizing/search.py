"""Find nodes to keep in float, so that a recipe's outputs are acceptable.

Each node is quantized alone to measure its noise. Then the noisiest are excluded, twice as many
each time, until the outputs are acceptable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

RANKING_SHARE = 0.6
"""Share of the time for quantizing nodes alone."""

MAX_EXCLUDED = 0.5
"""Share of the nodes: if more must be excluded, little is gained."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search.

    excluded: Nodes to exclude; None if no tried set suffices.
    noise: Noise of each node that was quantized alone, by name.
    tried: Number of sets tried.
    complete: True if the time sufficed for everything.
    """

    excluded: tuple[str, ...] | None
    noise: dict[str, float]
    tried: int
    complete: bool


def search_nodes(
    nodes: Sequence[str],
    noise_of: Callable[[Sequence[str]], float],
    acceptable: Callable[[Sequence[str]], bool],
    *,
    seconds: float,
    on_progress: Callable[[str], None],
    clock: Callable[[], float] = monotonic,
) -> SearchResult:
    """Search for a small set of nodes to exclude.

    nodes: Names of candidates, in graph order.
    noise_of: Quantizes all but the given nodes, and returns the noise of the outputs.
    acceptable: Quantizes all but the given nodes, and returns True if the outputs are acceptable.
    seconds: Time limit; a step in progress is completed.
    on_progress: Called with progress messages.
    """
    started = clock()
    noise: dict[str, float] = {}
    for place, node in enumerate(_ends_first(nodes)):
        if clock() - started > RANKING_SHARE * seconds:
            break
        on_progress(f"searching for sensitive nodes: {place + 1} of {len(nodes)}")
        noise[node] = noise_of([other for other in nodes if other != node])
    ranked = sorted(noise, key=lambda node: -noise[node])
    tried, count, enough, short = 0, 1, 0, 0
    most = min(len(ranked), int(MAX_EXCLUDED * len(nodes)))
    late = False
    while count <= most and not enough:
        if late := clock() - started > seconds:
            break
        on_progress(f"excluding {count} of {len(nodes)} nodes")
        tried += 1
        if acceptable(ranked[:count]):
            enough = count
        else:
            short = count
            count = most if short < most < 2 * count else 2 * count
    while enough - short > 1 and not late:
        late = clock() - started > seconds
        middle = (short + enough) // 2
        on_progress(f"excluding {middle} of {len(nodes)} nodes")
        tried += 1
        if acceptable(ranked[:middle]):
            enough = middle
        else:
            short = middle
    found = tuple(sorted(ranked[:enough])) if enough else None
    return SearchResult(found, noise, tried, not late and len(noise) == len(nodes))


def _ends_first(nodes: Sequence[str]) -> list[str]:
    """Put the first and last node, often the most sensitive, before the others."""
    return [*nodes[:1], *(nodes[-1:] if len(nodes) > 1 else ()), *nodes[1:-1]]
