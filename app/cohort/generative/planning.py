"""Decisions of continuous batching: who enters the cache, who leaves it, and whose prompt is next.

All are pure functions of sequences: the choices of requests, with their tokens and places. A
sequence reserves tokens of the cache: those of its prompt, and a few more at a time for its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

GROWTH = 64
"""Tokens that a sequence reserves at a time for its answer."""

HOLE_TOKENS = 256
"""Tokens of a sequence that are copied to fill one hole."""

TILE = 32
"""Kernels compute this many tokens alike; a single one behind them gets other bits."""


class Planned(Protocol):
    """A sequence, as far as decisions need it.

    caller: The name of its caller.
    priority: Higher ones go first.
    arrived: When its request arrived; earlier ones go first.
    total: Its tokens: the prompt, and the answer so far.
    prompt: The tokens of its prompt.
    body: The tokens of its prompt that may be computed in several parts.
    limit: The maximum that `total` may reach.
    cached: Its tokens in the cache.
    reserved: The tokens of the cache that it may use.
    """

    @property
    def caller(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrived(self) -> float: ...
    @property
    def total(self) -> int: ...
    @property
    def prompt(self) -> int: ...
    @property
    def body(self) -> int: ...
    @property
    def limit(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def reserved(self) -> int: ...


P = TypeVar("P", bound=Planned)


def needed(sequence: Planned) -> int:
    """Return the tokens that a sequence reserves to enter the cache, or to continue in it."""
    return min(max(sequence.total, sequence.reserved) + GROWTH, sequence.limit)


class Growth(NamedTuple):
    """The reservations of running sequences before their next token.

    grown: The sequences that reserve more, each with its new number of tokens.
    out: The positions of those that leave the cache.
    free: The free tokens afterwards.
    """

    grown: Mapping[int, int]
    out: Sequence[int]
    free: int


def grow(running: Sequence[Planned], free: int) -> Growth:
    """Reserve room for the next token of each running sequence.

    If room is short, the youngest sequences of the lowest priority leave the cache. The oldest one
    of the highest priority always continues, so that every sequence ends at some time.
    """
    order = sorted(range(len(running)), key=lambda i: (-running[i].priority, running[i].arrived, i))
    grown: dict[int, int] = {}
    out: list[int] = []
    while order:
        position = order.pop(0)
        one = running[position]
        if one.total <= one.reserved:
            continue
        more = needed(one) - one.reserved
        while free < more and free < one.total - one.reserved and order:
            last = order.pop()
            out.append(last)
            free += running[last].reserved
        more = min(more, free)
        if one.reserved + more < one.total:
            out.append(position)
            free += one.reserved
            continue
        grown[position] = one.reserved + more
        free -= more
    return Growth(grown, out, free)


def next_to_enter(
    waiting: Sequence[Planned], running: Sequence[Planned], entered: Mapping[str, int]
) -> int:
    """Return the position of the waiting sequence that enters the cache next.

    The highest priority goes first. Among callers, it is the one with the fewest running sequences.
    Among the sequences of a caller, it is in turn the oldest and the shortest one. So long
    prompts do not keep short ones waiting, and each enters at some time.

    entered: The number of sequences that entered, by caller.
    """
    highest = max(one.priority for one in waiting)
    having = Counter(one.caller for one in running)
    candidates = [i for i, one in enumerate(waiting) if one.priority == highest]
    fewest = min(having[waiting[i].caller] for i in candidates)
    candidates = [i for i in candidates if having[waiting[i].caller] == fewest]
    first = min(candidates, key=lambda i: waiting[i].arrived)
    own = [i for i in candidates if waiting[i].caller == waiting[first].caller]
    if entered.get(waiting[first].caller, 0) % 2:
        return min(own, key=lambda i: (waiting[i].total, waiting[i].arrived, i))
    return min(own, key=lambda i: (waiting[i].arrived, i))


def lacking_by_caller(running: Sequence[Planned], most: int) -> Counter[str]:
    """Return the tokens of long prompts that are not computed yet, by caller.

    most: The maximum tokens of prompts that a step computes; longer ones are long.
    """
    lacking: Counter[str] = Counter()
    for one in running:
        if one.prompt > most:
            lacking[one.caller] += max(one.prompt - one.cached, 0)
    return lacking


def has_room_for_prompt(entering: Planned, lacking: Counter[str], most: int) -> bool:
    """Return True if a sequence may enter while other prompts of its caller are computed.

    Long prompts enter one by one, because they are also computed one by one.

    lacking, most: See `lacking_by_caller`.
    """
    return entering.prompt <= most or lacking[entering.caller] < most


def who_leaves_for(entering: Planned, running: Sequence[Planned]) -> int | None:
    """Return the position of the running sequence that makes room for another; None: no one.

    That is the youngest one of the lowest priority, if that is lower. Otherwise it is the youngest
    one of the caller with most sequences, if that caller has at least two more than the other.
    """
    if not running:
        return None
    lowest = min(one.priority for one in running)
    if lowest < entering.priority:
        return _youngest([i for i, one in enumerate(running) if one.priority == lowest], running)
    same = [i for i, one in enumerate(running) if one.priority == entering.priority]
    having = Counter(running[i].caller for i in same)
    if not same:
        return None
    greedy, most = having.most_common(1)[0]
    if most < having[entering.caller] + 2:
        return None
    return _youngest([i for i in same if running[i].caller == greedy], running)


def _youngest(positions: Sequence[int], running: Sequence[Planned]) -> int:
    return max(positions, key=lambda i: (running[i].arrived, i))


class Chunk(NamedTuple):
    """A run of a prompt to compute: the position of its sequence, and its end in the prompt."""

    sequence: int
    stop: int


class Turns(NamedTuple):
    """The turns of a caller.

    last: The number of its last one, or of the one before it came; later ones are higher.
    taken: Their number.
    """

    last: float = -1
    taken: int = 0


class PromptBudget(NamedTuple):
    """The tokens of prompts that a step computes.

    part: Tokens of long prompts, which are computed in parts; 0: none now.
    whole: Tokens of short prompts, of which the first may have more; 0: none now.
    """

    part: int
    whole: int


def next_chunks(
    running: Sequence[Planned],
    unit: int,
    short: int,
    budget: PromptBudget,
    turns: Mapping[str, Turns],
) -> list[Chunk]:
    """Choose prompts, or parts of them, for one step.

    The highest priority goes first. The callers take turns. Among the sequences of a caller, it is
    in turn the oldest one and the one that lacks the least. Parts of a body end at multiples of
    `unit`, and the rest behind the body is not divided. So the bits of an answer do not depend on
    what else runs.

    unit: The tokens of the smallest part of a body; the first part may be that long in any case.
    short: Prompts that lack at most these tokens are computed whole.
    turns: The turns of callers.
    """
    lacking = [i for i, one in enumerate(running) if one.cached < one.prompt]

    came: dict[str, float] = {}
    for i in lacking:
        caller, arrived = running[i].caller, running[i].arrived
        came[caller] = min(came.get(caller, arrived), arrived)

    def order(i: int) -> tuple[float, ...]:
        one = running[i]
        last, taken = turns.get(one.caller, Turns())
        first = one.prompt - one.cached if taken % 2 else one.arrived
        return -one.priority, last, came[one.caller], first, one.arrived, i

    chunks: list[Chunk] = []
    used = 0
    for i in sorted(lacking, key=order):
        one = running[i]
        lacks = one.prompt - one.cached
        whole = lacks <= short
        most = budget.whole if whole else budget.part
        left = most - used
        if most and not chunks:
            left = max(left, lacks if whole or one.cached == one.body else unit)
        stops = [] if whole and lacks > left else _stops(one, unit, left)
        chunks += [Chunk(i, stop) for stop in stops]
        used += max(stops, default=one.cached) - one.cached
    return chunks


def _stops(one: Planned, unit: int, left: int) -> list[int]:
    """Return where the next runs of a prompt end, if they may have `left` tokens together.

    The rest is in one run with the part of the body before it. That run must not have one token
    more than a multiple of `TILE`; then the rest has its own.
    """
    lacks = one.prompt - one.cached
    if lacks > left:
        stop = min(one.cached + left // unit * unit, one.body)
        return [stop] if stop > one.cached else []
    if lacks % TILE == 1 and one.cached < one.body:
        return [one.body, one.prompt]
    return [one.prompt]


def fill_holes(decoding: Mapping[int, int], used: Collection[int]) -> list[tuple[int, int]]:
    """Return the moves, from slot to slot, that fill holes below the `decoding` slots.

    A step computes all slots up to the last decoding one, and each hole costs a row of it. A
    sequence only moves if it has at most `HOLE_TOKENS` for each hole, because its cache is copied.

    decoding: The cached tokens of the decoding slots.
    used: All slots in use; others than the decoding ones do not move.
    """
    holes = [slot for slot in range(max(decoding, default=0)) if slot not in used]
    moves: list[tuple[int, int]] = []
    for source in sorted(decoding, reverse=True):
        holes = [hole for hole in holes if hole < source]
        if not holes or decoding[source] > HOLE_TOKENS * len(holes):
            break
        moves.append((source, holes.pop(0)))
    return moves
