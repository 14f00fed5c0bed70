"""Find the nodes to leave as they are, so that a recipe's outputs are acceptable.

Each node is quantized alone, which tells how much noise it makes; then those that make the most are
excluded, twice as many each time, until the outputs are acceptable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

RANKING_SHARE = 0.6
"""Of the time, for quantizing nodes alone."""

MOST_EXCLUDED = 0.5
"""Of the nodes: where more must stay, little is gained."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    excluded: The nodes to exclude; None: none were found that suffice.
    noise: How much noise each node makes that was quantized alone, by its name.
    tried: How many sets of nodes were excluded.
    complete: Whether there was time for everything.
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
    told: Callable[[str], None],
    clock: Callable[[], float] = monotonic,
) -> SearchResult:
    """Search for a small set of nodes to exclude.

    nodes: The names of those that may be, in the order of the graph.
    noise_of: Quantizes all but the nodes given, and says how much noise the outputs have.
    acceptable: Quantizes all but the nodes given, and says whether the outputs are acceptable.
    seconds: For all of it; what has begun is ended.
    told: Gets how far it is.
    """
    started = clock()
    noise: dict[str, float] = {}
    for place, node in enumerate(_ends_first(nodes)):
        if clock() - started > RANKING_SHARE * seconds:
            break
        told(f"searching for sensitive nodes: {place + 1} of {len(nodes)}")
        noise[node] = noise_of([other for other in nodes if other != node])
    ranked = sorted(noise, key=lambda node: -noise[node])
    tried, count, enough, short = 0, 1, 0, 0
    most = min(len(ranked), int(MOST_EXCLUDED * len(nodes)))
    late = False
    while count <= most and not enough:
        if late := clock() - started > seconds:
            break
        told(f"excluding {count} of {len(nodes)} nodes")
        tried += 1
        if acceptable(ranked[:count]):
            enough = count
        else:
            short = count
            count = most if short < most < 2 * count else 2 * count
    while enough - short > 1 and not late:
        late = clock() - started > seconds
        middle = (short + enough) // 2
        told(f"excluding {middle} of {len(nodes)} nodes")
        tried += 1
        if acceptable(ranked[:middle]):
            enough = middle
        else:
            short = middle
    found = tuple(sorted(ranked[:enough])) if enough else None
    return SearchResult(found, noise, tried, not late and len(noise) == len(nodes))


def _ends_first(nodes: Sequence[str]) -> list[str]:
    """The first and the last, which are the most sensitive as a rule, then the others."""
    return [*nodes[:1], *(nodes[-1:] if len(nodes) > 1 else ()), *nodes[1:-1]]
