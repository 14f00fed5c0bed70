"""`add_tokenizer`: an input of text, tokenized by BertTokenizer of onnxruntime-extensions.

Only WordPiece tokenizers as in BERT are supported. The operator processes one text, so the graph
has a loop. It treats characters outside the vocabulary differently, so ids are compared with those
of `tokenizers` before the model is written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from cohort.errors import CohortError, LoadFailed, quoted
from cohort.processing.steps import StepContext
from cohort.processing.texts import IDS, MASK, ROLES, TYPES, TextStep
from cohort.repository import InputConfig
from cohort.tensors import Array
from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.grafting.grafted import (
    CONFIG,
    LIBRARY,
    Grafted,
    Nodes,
    before_alone,
    check_graftable,
    check_same,
    graft,
    opened,
    write_grafted,
)
from cohort_prepare.onnx_files import TEXT_OPERATORS, read_onnx, serving_options, write_onnx_to

SENTENCES = (
    "A sentence.",
    "Another one, which is longer than the first, by some more words!",
    "It doesn't cost $12.50 (or 3,000 yen); does it?",
    "",
    "   spaces\tand\nlines  ",
    "UPPER and lower, caf\u00e9 na\u00efve \u00e0 la carte",
)
"""Default texts to compare on."""

MAX_SHOWN = 3

OUTPUTS = (IDS, TYPES, MASK)
"""Outputs of the operator, in order."""


def add_tokenizer(
    before: Path,
    out: Path,
    *,
    tokenizer: Path,
    max_length: int | None = None,
    name: str = "text",
    texts: Path | None = None,
) -> Grafted:
    """Write the model with an input of text, STRING [N], in place of ids.

    tokenizer: Its tokenizer.json.
    max_length: Maximum ids per text; default None: from tokenizer.json, or 512.
    name: Name of the new input.
    texts: File of texts to compare on, one per line; default None: built-in ones.

    Raises Misused for another kind of tokenizer, and Rejected if ids differ.
    """
    model = read_onnx(before)
    check_graftable(model)
    settings = _settings(tokenizer)
    old = opened(before, serving_options(model))
    config = InputConfig(tokenizer=tokenizer.name, max_length=max_length)
    specs = {one.name: one for one in old.inputs}
    try:
        step = TextStep(StepContext(name, config, specs, tokenizer.parent))
    except LoadFailed as error:
        raise Misused(str(error)) from error
    roles = {one: ROLES[one] for one in step.fills}
    if unknown := [one for one, role in roles.items() if role not in OUTPUTS]:
        raise Misused(
            f"the tokenizer makes ids, masks and types, but the model also needs {unknown[0]}"
        )
    lengths = {specs[one].shape[1] for one in roles if len(specs[one].shape or ()) == 2}  # type: ignore[index]
    fixed = next((one for one in lengths if isinstance(one, int)), None)
    datatypes = {one: specs[one].datatype for one in roles}
    nodes = _nodes(name, roles, datatypes, settings, step.max_length, fixed)
    given = helper.make_tensor_value_info(name, TensorProto.STRING, ["N"])
    whole = graft(model, nodes, given, [*roles], TEXT_OPERATORS)
    what = f"{name}: sentences of {step.max_length} ids at most"
    write_grafted(whole, before, out, "add_tokenizer", what, {"max_length": step.max_length})
    new = opened(out, LIBRARY)
    sentences = _sentences(texts)
    with TemporaryDirectory(prefix="cohort-") as folder:
        path = Path(folder) / "graft.onnx"
        write_onnx_to(before_alone(model, nodes, given, [*roles], TEXT_OPERATORS), path)
        alone = opened(path, LIBRARY)
        different = [one for one in sentences if not _equal(alone, step, one)]
        if different:
            shown = ", ".join(quoted(one) for one in different[:MAX_SHOWN])
            raise Rejected(
                f"{len(different)} of {len(sentences)} texts get other ids than from "
                f"{tokenizer.name}: {shown}; use the server's tokenizer instead, with `inputs: "
                f"{{{name}: {{tokenizer: {tokenizer.name}}}}}` in config.yaml"
            )
        together = np.array(sentences, np.object_)
        made = dict(zip([*roles], alone.run({name: together}), strict=True))
        if len(old.inputs) == len(roles):
            check_same(old, new, {name: together}, made)
    example = {name: np.array(sentences[:2], np.object_)}
    return Grafted(what, {"input": name, "sentences": len(sentences)}, CONFIG, example)


def _equal(alone: Any, step: TextStep, sentence: str) -> bool:
    one: Array = np.array([sentence], np.object_)
    expected = step.prepare(one, lambda: None)
    try:
        found = alone.run({step.spec.name: one})
    except CohortError:
        return False
    return all(
        np.array_equal(expected[spec.name], array)
        for spec, array in zip(alone.outputs, found, strict=True)
    )


def _sentences(texts: Path | None) -> Sequence[str]:
    if texts is None:
        return SENTENCES
    try:
        found = texts.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Misused(f"{texts} cannot be read: {error}") from error
    if not found:
        raise Misused(f"{texts} has no sentences")
    return found


def _settings(tokenizer: Path) -> Mapping[str, Any]:
    """Return the operator's attributes. Raises Misused for unsupported settings."""
    try:
        content = json.loads(tokenizer.read_text(encoding="utf-8"))
        model, normalizer = content["model"], content.get("normalizer") or {}
        kind = model["type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Misused(f"{tokenizer} is not a tokenizer.json: {error}") from error
    if kind != "WordPiece" or normalizer.get("type") != "BertNormalizer":
        raise Misused(
            f"{tokenizer.name} is {kind} with {normalizer.get('type') or 'no normalizer'}, but the "
            "operator supports only WordPiece as in BERT: use the server's tokenizer instead, with "
            f"`inputs: {{text: {{tokenizer: {tokenizer.name}}}}}` in config.yaml"
        )
    vocabulary = model["vocab"]
    entries = sorted(vocabulary, key=vocabulary.get)
    if [vocabulary[one] for one in entries] != list(range(len(entries))):
        raise Misused(f"{tokenizer.name} has gaps in its ids, which the operator does not support")
    lower = bool(normalizer.get("lowercase"))
    accents = normalizer.get("strip_accents")
    return {
        "vocab_file": "\n".join(entries),
        "do_lower_case": int(lower),
        "strip_accents": int(lower if accents is None else bool(accents)),
        "tokenize_chinese_chars": int(bool(normalizer.get("handle_chinese_chars", True))),
        "suffix_indicator": model.get("continuing_subword_prefix", "##"),
        "unk_token": model.get("unk_token", "[UNK]"),
    }


def _nodes(
    name: str,
    roles: Mapping[str, str],
    datatypes: Mapping[str, str],
    settings: Mapping[str, Any],
    most: int,
    fixed: int | None,
) -> Nodes:
    nodes = Nodes("cohort_text")
    count = nodes.add("Squeeze", nodes.add("Shape", name))
    always = nodes.weight(True, np.bool_)
    outputs = [f"cohort_text/{role}" for role in OUTPUTS]
    body = _body(name, settings, most, fixed or most)
    nodes.add_all("Loop", count, always, to=outputs, body=body)
    if fixed is None:
        lengths = nodes.add("ReduceSum", outputs[2], nodes.weight([1]), keepdims=0)
        longest = nodes.add("ReduceMax", lengths, keepdims=1)
    for wanted, role in roles.items():
        made = outputs[OUTPUTS.index(role)]
        if fixed is None:
            made = nodes.add("Slice", made, nodes.weight([0]), longest, nodes.weight([1]))
        kind = TensorProto.INT32 if datatypes[wanted] == "INT32" else TensorProto.INT64
        nodes.nodes.append(
            helper.make_node("Cast", [made], [wanted], name=f"cohort_text/give_{role}", to=kind)
        )
    return nodes


def _body(name: str, settings: Mapping[str, Any], most: int, size: int) -> onnx.GraphProto:
    """Make the loop body: ids, types and mask of one text, each padded to `size`."""
    nodes = Nodes("cohort_text/each")
    own = [f"cohort_text/each/{role}" for role in OUTPUTS]
    going = nodes.add("Identity", "cohort_text/going", to="cohort_text/goes_on")
    one = nodes.add("Unsqueeze", nodes.add("Gather", name, "cohort_text/row"), nodes.weight([0]))
    # Truncate one after the other, as for a pair without a second text.
    nodes.nodes.append(
        helper.make_node("BertTokenizer", [one], own, domain=TEXT_OPERATORS,
                         truncation_strategy_name="only_first", max_length=most, **settings)
    )  # fmt: skip
    spare = nodes.add("Sub", nodes.weight([size]), nodes.add("Shape", own[0]))
    pads = nodes.add("Concat", nodes.weight([0]), spare, axis=0)
    filled = [nodes.add("Pad", part, pads, nodes.weight(0), to=f"{part}_filled") for part in own]
    values = [helper.make_tensor_value_info(part, TensorProto.INT64, [size]) for part in filled]
    counter = helper.make_tensor_value_info("cohort_text/row", TensorProto.INT64, [])
    condition = helper.make_tensor_value_info("cohort_text/going", TensorProto.BOOL, [])
    goes_on = helper.make_tensor_value_info(going, TensorProto.BOOL, [])
    return helper.make_graph(
        nodes.nodes, "sentence", [counter, condition], [goes_on, *values], nodes.weights
    )
