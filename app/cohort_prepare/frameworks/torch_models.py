"""PyTorch modules and programs, exported with torch.export or the older tracer.

The tracer runs the module once and records the operations, so a branch that depends on values is
fixed. It is the second choice, with a note for the user.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from cohort_prepare.failures import Misused, Rejected
from cohort_prepare.frameworks import Exported, ExportRequest, Reference
from cohort_prepare.frameworks.callables import call, is_callable_reference
from cohort_prepare.frameworks.onnx_values import (
    MAX_INLINE_BYTES,
    name_rows,
    rename_values,
    strip_traces,
)

ROWS_EXPORTED = 2
"""With one row, torch.export treats the number of rows as a constant."""

DYNAMIC = "dynamic"
"""Option with further variable dimensions: axes and their names by input."""


@dataclass
class TorchModel:
    """A module, or a program of torch.export.

    module: The module that runs.
    program: The program that it comes from; None for a module.
    inputs: Input names in order; empty if any are accepted.
    example: Inputs that the user's function returned; default none.
    was_training: True if it was in training mode, and behaves differently in it.
    """

    module: Any
    program: Any = None
    inputs: Sequence[str] = ()
    example: Mapping[str, Any] = field(default_factory=dict)
    was_training: bool = False


class TorchModels:
    """Modules from `module:callable`, programs in `.pt2` files, and trusted pickles."""

    def load(self, reference: Reference) -> TorchModel:
        """Load the model on the CPU, in evaluation mode."""
        if is_callable_reference(reference.text):
            return as_torch_model(call(reference.text), reference.weights)
        path = Path(reference.text)
        if path.suffix.lower() == ".safetensors":
            raise Misused(
                f"{path.name} has only weights: use module:callable, a function that returns the "
                f"module, and add --weights {path.name}"
            )
        if path.suffix.lower() == ".pt2":
            return _load_program(path, trusted=reference.trust_pickle)
        return _load_pickle(path, trusted=reference.trust_pickle)

    def export(self, model: TorchModel, request: ExportRequest) -> Exported:
        """Export the model with variable rows."""
        return export_torch(model, request)

    def run(self, model: TorchModel, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Run the model; outputs are named by its keys or fields, or output, output_1, …."""
        import torch

        arguments, named = _arguments(model, inputs)
        with torch.no_grad():
            return _arrays(model.module(*arguments, **named))


def as_torch_model(made: Any, weights: str = "") -> TorchModel:
    """Wrap the result of the user's function: a module, or a module and example inputs by name.

    weights: A safetensors file to load into it; default none.
    """
    import torch

    example: Mapping[str, Any] = {}
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], Mapping):
        made, example = made
    if isinstance(made, torch.export.ExportedProgram):
        return _of_program(made)
    if not isinstance(made, torch.nn.Module):
        raise Misused(
            f"the function returns a {type(made).__name__}, not a torch.nn.Module, or a pair of "
            "one and a dictionary of example inputs"
        )
    if weights:
        _load_weights(made, weights)
    kinds = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)
    training = any(one.training and isinstance(one, kinds) for one in made.modules())
    names = [
        one.name
        for one in inspect.signature(made.forward).parameters.values()
        if one.kind in {one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY}
    ]
    return TorchModel(made.cpu().eval(), None, names, example, training)


def export_torch(model: TorchModel, request: ExportRequest) -> Exported:
    """Export with variable rows and the further dimensions in `request.options`."""
    import torch

    notes = []
    if model.was_training:
        notes.append(
            "the module was in training mode, where dropout and batch normalization behave "
            "differently; it was exported in evaluation mode"
        )
    names: list[str]
    if model.program is not None:
        torch.onnx.export(model.program, (), **_common(request, model))
        names = list(model.inputs)
        outputs = _output_names(model.program)
    else:
        example = _example(model, request)
        names = list(example)
        with torch.no_grad():
            arguments, named = _arguments(model, example)
            outputs = list(_arrays(model.module(*arguments, **named)))
        notes += _export_module(model, request, example)
    _finish(request.out, names, outputs)
    return Exported(type(model.module).__name__, notes=notes)


