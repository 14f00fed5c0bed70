"""Sound inputs: convert files to samples at the model's sample rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import soxr

from cohort.errors import InvalidInput, quoted
from cohort.processing.sent_files import file_bytes
from cohort.processing.sound_files import SOUND_KINDS, BadSound, SoundReader
from cohort.processing.steps import Check, StepContext
from cohort.repository import AudioInput
from cohort.tensors import Array, Arrays, TensorSpec

MAX_SAMPLES = 1 << 26
"""Maximum numbers from all files of one request, unless max_seconds allows one file more."""

MAX_RATE = 768_000
"""Maximum sample rate of a file in hertz."""

_FLOATS = ("FP16", "FP32", "FP64")


class SoundStep:
    """A conversion of sound files to samples. Implements `Step`. Raises LoadFailed."""

    def __init__(self, context: StepContext) -> None:
        config = context.config.audio
        if config is None:
            raise context.problem("audio is missing")
        spec = context.model_input()
        self._config: AudioInput = config
        self._name = context.name
        self._model = spec
        self._shape = _shape(context, spec, config)
        rows = self._shape[0] if self._shape is not None else 1
        self.spec = TensorSpec(context.name, "BYTES", (rows,), files=True)
        self.fills: Sequence[str] = [context.name]
        self._longest = int(config.max_seconds * config.sample_rate) + 1
        count = rows if isinstance(rows, int) else 1
        self.example: Array = np.array([self._example_file()] * count, np.object_)
        channels = "one channel" if config.channels == 1 else f"{config.channels} channels"
        self.description = (
            f"sound ({SOUND_KINDS}) becomes samples from -1 to 1 of {channels}, "
            f"{config.sample_rate} a "
            "second"
        )

    @property
    def _length(self) -> int | None:
        """The fixed number of samples that the model accepts, or None."""
        last = self._model.shape[-1] if self._model.shape else None
        return last if isinstance(last, int) else None

    def _example_file(self) -> bytes:
        """Return a WAV file of silence: one second, or the length that the model accepts."""
        config = self._config
        samples = min(self._length or config.sample_rate, self._longest)
        size = samples * config.channels * 2
        rate, channels = config.sample_rate, config.channels
        return b"".join(
            (
                b"RIFF", (36 + size).to_bytes(4, "little"), b"WAVEfmt ", (16).to_bytes(4, "little"),
                (1).to_bytes(2, "little"), channels.to_bytes(2, "little"),
                rate.to_bytes(4, "little"), (rate * channels * 2).to_bytes(4, "little"),
                (channels * 2).to_bytes(2, "little"), (16).to_bytes(2, "little"),
                b"data", size.to_bytes(4, "little"), bytes(size),
            )
        )  # fmt: skip

    def is_short(self, values: Array) -> bool:
        """Return True if there are no files."""
        return not values.size

    def prepared_bytes(self, values: Array, check: Check) -> int:
        """Return the bytes of all samples. Raises InvalidInput for invalid or too long sound."""
        most = max(MAX_SAMPLES, self._longest * self._config.channels)
        total = 0
        first = 0
        for row, element in enumerate(values.tolist()):
            check()
            reader = self._open(element, row, check)
            samples = self._samples(reader, row)
            reader.close()
            if row and samples != first:
                raise InvalidInput(
                    f"input {quoted(self._name)}: row 0 has {first} samples and row {row} has "
                    f"{samples}; send sounds of different lengths in separate requests"
                )
            first = samples
            total += samples * self._config.channels
            if total > most:
                raise InvalidInput(
                    f"input {quoted(self._name)} has more than {most} samples in one request"
                )
        return total * (8 + self._model.dtype.itemsize)

    def prepare(self, values: Array, check: Check) -> Arrays:
        """Return the model's input. Raises InvalidInput, which names the row."""
        rows: list[Array] = []
        for row, element in enumerate(values.tolist()):
            reader = self._open(element, row, check)
            try:
                rows.append(self._decode(reader, self._samples(reader, row), check))
            except BadSound as error:
                raise self._wrong(row, f"the {reader.kind} file is damaged: {error}") from None
            finally:
                reader.close()
        if len({row.shape for row in rows}) > 1:
            raise InvalidInput(f"input {quoted(self._name)} has sounds of different length")
        return {self._name: self._shaped(rows)}

    def _shaped(self, rows: list[Array]) -> Array:
        dtype = self._model.dtype
        if not rows:
            shape = [size if isinstance(size, int) else 0 for size in self._model.shape or (0, 0)]
            return np.zeros([0, *shape[1:]], dtype)
        together = np.stack(rows).astype(dtype, copy=False)  # [rows, channels, samples]
        rank = len(self._model.shape) if self._model.shape else 0
        if rank == 3 or self._config.channels > 1:
            return together
        together = together[:, 0]
        return together[0] if self._shape is None else together

    def _open(self, element: object, row: int, check: Check) -> SoundReader:
        data = file_bytes(element, self._name, row)
        try:
            return SoundReader(data, check)
        except BadSound as error:
            raise self._wrong(row, f"expected a sound file ({SOUND_KINDS}): {error}") from None

    def _samples(self, reader: SoundReader, row: int) -> int:
        """Return the number of samples of a file. Raises InvalidInput for too many or too few."""
        config = self._config
        seconds = reader.frames / reader.rate
        if reader.rate > MAX_RATE:
            raise self._wrong(row, f"at most {MAX_RATE} samples a second, got {reader.rate}")
        if seconds > config.max_seconds:
            raise self._wrong(
                row, f"at most {config.max_seconds:g} seconds (max_seconds), got {seconds:.6g}"
            )
        if config.channels not in {1, reader.channels}:
            raise self._wrong(row, f"expected {config.channels} channels, got {reader.channels}")
        samples = resampled_length(reader.frames, reader.rate, config.sample_rate)
        if not samples:
            got = f"got {reader.frames} at {reader.rate} Hz"
            raise self._wrong(row, f"at least one sample at {config.sample_rate} Hz, {got}")
        if self._length is not None and samples != self._length:
            raise self._wrong(
                row,
                f"expected {self._length} samples at {config.sample_rate} Hz "
                f"({self._length / config.sample_rate:.6g} s), got {samples} "
                f"({samples / config.sample_rate:.6g} s)",
            )
        return samples

    def _decode(self, reader: SoundReader, samples: int, check: Check) -> Array:
        """Return the samples of a file, [channels, samples]. Raises BadSound."""
        config = self._config
        made = np.zeros((samples, config.channels), np.float32)
        stream = None
        if reader.rate != config.sample_rate:
            stream = soxr.ResampleStream(
                reader.rate, config.sample_rate, config.channels, dtype="float32"
            )
        at, left = 0, reader.frames
        for block in reader.blocks(check):
            left -= len(block)
            samples_of = block.mean(axis=1, keepdims=True) if config.channels == 1 else block
            if stream is not None:
                samples_of = stream.resample_chunk(samples_of, last=not left)
            part = samples_of[: samples - at]
            made[at : at + len(part)] = part
            at += len(part)
        return made.T

    def _wrong(self, row: int, sentence: str) -> InvalidInput:
        return InvalidInput(f"input {quoted(self._name)} row {row}: {sentence}")


