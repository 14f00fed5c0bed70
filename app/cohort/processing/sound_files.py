"""Sound files: detect their format, check that they are complete, and decode their samples.

libsndfile decodes them (https://libsndfile.github.io/libsndfile/). It reads the rest of a damaged
WAV or MP3 file, and skips damaged parts of OGG and MP3. This module finds such damage first.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator

import numpy as np
import soundfile
from numpy.typing import NDArray

from cohort.processing.mp3_frames import check_mp3
from cohort.processing.steps import Check

SOUND_KINDS = "WAV, FLAC, OGG or MP3"

_DECODERS = {
    "WAV": {"WAV", "WAVEX", "RF64"},
    "FLAC": {"FLAC"},
    "OGG": {"OGG"},
    "MP3": {"MP3", "MPEG"},
}
_ENCODINGS = {
    *("PCM_16", "PCM_24", "PCM_32", "PCM_S8", "PCM_U8", "FLOAT", "DOUBLE", "ULAW", "ALAW"),
    *("IMA_ADPCM", "MS_ADPCM", "VORBIS", "OPUS", "MPEG_LAYER_III"),
}

BLOCK = 1 << 16
"""Samples of all channels to decode in one call."""

MAX_CHANNELS = 64

UNKNOWN_SIZES = frozenset({0, 0xFFFFFFFF, 0x7FFFFFFF, 0xFFFFFFFE, 0x7FFFF000})
"""Values used instead of a size in WAV files that were written to a pipe."""


class BadSound(Exception):
    """A file is not sound that can be decoded; the message states the reason."""


class SoundReader:
    """An open sound file. Used on one thread.

    kind: WAV, FLAC, OGG or MP3.
    rate: Samples per second.
    frames: The number of samples per channel, from the header.
    channels: The number of channels.
    """

    def __init__(self, data: bytes, check: Check) -> None:
        """Open a file and check that it is complete. Raises BadSound."""
        self.kind = kind_of(data)
        if self.kind == "WAV":
            _check_wav(data)
        elif self.kind == "OGG":
            _check_ogg(data, check)
        elif self.kind == "MP3":
            try:
                check_mp3(data, check)
            except ValueError as error:
                raise BadSound(str(error)) from None
        try:
            self._file = soundfile.SoundFile(io.BytesIO(data))
        except (soundfile.LibsndfileError, ValueError, RuntimeError) as error:
            raise BadSound(_reason(error)) from None
        file = self._file
        self.rate, self.frames, self.channels = file.samplerate, file.frames, file.channels
        if file.format not in _DECODERS[self.kind] or file.subtype not in _ENCODINGS:
            raise BadSound(f"its encoding {file.format} {file.subtype} is not supported")
        if not 0 < self.channels <= MAX_CHANNELS:
            raise BadSound(f"it has {self.channels} channels; the maximum is {MAX_CHANNELS}")
        if self.rate <= 0:
            raise BadSound(f"its sample rate is {self.rate}")
        if self.frames <= 0:
            raise BadSound("it has no samples")

    def blocks(self, check: Check) -> Iterator[NDArray[np.float32]]:
        """Yield blocks [frames, channels] of samples from -1 to 1. Raises BadSound."""
        left = self.frames
        size = max(BLOCK // self.channels, 1)
        while left:
            check()
            wanted = min(size, left)
            try:
                block = self._file.read(wanted, dtype="float32", always_2d=True)
            except (soundfile.LibsndfileError, RuntimeError) as error:
                raise BadSound(_reason(error)) from None
            if not len(block):
                raise BadSound(
                    f"its header declares {self.frames} samples, but it ends after "
                    f"{self.frames - left}"
                )
            if not np.isfinite(block).all():
                raise BadSound("it has samples that are not finite numbers")
            left -= len(block)
            yield block

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def kind_of(data: bytes) -> str:
    """Return the format of a sound file, from its first bytes. Raises BadSound."""
    head = data[:12]
    if head[:4] in {b"RIFF", b"RF64"} and head[8:12] == b"WAVE":
        return "WAV"
    if head[:4] == b"fLaC":
        return "FLAC"
    if head[:4] == b"OggS":
        return "OGG"
    if head[:3] == b"ID3" or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0):
        return "MP3"
    raise BadSound(f"its first bytes are not those of {SOUND_KINDS}")


def _reason(error: Exception) -> str:
    text = getattr(error, "error_string", "") or str(error)
    return f"it cannot be decoded: {text.strip().removeprefix('Error : ').rstrip('.')}"


def _check_wav(data: bytes) -> None:
    """Raise BadSound if the file is shorter than its header states, or has no chunk of samples."""
    size = int.from_bytes(data[4:8], "little")
    if size not in UNKNOWN_SIZES and data[:4] == b"RIFF" and size + 8 > len(data) + 1:
        raise BadSound(
            f"its header declares {size + 8} bytes, but it has {len(data)}: it is truncated"
        )
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], int.from_bytes(data[at + 4 : at + 8], "little")
        if name == b"data":
            unknown = size in UNKNOWN_SIZES or data[:4] == b"RF64"
            if not unknown and at + 8 + size > len(data):
                raise BadSound(
                    f"its header declares {size} bytes of samples, but it has "
                    f"{len(data) - at - 8}: it is truncated"
                )
            return
        at += 8 + size + size % 2
    raise BadSound("it has no chunk of samples: it is truncated")


_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_NO_SUM = bytes(4)


def _check_ogg(data: bytes, check: Check) -> None:
    """Raise BadSound if a page is incomplete or damaged.

    Format: https://www.rfc-editor.org/rfc/rfc3533#section-6
    """
    at = count = 0
    last = 0
    while at < len(data):
        count += 1
        if not count % 256:
            check()
        head = data[at : at + 27]
        if len(head) < 27 or head[:4] != b"OggS":
            raise BadSound(f"byte {at} is not the start of an OGG page: it is damaged")
        body = at + 27 + head[26]
        end = body + sum(data[at + 27 : body])
        if end > len(data):
            raise BadSound(f"the OGG page at byte {at} is not whole: the file is truncated")
        page = head[:22] + _NO_SUM + data[at + 26 : end]
        if ogg_sum(page) != int.from_bytes(head[22:26], "little"):
            raise BadSound(f"the OGG page at byte {at} does not match its checksum: it is damaged")
        at, last = end, head[5]
    if not last & 4:
        raise BadSound("its last OGG page is missing: the file is truncated")


def ogg_sum(page: bytes) -> int:
    """Return the checksum of a page whose checksum field is zero: CRC-32, not reflected, from 0."""
    turned = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{turned:032b}"[::-1], 2)