def _export_module(
    model: TorchModel, request: ExportRequest, example: Mapping[str, Any]
) -> list[str]:
    """Try the exporters in turn; return notes on the result."""
    import torch

    arguments, named = _arguments(model, example)
    dynamic = _dynamic(example, request.options.get(DYNAMIC, {}))
    dims: dict[str, Any] = {}
    shapes = {
        name: {
            axis: dims.setdefault(label, torch.export.Dim(label)) for axis, label in axes.items()
        }
        for name, axes in dynamic.items()
    }
    first_shapes: Any = shapes if named else tuple(shapes.values())
    common = _common(request, model)
    tries: list[tuple[str, Callable[[], object]]] = [
        (
            "torch.export",
            lambda: torch.onnx.export(
                model.module, arguments, kwargs=named, dynamic_shapes=first_shapes, **common
            ),
        ),
        (
            "the older exporter",
            lambda: torch.onnx.export(
                model.module,
                (*arguments, named) if named else arguments,
                request.out,
                opset_version=min(request.opset or 18, 20),
                input_names=list(example),
                dynamic_axes=dynamic,
                dynamo=False,
            ),
        ),
    ]
    failures = []
    for name, export in tries:
        try:
            export()
        except Exception as error:  # noqa: BLE001 - exporters raise anything
            failures.append(f"{name}: {_first_line(error)}")
        else:
            return [_TRACED.format(failures[0])] if failures else []
    raise Rejected("no PyTorch exporter works: " + "; ".join(failures))


_TRACED = (
    "torch.export failed ({}), so the older exporter traced a single run: branches and loops that "
    "depend on values are fixed as in that run. Verify with inputs for each branch: "
    "cohort verify --inputs"
)


def _common(request: ExportRequest, model: TorchModel) -> dict[str, Any]:
    size = sum(one.numel() * one.element_size() for one in model.module.state_dict().values())
    return {
        "f": request.out,
        "opset_version": request.opset,
        "dynamo": True,
        "external_data": size > MAX_INLINE_BYTES,
        "verbose": False,
    }


