"""Sound: decoded files, and refused ones."""

from __future__ import annotations

import base64
import io
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from cohort.errors import InvalidInput, LoadFailed
from cohort.processing.sound import SoundStep, resampled_length
from cohort.processing.steps import StepContext
from cohort.repository import AudioInput, InputConfig
from cohort.tensors import TensorSpec

SECOND = np.arange(16_000) / 16_000
TONE: Any = (0.5 * np.sin(2 * np.pi * 440 * SECOND)).astype(np.float32)
KINDS = [
    ("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "PCM_U8"), ("WAV", "FLOAT"), ("WAV", "DOUBLE"),
    ("WAV", "ULAW"), ("WAV", "IMA_ADPCM"), ("WAVEX", "PCM_16"), ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
]  # fmt: skip


def file_of(samples: Any, kind: str = "WAV", encoding: str = "PCM_16", rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=kind, subtype=encoding)
    return file.getvalue()


def step_for(shape: Any = ("N", "samples"), datatype: str = "FP32", **config: Any) -> SoundStep:
    audio = AudioInput(**{"sample_rate": 16_000, **config})
    inputs: Mapping[str, TensorSpec] = {"x": TensorSpec("x", datatype, shape)}
    return SoundStep(StepContext("x", InputConfig(audio=audio), inputs, Path()))


def quietly() -> None:
    pass


def prepare(step: SoundStep, *files: object) -> Any:
    values = np.empty(len(files), np.object_)
    values[:] = files
    size = step.prepared_bytes(values, quietly)
    array = step.prepare(values, quietly)["x"]
    assert size >= array.nbytes
    return array


@pytest.mark.parametrize(("kind", "encoding"), KINDS)
def test_files_of_all_kinds_become_the_samples_that_were_written(kind: str, encoding: str) -> None:
    """They equal libsndfile's; lossy ones are within a hundredth of the tone's power."""
    file = file_of(TONE, kind, encoding)
    (made,) = prepare(step_for(), file)
    read, _ = soundfile.read(io.BytesIO(file), dtype="float32")
    np.testing.assert_allclose(made, read, atol=1e-6)
    assert np.mean((made[: len(TONE)] - TONE) ** 2) < 0.01 * np.mean(TONE**2)


def test_channels_become_their_mean() -> None:
    """A model that takes two gets two; a file with one is refused for it."""
    both = np.stack([TONE, np.zeros_like(TONE)], axis=1)
    file = file_of(both, encoding="FLOAT")
    np.testing.assert_allclose(prepare(step_for(), file)[0], TONE / 2, atol=1e-7)
    two = step_for(("N", 2, "samples"), channels=2)
    np.testing.assert_array_equal(prepare(two, file)[0], both.T)
    with pytest.raises(InvalidInput, match="row 0: expected 2 channels, got 1"):
        prepare(two, file_of(TONE))


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_another_rate_is_resampled(rate: int) -> None:
    """Blocks give the same bits as one call of soxr."""
    samples = np.random.default_rng(0).uniform(-0.9, 0.9, 5 * rate + 3).astype(np.float32)
    wanted = soxr.resample(samples, rate, 16_000)
    (made,) = prepare(step_for(), file_of(samples, encoding="FLOAT", rate=rate))
    np.testing.assert_array_equal(made, wanted)
    assert len(wanted) == resampled_length(len(samples), rate, 16_000)


@pytest.mark.parametrize(
    ("shape", "made"),
    [
        (("N", "samples"), (1, 16_000)),
        ((1, "samples"), (1, 16_000)),
        (("samples",), (16_000,)),
        (("N", 1, 16_000), (1, 1, 16_000)),
        (None, (1, 16_000)),
    ],
)
def test_samples_fill_the_input_that_the_model_has(shape: Any, made: tuple[int, ...]) -> None:
    """The input may have an axis for rows or channels."""
    assert prepare(step_for(shape), file_of(TONE)).shape == made
    step = step_for(shape, "FP16")
    array = prepare(step, *step.example)
    assert array.shape == made
    assert array.dtype == np.float16


@pytest.mark.parametrize("text", ["{}", "data:audio/wav;base64,{}"])
def test_files_may_be_strings_of_base64(text: str) -> None:
    """They may be plain, or a data: URL. Any other string is refused, by its row."""
    step = step_for()
    file = file_of(TONE)
    sent = text.format(base64.b64encode(file).decode())
    np.testing.assert_array_equal(prepare(step, sent), prepare(step, file))
    for wrong, why in [("no base64!", "base64"), ("data:audio/wav,x", "base64"), (b"", "empty")]:
        with pytest.raises(InvalidInput, match=f"'x' row 1: expected a file .*{why}"):
            prepare(step, file, wrong)


def test_sounds_of_different_length_are_not_padded() -> None:
    """A request with both is refused with both lengths; files of one length may be of any kind."""
    step = step_for()
    assert prepare(step, file_of(TONE), file_of(TONE, "FLAC")).shape == (2, 16_000)
    with pytest.raises(InvalidInput, match="row 0 has 16000 samples and row 1 has 8000"):
        prepare(step, file_of(TONE), file_of(TONE[:8_000]))


def test_a_length_that_the_model_does_not_take_is_refused() -> None:
    """The error has both lengths, in samples and seconds."""
    with pytest.raises(InvalidInput, match=r"expected 8000 samples .*\(0.5 s\), got 16000 .*\(1 s"):
        prepare(step_for(("N", 8_000)), file_of(TONE))


def test_long_sound_is_refused_by_its_header() -> None:
    """Small files are refused as well: seven minutes of silence are 50 KB of FLAC."""
    file = file_of(np.zeros(400 * 48_000, np.int16), "FLAC", rate=48_000)
    with pytest.raises(InvalidInput, match=r"at most 60 seconds \(max_seconds\), got 400"):
        prepare(step_for(max_seconds=60.0), file)
    with pytest.raises(InvalidInput, match=r"more than .* samples in one"):
        prepare(step_for(), *[file] * 12)


def test_a_wav_file_from_a_pipe_has_no_sizes() -> None:
    """ffmpeg writes 0xFFFFFFFF for them: its samples are those that are there."""
    file = bytearray(file_of(TONE))
    file[4:8] = file[40:44] = b"\xff" * 4
    np.testing.assert_array_equal(prepare(step_for(), bytes(file)), prepare(step_for(), file))
    assert prepare(step_for(), bytes(file)).shape == (1, 16_000)


@pytest.mark.parametrize(("kind", "encoding"), KINDS)
def test_a_file_that_was_cut_off_is_refused(kind: str, encoding: str) -> None:
    """It is refused wherever it was cut: no answer is for half of a recording."""
    file = file_of(TONE, kind, encoding)
    generator = random.Random(1)
    for _ in range(40):
        end = generator.randrange(1, len(file) - 1)
        with pytest.raises(InvalidInput, match="input 'x' row 0: "):
            prepare(step_for(), file[:end])


@pytest.mark.parametrize(("kind", "encoding"), KINDS)
def test_a_damaged_file_is_refused_or_decoded(kind: str, encoding: str) -> None:
    """Nothing else happens: what has no checksum may be other sound than it was."""
    file = file_of(TONE[:4_000], kind, encoding)
    generator = random.Random(2)
    step, taken = step_for(), 0
    refused: list[str] = []
    for _ in range(60):
        damaged = bytearray(file)
        for _ in range(generator.randrange(1, 8)):
            place = generator.randrange(len(file) if generator.random() < 0.5 else 100)
            damaged[place] = generator.choice([0, 0xFF, 0x80, generator.randrange(256)])
        try:
            (made,) = prepare(step, bytes(damaged))
        except InvalidInput as error:
            refused.append(str(error))
        else:
            assert np.isfinite(made).all()
            taken += bytes(damaged) != file
    assert all(text.startswith("input 'x' row 0: ") for text in refused)
    assert refused
    assert not taken or kind != "OGG"


@pytest.mark.parametrize(
    "file",
    [
        b"hello", b"RIFF", b"\xff\xfb", b"ID3\x04\0\0\x7f\x7f\x7f\x7f", b"fLaC" * 9,
        b"OggS" + bytes(23), b"\x89PNG\r\n\x1a\n" + bytes(40), b"FORM\0\0\0\x04AIFF" + bytes(30),
        b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0" + bytes(24),
    ],
)  # fmt: skip
def test_what_is_not_sound_is_refused(file: bytes) -> None:
    """The error lists the accepted kinds. libsndfile's many other formats are never tried."""
    with pytest.raises(InvalidInput, match=r"expected a sound file \(WAV, FLAC, OGG or MP3\): "):
        prepare(step_for(), file)


def test_samples_that_are_not_numbers_are_refused() -> None:
    """A WAV file of floats may hold them."""
    samples = TONE.copy()
    samples[77] = np.nan
    with pytest.raises(InvalidInput, match="not finite"):
        prepare(step_for(), file_of(samples, encoding="FLOAT"))


def test_a_header_of_flac_that_lies_is_held_against_the_samples() -> None:
    """Samples beyond the header's number are not decoded, and fewer are refused."""
    file = bytearray(file_of(TONE, "FLAC"))
    (low,) = struct.unpack(">I", file[22:26])
    assert low == 16_000
    file[22:26] = struct.pack(">I", 17_000)
    with pytest.raises(InvalidInput, match="damaged"):
        prepare(step_for(), bytes(file))


@pytest.mark.parametrize(
    ("shape", "datatype", "config", "why"),
    [
        (("N", 3, "s"), "FP32", {}, r"channels: 1, but the model expects 3"),
        (("N", "s"), "FP32", {"channels": 2}, r"channels: 2 fills \[N, 2, samples\]"),
        (("N", "s"), "INT64", {}, "floats, but the model expects INT64"),
        (("N", 99_999), "FP32", {"max_seconds": 2.0}, "99999 samples, but max_seconds: 2"),
    ],
)
def test_what_does_not_fit_the_model_says_both_numbers(
    shape: Any, datatype: str, config: dict[str, Any], why: str
) -> None:
    """The load fails, and the error has the key."""
    with pytest.raises(LoadFailed, match=rf"inputs\.x: .*{why}"):
        step_for(shape, datatype, **config)
