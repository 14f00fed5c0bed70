"""Processing that a load makes and tries, and examples in the form that callers send."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cohort.batching import RunFeeds
from cohort.codec import PredictRequest, decode_inputs, is_base64
from cohort.errors import InvalidInput, quoted
from cohort.processing.around import Watch
from cohort.processing.processing import Asked, Processing, make_processing
from cohort.processing.steps import TriedStep
from cohort.session import Signature
from cohort.tensors import Arrays, TensorSpec, check_inputs

MAX_EXAMPLE_BYTES = 64 << 20


class TriedProcessing:
    """The processing of one version, which its load makes and tries. Implements `Preparation`.

    processing: None before `fit`.

    asked: The requested processing of inputs and outputs.
    folder: The folder of the version.
    """

    def __init__(self, asked: Asked, folder: Path) -> None:
        self._asked, self._folder = asked, folder
        self._filled = False
        self.processing: Processing | None = None

    def fit(self, signature: Signature, properties: Mapping[str, str]) -> None:
        """See `Preparation`."""
        made = make_processing(self._asked, signature, self._folder, properties)
        self.processing = made
        names = {spec.name for spec in signature.inputs}
        self._filled = names <= {name for step in made.steps for name in step.fills}

    @property
    def around(self) -> Processing | None:
        """The processing; None if it changes nothing."""
        made, asked = self.processing, self._asked.config
        idle = made is not None and not (made.prepares or asked.inputs or asked.outputs)
        return None if idle else made

    def read(self, example: Mapping[str, Any]) -> Arrays | None:
        """See `Preparation`: convert an example in the form that callers send.

        An example has this form if it contains texts or files for the steps, or the columns of the
        only input. The string for a file is the name of a file next to the model.
        """
        processing = self.processing
        if processing is None or not processing.prepares:
            return None
        specs = [step.spec for step in processing.steps if step.spec.datatype == "BYTES"]
        if processing.block is not None:
            if processing.block.spec.name in example:
                return None
        elif not specs or not all(_is_sent(example.get(spec.name)) for spec in specs):
            return None
        values = {name: value for name, value in example.items() if name not in _files(specs)}
        rest = [spec for spec in processing.inputs if spec.name not in _files(specs)]
        given = decode_inputs(PredictRequest(values), rest)
        for spec in specs:
            if spec.files:
                given |= self._read_files(spec, example[spec.name])
        arrays = {spec.name: given[spec.name] for spec in processing.inputs}
        check_inputs(processing.inputs, arrays)
        watch = Watch(float("inf"), None)
        processing.prepared_bytes(arrays, watch)
        prepared = processing.prepare(arrays, watch)
        if processing.given is None:
            self.processing = replace(processing, given=arrays)
        return prepared

    def _read_files(self, spec: TensorSpec, value: Any) -> Arrays:
        values = value if isinstance(value, list) else [value]
        read = [self._read_file(spec, one) if isinstance(one, str) else one for one in values]
        return decode_inputs(PredictRequest({spec.name: read}), [spec])

    def _read_file(self, spec: TensorSpec, name: str) -> dict[str, str]:
        if Path(name).name != name:
            raise InvalidInput(f"input {quoted(spec.name)}: {quoted(name)} is not a file name")
        file = self._folder / name
        try:
            if file.stat().st_size > MAX_EXAMPLE_BYTES:
                raise InvalidInput(f"{quoted(name)} is larger than {MAX_EXAMPLE_BYTES >> 20} MiB")
            return {"b64": b64encode(file.read_bytes()).decode()}
        except FileNotFoundError:
            raise InvalidInput(
                f"{quoted(name)} not found: put it into the version's folder"
            ) from None
        except OSError as error:
            raise InvalidInput(f"{quoted(name)} cannot be read: {error.strerror}") from error

    def try_out(self, run: RunFeeds) -> None:
        """See `Preparation`."""
        steps = self.processing.steps if self.processing is not None and self._filled else ()
        if len(steps) == 1 and isinstance(steps[0], TriedStep):
            steps[0].try_out(run)


def _is_sent(value: Any) -> bool:
    """Return True if a value is a text, a file, or a list of these, without numbers or a shape."""
    if isinstance(value, list):
        return bool(value) and all(map(_is_sent, value))
    return isinstance(value, str) or is_base64(value)


def _files(specs: list[TensorSpec]) -> set[str]:
    return {spec.name for spec in specs if spec.files}
