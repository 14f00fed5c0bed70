"""The memory of keys and values, and the prompts that are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cohort.generative.cache import CacheMemory
from cohort.generative.prefixes import Prefixes, name_blocks


def resident() -> int:
    """Return the bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_a_slot_uses_memory_only_for_what_it_holds() -> None:
    """Memory for 4 GB is reserved at no cost; a freed slot gives its pages back and is empty."""
    cache = CacheMemory(4, 64, heads=8, length=32_768, head_size=16, dtype=np.float32)
    before = resident()
    for slot in range(4):
        for tensor in cache.tensors:
            tensor[slot, :, :8192] = 1
    held = resident() - before
    assert held > 60 * 2**20
    for slot in range(4):
        cache.free(slot)
    assert resident() - before < held / 4
    assert not cache.tensors[0][1].any()


def test_freeing_a_slot_leaves_its_neighbours() -> None:
    """Slots that share a page with the freed one keep their content."""
    cache = CacheMemory(2, 3, heads=1, length=100, head_size=7, dtype=np.float16)
    for tensor in cache.tensors:
        tensor[:] = 5
    cache.free(1)
    assert all((tensor[[0, 2]] == 5).all() for tensor in cache.tensors)


def test_tokens_are_copied_between_slots() -> None:
    """A copy, and a block that is read and written, have the same keys and values."""
    cache = CacheMemory(2, 2, heads=3, length=10, head_size=4, dtype=np.float32)
    for tensor in cache.tensors:
        tensor[0] = np.random.default_rng(0).standard_normal((3, 10, 4))
    cache.copy(0, 1, 6)
    assert np.array_equal(cache.read(1, 0, 6), cache.read(0, 0, 6))
    cache.write(1, 4, cache.read(0, 2, 5))
    assert np.array_equal(cache.read(1, 4, 7), cache.read(0, 2, 5))


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_blocks_have_one_name_if_all_tokens_before_are_equal(
    one: list[int], two: list[int]
) -> None:
    """Names agree exactly as far as whole blocks agree; at least two tokens are in no block."""
    first, second = name_blocks(one, 4), name_blocks(two, 4)
    assert len(first) == max(len(one) - 2, 0) // 4
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        assert (a == b) == (one[: number * 4 + 4] == two[: number * 4 + 4])


def test_the_block_that_was_not_used_for_longest_goes_first() -> None:
    """A block counts as used after those behind it, so a prompt loses its end first."""
    kept, block = Prefixes(), np.zeros(1, np.float32)
    for name in (b"a1", b"a2", b"b1"):
        kept.add(name, block)
    assert len(kept.find([b"a1", b"a2", b"a3"])) == 2
    kept.drop()
    assert b"b1" not in kept
    kept.drop()
    assert len(kept.find([b"a1", b"a2"])) == 1