def resampled_length(frames: int, rate: int, wanted: int) -> int:
    """Return the number of samples after resampling with soxr: rounded, halves up."""
    return frames if rate == wanted else (2 * frames * wanted + rate) // (2 * rate)


def _shape(
    context: StepContext, spec: TensorSpec, config: AudioInput
) -> tuple[int | str | None, ...] | None:
    """Return the shape of the model's input; None if it is one row, without an axis for rows.

    Raises LoadFailed if sound does not fit it.
    """
    if spec.datatype not in _FLOATS:
        raise context.problem(f"audio gives floats, but the model expects {spec.datatype}")
    shape = spec.shape
    if shape is None:
        return ("N",)
    fits = {1: "[samples]", 2: "[N, samples]", 3: f"[N, {config.channels}, samples]"}
    ranks = {3} if config.channels > 1 else {1, 2, 3}
    if len(shape) not in ranks:
        wanted = ", ".join(fits[rank] for rank in sorted(ranks))
        raise context.problem(
            f"audio with channels: {config.channels} fills {wanted}, but the model expects "
            f"{spec.shape_text}"
        )
    if len(shape) == 3 and isinstance(shape[1], int) and shape[1] != config.channels:
        raise context.problem(
            f"audio has channels: {config.channels}, but the model expects {shape[1]} "
            f"({spec.shape_text})"
        )
    longest = config.max_seconds * config.sample_rate
    if isinstance(shape[-1], int) and shape[-1] > longest:
        raise context.problem(
            f"the model expects {shape[-1]} samples, but max_seconds: {config.max_seconds:g} "
            f"allows {longest:g}"
        )
    return None if len(shape) == 1 else shape