def _finish(out: str, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name inputs and outputs, and remove paths of this machine."""
    model = onnx.load(out, load_external_data=False)
    found = [[one.name for one in side] for side in (model.graph.input, model.graph.output)]
    wanted = [list(inputs), list(outputs)]
    if len(found[0]) != len(wanted[0]):  # unused inputs are omitted
        wanted[0] = found[0]
    names = {
        old: new
        for olds, news in zip(found, wanted, strict=True)
        if len(olds) == len(news)
        for old, new in zip(olds, news, strict=True)
    }
    rename_values(model, names)
    name_rows(model)
    strip_traces(model)
    Path(out).write_bytes(model.SerializeToString(deterministic=True))


def _example(model: TorchModel, request: ExportRequest) -> dict[str, Any]:
    given = dict(request.example or model.example)
    if not given:
        wanted = ", ".join(model.inputs) or "one for each argument of forward"
        raise Misused(
            "PyTorch's exporter runs the module and needs inputs: add --example inputs.npz with "
            f"the arrays {wanted} (numpy.savez('inputs.npz', name=array)), or return "
            "(module, {name: array}) from the function"
        )
    known = [name for name in model.inputs if name in given]  # in forward's order
    names = known if len(known) == len(given) else list(given)
    return {name: _rows(np.asarray(given[name])) for name in names}


def _rows(array: Any) -> Any:
    if not array.ndim:
        return array
    if not len(array):
        raise Misused("the example has no rows")
    return (
        np.resize(array, (ROWS_EXPORTED, *array.shape[1:]))
        if len(array) == 1
        else (array[:ROWS_EXPORTED])
    )


def _dynamic(
    example: Mapping[str, Any], more: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[int, str]]:
    """Return the variable dimensions of each input: rows, and those from the user."""
    unknown = [name for name in more if name not in example]
    if unknown:
        raise Misused(
            f"--dynamic: input {unknown[0]!r} not found; the inputs are {', '.join(example)}"
        )
    open_axes: dict[str, dict[int, str]] = {}
    for name, array in example.items():
        axes = {0: "rows"} if array.ndim else {}
        for axis, label in more.get(name, {}).items():
            if int(axis) >= array.ndim:
                raise Misused(f"--dynamic: {name!r} has {array.ndim} dimensions, not {axis}")
            axes[int(axis)] = label
        open_axes[name] = axes
    return open_axes


def _arguments(model: TorchModel, inputs: Mapping[str, Any]) -> tuple[tuple[Any, ...], Any]:
    """Return the inputs as positional and named arguments."""
    import torch

    tensors = {}
    for name, array in inputs.items():
        if array.dtype.kind in "OUS":
            raise Misused(f"input {name!r} is text, which PyTorch tensors do not support")
        tensors[name] = torch.from_numpy(np.ascontiguousarray(array))
    if model.program is not None and set(tensors) == set(model.inputs):
        flat = [tensors[name] for name in model.inputs]
        arguments, named = torch.utils._pytree.tree_unflatten(flat, model.program.call_spec.in_spec)
        return arguments, named
    if model.program is None and set(tensors) <= set(model.inputs):
        return (), tensors
    if len(tensors) == 1:
        return tuple(tensors.values()), {}
    raise Misused(
        f"the inputs are {', '.join(tensors)}, but forward accepts {', '.join(model.inputs)}"
    )


def _arrays(outputs: Any) -> dict[str, Any]:
    """Return outputs by name: keys of a dictionary or fields, or output, output_1, …."""
    return {
        name: value.detach().cpu().float().numpy()
        if str(value.dtype) == "torch.bfloat16"
        else value.detach().cpu().numpy()
        for name, value in _named(outputs)
    }


def _named(outputs: Any) -> Iterator[tuple[str, Any]]:
    import torch

    if isinstance(outputs, torch.Tensor):
        yield "output", outputs
        return
    if hasattr(outputs, "_asdict"):
        outputs = outputs._asdict()
    if isinstance(outputs, Mapping):
        parts = [(str(name), value) for name, value in outputs.items() if value is not None]
    elif isinstance(outputs, list | tuple):
        values = [value for value in outputs if value is not None]
        parts = [(f"output_{i}" if i else "output", value) for i, value in enumerate(values)]
    else:
        raise Rejected(
            f"forward returns a {type(outputs).__name__}: return tensors, in a tuple or by name"
        )
    for name, value in parts:
        if isinstance(value, torch.Tensor):
            yield name, value
        else:
            inner = list(_named(value))
            for deeper, one in inner:
                yield (name if len(inner) == 1 else f"{name}_{deeper}"), one


def _output_names(program: Any) -> list[str]:
    """Return the names that `_named` would give to a program's outputs."""
    import torch

    count = len(program.graph_signature.user_outputs)
    blank = [torch.zeros(0) for _ in range(count)]
    return [
        name
        for name, _ in _named(torch.utils._pytree.tree_unflatten(blank, program.call_spec.out_spec))
    ]


def _load_program(path: Path, *, trusted: bool) -> TorchModel:
    import torch

    if not trusted:
        raise Misused(
            f"{path.name} can run arbitrary code: torch.export.load evaluates expressions in the "
            "file and unpickles constants. Add --trust-pickle if you made it, or use "
            "module:callable, a function that returns the module"
        )
    try:
        return _of_program(torch.export.load(str(path)))
    except (RuntimeError, ValueError, KeyError, AssertionError) as error:
        raise Misused(
            f"torch.export cannot read {path.name}: {_first_line(error)}; write it with "
            "torch.export.save(program, path)"
        ) from error


def _of_program(program: Any) -> TorchModel:
    return TorchModel(program.module(), program, list(program.graph_signature.user_inputs))


def _load_pickle(path: Path, *, trusted: bool) -> TorchModel:
    import torch

    if not trusted:
        raise Misused(
            f"{path.name} is a pickle, which can run arbitrary code: add --trust-pickle if you "
            "made it. Or save the weights as safetensors, and use module:callable, a function that "
            "returns the module, with --weights FILE.safetensors"
        )
    found = torch.load(path, map_location="cpu", weights_only=False)
    if isinstance(found, Mapping):
        raise Misused(
            f"{path.name} has only weights: use module:callable, a function that returns the "
            "module with its weights"
        )
    return as_torch_model(found)


def _load_weights(module: Any, path: str) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    try:
        missing, unexpected = load_model(module, path, strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise Misused(f"{path} does not fit the module: {_first_line(error)}") from error
    wrong = [f"lacks {name}" for name in sorted(missing)] + [f"has {name}" for name in unexpected]
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise Misused(f"{path} does not fit the module: it {', '.join(wrong[:3])}{more}")


def _first_line(error: BaseException) -> str:
    """Format the first cause of an error on one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _COLORS.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else ''}"


_COLORS = re.compile("\x1b\\[[0-9;]*m")
