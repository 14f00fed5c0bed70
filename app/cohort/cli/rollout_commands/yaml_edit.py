"""Edit one rollout in the operator's file without changing other text.

YAML libraries rewrite the whole file: ruamel.yaml's round trip changes indents, line breaks and
number formats. This module replaces only the values that change, at the places that the YAML
parser reports. It then parses the result and checks that only the wanted rollout has changed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from cohort.errors import ConfigInvalid
from cohort.repository import ConfigProblems, Problem, read_text
from cohort.rollouts import Rollout, RolloutConfig, Variant, parse_rollouts


@dataclass(frozen=True, slots=True)
class RolloutsFile:
    """The file as read. `path` has no symbolic links; `text` is None if the file is missing."""

    path: Path
    name: str
    text: str | None
    configs: Mapping[str, RolloutConfig]

    @classmethod
    def read(cls, path: Path) -> RolloutsFile:
        """Read the file at `path`. Raises ConfigProblems if the server would reject it."""
        text = read_text(path, path.name)
        configs = {} if text is None else parse_rollouts(text, path.name)
        return cls(path.resolve(), path.name, text, configs)

    def write(self, text: str) -> None:
        """Replace the file's content atomically; keep its owner and permissions.

        Raises OSError, and ConfigInvalid if the file was changed since it was read.
        """
        temporary = self.path.with_name(f".{self.path.name}.{uuid4().hex}")
        try:
            with temporary.open("x", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileNotFoundError):
                found = self.path.stat()
                with suppress(PermissionError):  # only root may give files away
                    os.chown(temporary, found.st_uid, found.st_gid)
                temporary.chmod(stat.S_IMODE(found.st_mode))
            if read_text(self.path, self.name) != self.text:
                raise ConfigInvalid(
                    self.name, "", "was changed by another program; nothing was written"
                )
            temporary.replace(self.path)
        finally:
            temporary.unlink(missing_ok=True)


class _Edit(NamedTuple):
    start: int
    end: int
    text: str


def rewrite(file: RolloutsFile, model: str, wanted: Rollout | None) -> str:
    """Return the file's text with the model's rollout set to `wanted`, or removed if None.

    Only variants, the baseline and the removal of a shadow are edited. Raises ConfigProblems if the
    result would have another meaning, for example because of aliases.
    """
    old = file.text or ""
    newline = "\r\n" if "\r\n" in old else "\n"
    root = YAML(typ="safe", pure=True).compose(old)
    edits = list(_edits(root, file, model, wanted, newline))
    text = old
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    _verify(file, parse_rollouts(text, file.name), model, wanted)
    return text


def _verify(
    file: RolloutsFile, found: Mapping[str, RolloutConfig], model: str, wanted: Rollout | None
) -> None:
    others = {name: one for name, one in file.configs.items() if name != model}
    got = found.get(model)
    if {name: one for name, one in found.items() if name != model} != others or (
        got.rollout if got is not None else None
    ) != wanted:
        sentence = (
            "cannot be edited safely (does it use an alias or merge key?); edit the file by hand"
        )
        raise ConfigProblems([Problem(file.name, model, sentence)])


def _edits(
    root: Node | None, file: RolloutsFile, model: str, wanted: Rollout | None, newline: str
) -> Iterator[_Edit]:
    text, entry = file.text or "", _entry(root, model)
    if wanted is None:
        if entry is not None:
            yield _remove_entry(root, text, model)
        return
    if entry is None:
        yield _append_model(root, text, wanted, newline)
        return
    before = file.configs[model].rollout
    yield from _edit_variants(_entry(entry, "variants"), text, before, wanted, newline)
    baseline = _entry(entry, "baseline")
    first = next(iter(wanted.variants))
    if isinstance(baseline, ScalarNode) and wanted.baseline != baseline.value:
        if wanted.baseline == first:
            yield _remove_entry(entry, text, "baseline")
        else:
            yield _Edit(baseline.start_mark.index, baseline.end_mark.index, wanted.baseline)
    if wanted.shadow is None and _entry(entry, "shadow") is not None:
        yield _remove_entry(entry, text, "shadow")


def _edit_variants(
    node: Node | None, text: str, rollout: Rollout, wanted: Rollout, newline: str
) -> Iterator[_Edit]:
    if not isinstance(node, MappingNode):
        return
    before: Mapping[str, Variant] = rollout.variants
    ended = rollout.ramp if wanted.ramp is None else None
    ramped = ended.variant if ended is not None else ""
    gone = [name for name in before if name not in wanted.variants]
    yield from _remove_entries(node, text, gone)
    for name in before.keys() & wanted.variants.keys():
        was, now = before[name], wanted.variants[name]
        if name == ramped and (whole := _entry(node, name)) is not None:
            content = f"{{version: {now.version}, weight: {_number(now.weight)}}}"
            yield _Edit(whole.start_mark.index, _end(whole), content)
            continue
        for key, old, new in (
            ("version", was.version, now.version),
            ("weight", was.weight, now.weight),
        ):
            found = _entry(_entry(node, name), key)
            if isinstance(found, ScalarNode) and old != new:
                yield _Edit(found.start_mark.index, found.end_mark.index, _number(new))
    added = [one for one in wanted.variants.values() if one.name not in before]
    if added:
        yield _append_entries(node, text, [_variant_text(one) for one in added], newline)


def _variant_text(variant: Variant) -> str:
    return f"{variant.name}: {{version: {variant.version}, weight: {_number(variant.weight)}}}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _append_model(root: Node | None, text: str, wanted: Rollout, newline: str) -> _Edit:
    if isinstance(root, MappingNode) and root.flow_style:
        variants = ", ".join(map(_variant_text, wanted.variants.values()))
        return _append_entries(
            root, text, [f"{wanted.model}: {{variants: {{{variants}}}}}"], newline
        )
    lines = [f"{wanted.model}:", "  variants:"]
    lines += [f"    {_variant_text(one)}" for one in wanted.variants.values()]
    before = newline if text and not text.endswith("\n") else ""
    return _Edit(len(text), len(text), before + newline.join(lines) + newline)


def _append_entries(node: MappingNode, text: str, entries: list[str], newline: str) -> _Edit:
    """Append entries to a mapping, before comments and blank lines that follow it."""
    if node.flow_style:
        at = node.value[-1][1].end_mark.index if node.value else node.start_mark.index + 1
        separator = ", " if node.value else ""
        return _Edit(at, at, separator + ", ".join(entries))
    at = _line_end(text, _end(node))
    indent = " " * node.value[0][0].start_mark.column
    return _Edit(at, at, "".join(f"{newline}{indent}{entry}" for entry in entries))


def _remove_entry(node: Node | None, text: str, name: str) -> _Edit:
    (edit,) = _remove_entries(node, text, [name])
    return edit


def _remove_entries(node: Node | None, text: str, names: list[str]) -> Iterator[_Edit]:
    """Remove entries; in a block mapping, also the comments on their lines."""
    if not isinstance(node, MappingNode):
        return
    entries = node.value
    for place, (key, value) in enumerate(entries):
        if str(key.value) not in names:
            continue
        start, end = key.start_mark.index, _end(value)
        if not node.flow_style:
            start = text.rfind("\n", 0, start) + 1
            end = text.find("\n", end) + 1 or len(text)
        elif all(str(later.value) in names for later, _ in entries[place + 1 :]):
            # Remove the last entries with the comma before them, unless nothing precedes it.
            start = _end(entries[place - 1][1]) if place else start
        else:
            end = entries[place + 1][0].start_mark.index
        yield _Edit(start, end, "")


def _end(node: Node) -> int:
    """Return the end of a node's last value. The end mark of a block also covers comments."""
    if isinstance(node, MappingNode) and not node.flow_style and node.value:
        return _end(node.value[-1][1])
    if isinstance(node, SequenceNode) and not node.flow_style and node.value:
        return _end(node.value[-1])
    return int(node.end_mark.index)


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    if end < 0:
        return len(text)
    return end - 1 if text[end - 1] == "\r" else end


def _entry(node: Node | None, name: str) -> Node | None:
    if isinstance(node, MappingNode):
        found: Node | None = next((one for key, one in node.value if str(key.value) == name), None)
        return found
    return None
