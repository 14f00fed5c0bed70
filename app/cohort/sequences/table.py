"""The sequences of one version, bounded in number and bytes, and removed when idle."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from time import monotonic

from cohort.errors import InvalidInput, Overloaded, SequenceEnded, quoted
from cohort.registry import RequestQueue
from cohort.repository import SequencePolicy
from cohort.sequences.asked import AskedSequence
from cohort.sequences.counts import SequenceCounts
from cohort.sequences.sequence import Sequence
from cohort.sequences.state import StatePlan

Key = tuple[str, str]
"""The name of a client, and the id of a sequence."""

MAX_LOST = 4096
"""Maximum number of remembered sequences of unloaded versions; their requests get SequenceEnded."""


class OtherVersions:
    """The current and lost sequences of all versions, by model."""

    def __init__(self) -> None:
        self._tables: dict[str, list[SequenceTable]] = {}
        self._lost: OrderedDict[tuple[str, Key], int] = OrderedDict()

    def add(self, table: SequenceTable) -> None:
        """Add the table of a new version."""
        self._tables.setdefault(table.model, []).append(table)

    def remove(self, table: SequenceTable) -> None:
        """Remove the table of an unloaded version, and record its sequences as lost."""
        self._tables[table.model].remove(table)
        if not self._tables[table.model]:
            del self._tables[table.model]
        for key in table.sequences:
            self._lost[table.model, key] = table.version
            if len(self._lost) > MAX_LOST:
                self._lost.popitem(last=False)

    def begin(self, table: SequenceTable, key: Key) -> None:
        """End the sequence with this key in all other versions, because it starts in `table`."""
        for other in self._tables.get(table.model, ()):
            if other is not table and (found := other.sequences.get(key)) is not None:
                other.end(found)
        self._lost.pop((table.model, key), None)

    def version_of(self, model: str, key: Key) -> int | None:
        """Return the version of a model that has or had this sequence; None if unknown."""
        for table in self._tables.get(model, ()):
            if key in table.sequences:
                return table.version
        return self._lost.get((model, key))


class SequenceTable:
    """The sequences of one version. Implements `SequenceOwner`. Used on the event loop.

    model, version: The served model and version.
    queue: Runs the requests.
    plan: The state tensors of the model.
    policy: Limits on the number, size and idle time of sequences.
    others: The sequences of other versions.
    counts: The counts to update.

    sequences: The open sequences by key, with the most recently used at the end.
    """

    def __init__(
        self,
        model: str,
        version: int,
        queue: RequestQueue,
        plan: StatePlan,
        policy: SequencePolicy,
        others: OtherVersions,
        counts: SequenceCounts,
    ) -> None:
        self.model = model
        self.version = version
        self.queue = queue
        self.plan = plan
        self.sequences: OrderedDict[Key, Sequence] = OrderedDict()
        self.size = 0
        self.most_bytes = int(policy.max_mb * 2**20)
        self._policy = policy
        self._others = others
        self._counts = counts
        self._timer: asyncio.TimerHandle | None = None
        others.add(self)

    def find(self, caller: str, asked: AskedSequence) -> Sequence:
        """Find or open a request's sequence. Raises InvalidInput, SequenceEnded or Overloaded."""
        key = caller, asked.id
        self.forget_idle()
        found = self.sequences.get(key)
        if found is not None:
            self.used(found)
        elif asked.start:
            found = self._open(key)
        else:
            raise self._not_started(key)
        if asked.start:
            self._others.begin(self, key)
        return found

    def _open(self, key: Key) -> Sequence:
        most = self._policy.max_sequences
        if len(self.sequences) >= most:
            raise Overloaded(
                f"{most} sequences are open (sequences.max_sequences); end some with sequence_end"
            )
        opened = self.sequences[key] = Sequence(self, key)
        self._counts.open += 1
        if self._timer is None:
            self._set_timer(self._policy.idle_seconds)
        return opened

    def _not_started(self, key: Key) -> InvalidInput | SequenceEnded:
        name = quoted(key[1])
        version = self._others.version_of(self.model, key)
        if version is not None:
            now = "it was loaded again" if version == self.version else f"{self.version} answers"
            return SequenceEnded(
                f"sequence {name} ended because the version changed: it began with version "
                f"{version} of the model, and now {now}; start it again with sequence_start: true"
            )
        return InvalidInput(
            f"sequence {name} has not started: send sequence_start: true in its first request. It "
            f"may have ended, had no request for {self._policy.idle_seconds:g} s, or begun in "
            "another process: before this one started, or in another replica"
        )

    def resize(self, sequence: Sequence, size: int) -> None:
        """See `SequenceOwner`."""
        if self.sequences.get(sequence.key) is not sequence:
            return  # removed while a request ran
        total = self.size - sequence.size + size
        if total > self.most_bytes:
            raise Overloaded(
                f"the states of {len(self.sequences)} sequences take more than "
                f"{self._policy.max_mb:g} MB (sequences.max_mb)"
            )
        self._counts.size += total - self.size
        self.size, sequence.size = total, size

    def used(self, sequence: Sequence) -> None:
        """See `SequenceOwner`."""
        sequence.at = monotonic()
        if self.sequences.get(sequence.key) is sequence:
            self.sequences.move_to_end(sequence.key)

    def end(self, sequence: Sequence) -> None:
        """See `SequenceOwner`."""
        if self.sequences.get(sequence.key) is sequence:
            del self.sequences[sequence.key]
            self.size -= sequence.size
            self._counts.open -= 1
            self._counts.size -= sequence.size
            sequence.size = 0

    def forget_idle(self) -> None:
        """Remove the sequences that have been idle for `idle_seconds`."""
        while self.sequences:
            oldest = next(iter(self.sequences.values()))
            if oldest.at + self._policy.idle_seconds > monotonic():
                return
            if oldest.busy:
                self.used(oldest)
            else:
                self.end(oldest)
                self._counts.idle += 1

    def _set_timer(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        self._timer = None
        self.forget_idle()
        if self.sequences:
            oldest = next(iter(self.sequences.values()))
            self._set_timer(max(oldest.at + self._policy.idle_seconds - monotonic(), 0.01))

    def close(self) -> None:
        """Remove all sequences."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._others.remove(self)
        self._counts.open -= len(self.sequences)  # another engine may share these counts
        self._counts.size -= self.size
        self.sequences.clear()
        self.size = 0
