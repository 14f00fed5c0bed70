"""MODEL.md, what a person reads of a version, and the pictures in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cohort.errors import quoted
from cohort.repository import Change, Distribution, Manifest
from cohort.tensors import Arrays
from cohort_prepare.publishing.pictures import draw_features, draw_latency

CARD_FILE = "MODEL.md"

_MOST_ROWS = 20
"""Of a table: a card is to be read."""

_MOST_SHOWN = 2000
"""Characters of the request that is shown."""


def write_card(
    folder: Path, manifest: Manifest, *, given: bool, signer: str, notes: Sequence[str]
) -> None:
    """Write the card, and the pictures that it shows beside it.

    given: Whether the inputs are the user's; else they were generated.
    signer: The fingerprint of the key that signed the version; "" for none.
    notes: What somebody who takes the model should know.
    """
    lines = [
        *_head(manifest, given, signer),
        *_steps(manifest),
        *_figures(manifest, folder),
        *_features(manifest, folder),
        *_call(manifest),
    ]
    if notes:
        lines += ["## Notes", "", *(f"- {_cell(one)}" for one in notes), ""]
    (folder / CARD_FILE).write_text("\n".join(lines), encoding="utf-8")


def _head(manifest: Manifest, given: bool, signer: str) -> Iterator[str]:
    yield f"# {manifest.model}"
    yield ""
    if manifest.source is not None:
        made = f"{manifest.source.framework} {manifest.source.version}".strip()
        yield f"- Made with {_cell(made)}; ONNX opset {manifest.opset}."
    if manifest.accuracy is not None:
        one = manifest.accuracy
        was = f", its source {one.before:.2%}" if one.before is not None else ""
        yield f"- Right about {one.after:.2%} of {one.rows:,} labelled rows{was}."
    if manifest.difference is not None:
        off = manifest.difference
        yield (
            f"- At most {off.max_absolute:.3g} from its source, over {off.rows:,} rows "
            f"({off.max_relative:.3g} relative)."
        )
    yield (
        f"- Examples of {'given' if given else 'generated'} inputs are run again before a server "
        f"lets it take traffic: {len(manifest.examples)}."
    )
    if manifest.rows is not None and manifest.rows.independent:
        shared = [quoted(name) for name, axis in manifest.rows.input_axes.items() if axis is None]
        where = f" in requests of equal {' and '.join(shared)}" if shared else ""
        yield f"- A server may batch its requests: rows do not influence each other{where}."
    yield f"- Signed by {signer}." if signer else "- Not signed."
    yield ""
    yield "| file | SHA-256 |"
    yield "|---|---|"
    for name, digest in list(manifest.files.items())[:_MOST_ROWS]:
        yield f"| {_cell(name)} | `{digest}` |"
    yield ""


def _steps(manifest: Manifest) -> Iterator[str]:
    if not manifest.steps:
        return
    yield "## What was done"
    yield ""
    yield "| step | what | with | difference |"
    yield "|---|---|---|---|"
    for one in manifest.steps:
        tools = ", ".join(f"{name} {version}" for name, version in one.versions.items())
        off = "" if one.difference is None else f"{one.difference.max_absolute:.3g}"
        yield f"| {_cell(one.step)} | {_cell(one.what)} | {_cell(tools)} | {off} |"
    yield ""


def _figures(manifest: Manifest, folder: Path) -> Iterator[str]:
    yield "## Size and speed"
    yield ""
    if manifest.size_bytes is not None:
        yield f"{_change(manifest.size_bytes, 1e-6, 'MB')}."
    if manifest.measured_on is not None:
        on = manifest.measured_on
        machine = ", ".join(on.machine.splitlines())
        yield f"Runs on {on.provider}, ONNX Runtime {on.runtime}, {_cell(machine)}, one at a time:"
    yield ""
    yield "| rows | a run takes |"
    yield "|---|---|"
    for rows, change in manifest.latency_ms.items():
        yield f"| {rows} | {_change(change, 1, 'ms')} |"
    yield ""
    draw_latency(manifest, folder / "latency.svg")
    yield "![How long runs take](latency.svg)"
    yield ""


def _change(change: Change, scale: float, unit: str) -> str:
    now = f"{change.after * scale:,.3g} {unit}"
    return now if change.before is None else f"{now}, before {change.before * scale:,.3g} {unit}"


def _features(manifest: Manifest, folder: Path) -> Iterator[str]:
    if not manifest.features:
        return
    yield "## Inputs"
    yield ""
    yield "| input | column | values | missing | least | median | most | most frequent |"
    yield "|---|---|---|---|---|---|---|---|"
    rows = [
        _feature_row(name, place, len(feature.columns), one)
        for name, feature in manifest.features.items()
        for place, one in enumerate(feature.columns)
    ]
    yield from rows[:_MOST_ROWS]
    if len(rows) > _MOST_ROWS:
        yield ""
        yield f"And {len(rows) - _MOST_ROWS} more columns, in `manifest.json`."
    yield ""
    draw_features(manifest.features, folder / "features.svg")
    yield "![How values are distributed](features.svg)"
    yield ""


def _feature_row(name: str, place: int, columns: int, one: Distribution) -> str:
    quantiles = [f"{one.quantiles[at]:.4g}" for at in (0, 10, 20)] if one.quantiles else [""] * 3
    listed = ", ".join(f"{value} ({share:.0%})" for value, share in list(one.shares.items())[:3])
    cells = [name, str(place) if columns > 1 else "", f"{one.count:,}", f"{one.missing:,}"]
    return "| " + " | ".join(map(_cell, [*cells, *quantiles, listed])) + " |"


def _call(manifest: Manifest) -> Iterator[str]:
    if not manifest.examples:
        return
    inputs = _plain(manifest.examples[0].inputs)
    try:
        body = _json({"model": manifest.model, "inputs": inputs})
    except (TypeError, ValueError):  # NaN, or bytes
        return
    yield "## Call it"
    yield ""
    if len(body) > _MOST_SHOWN:
        body = _json({"model": manifest.model, "inputs": dict.fromkeys(inputs, "…")})
    yield "```sh"
    yield "curl -s localhost:8000/predict -H 'content-type: application/json' \\"
    yield f"     -d '{body}'"
    yield "```"
    yield ""


def _json(request: Mapping[str, object]) -> str:
    """JSON that a shell takes between single quotes."""
    return json.dumps(request, allow_nan=False, ensure_ascii=False).replace("'", "\\u0027")


def _plain(arrays: Arrays) -> dict[str, object]:
    return {name: array.tolist() for name, array in arrays.items()}


def _cell(text: str) -> str:
    """Text that cannot leave its cell of a table, nor be markup."""
    flat = " ".join(text.split())
    for mark in "\\`*_<>[]|!":
        flat = flat.replace(mark, "\\" + mark)
    return flat[:300]
