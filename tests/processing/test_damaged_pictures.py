"""Files that are not pictures, or hostile ones: each is refused, and nothing else happens."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cohort.errors import DeadlineExceeded, InvalidInput
from cohort.processing import picture_files
from cohort.processing.images import ImageStep
from cohort.processing.steps import StepContext
from cohort.processing.tiff_tags import orientation_of
from cohort.repository import ImageInput, InputConfig
from cohort.tensors import TensorSpec
from tests.processing.damaged_pictures import damaged, originals
from tests.processing.pictures import picture, saved

DAMAGED = 300
"""In every run; 2,000 with other seeds found nothing else."""

SPEC = TensorSpec("image", "FP32", ("N", 3, 16, 16))
STEP = ImageStep(StepContext("image", InputConfig(image=ImageInput()), {"image": SPEC}, Path()))


def nothing() -> None:
    """Do nothing: no caller left."""


def ask(*files: bytes) -> Any:
    """Return the prepared files, as in a request."""
    values = np.empty(len(files), np.object_)
    values[:] = files
    STEP.prepared_bytes(values, nothing)
    return STEP.prepare(values, nothing)["image"]


@pytest.mark.parametrize("name", [name for name in originals() if name != "tiff-fax"])
def test_what_is_damaged_was_taken(name: str) -> None:
    """Each file is accepted before it is damaged."""
    assert ask(originals()[name]).shape == (1, 3, 16, 16)


def test_damaged_files_are_refused_or_seen_through() -> None:
    """Each is refused, or gives pixels if its decoder finds no fault."""
    refused = []
    for name, file in damaged(DAMAGED, seed=41):
        try:
            pixels = ask(file)
        except InvalidInput as error:
            refused.append(str(error))
        else:
            assert pixels.shape == (1, 3, 16, 16), name
            assert np.isfinite(pixels).all(), name
    assert len(refused) > DAMAGED / 2
    assert all(said.startswith("input 'image' row 0: expected a picture") for said in refused)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_a_file_that_was_cut_is_refused(kind: str) -> None:
    """It is refused wherever it was cut."""
    file = saved(picture(64, 48), kind)
    for length in range(0, len(file) * 9 // 10, max(len(file) // 60, 1)):
        with pytest.raises(InvalidInput, match="row 0: expected a"):
            ask(file[:length])


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a part of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *parts: bytes) -> bytes:
    """Return a PNG whose header has this size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    end = chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    return b"".join([b"\x89PNG\r\n\x1a\n", header, *parts, end])


def tiff(*tags: tuple[int, int, int], width: int = 8, height: int = 8, packed: int = 1) -> bytes:
    """A TIFF of tags: their number, how many values, and where these are, or the value itself."""
    several = [(256, 1, width), (257, 1, height), (258, 1, 8), (259, 1, packed), (262, 1, 1), *tags]
    entries = b"".join(struct.pack("<HHII", tag, 4, count, at) for tag, count, at in several)
    return b"II*\0" + struct.pack("<IH", 8, len(several)) + entries + bytes(4)


def scans(count: int) -> bytes:
    """Return a progressive JPEG whose last scan is there again and again."""
    file = saved(Image.new("RGB", (1000, 1000)), "JPEG", progressive=True)
    last = file[file.rindex(b"\xff\xda") : -2]
    return file[:-2] + last * count + file[-2:]


def plain_scans(count: int) -> bytes:
    """Return a JPEG that is not progressive, whose scan is there again and again."""
    file = saved(Image.new("RGB", (1000, 1000)), "JPEG")
    return file[:-2] + file[file.rindex(b"\xff\xda") : -2] * count + file[-2:]


CANVAS = b"RIFF\x64\0\0\0WEBPVP8X\x0a\0\0\0\2\0\0\0" + b"\xff\x3f\0\xff\x3f\0" + bytes(80)
SCREEN = b"GIF89a\xff\xff\xff\xff\0\0\0" + saved(Image.new("P", (8, 8)), "GIF")[13:]
LONG_TEXT = chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(1_000_000)))
HUGE_TEXT = chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(20_000_000)))


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (png(50_000, 50_000), "a PNG of 50000 x 50000 pixels; the limit is 67,108,864 pixels"),
        (png(100_000, 1), "a PNG of 100000 x 1 pixels; the limit is 65,535 per side"),
        (png(8, 8, *[LONG_TEXT] * 70), "a damaged PNG"),
        (png(8, 8, HUGE_TEXT), "a damaged PNG"),
        (CANVAS, "a WebP of "),
        (SCREEN, "a GIF of 65535 x 65535 pixels"),
        (tiff((273, 20_000_000, 8)), "a TIFF of more than 262,144 numbers in its tags"),
        (tiff((322, 1, 1 << 20), (323, 1, 1 << 20), packed=5), "a TIFF in tiles of more than"),
        (tiff((256, 1, 9)), "a damaged TIFF: tag 256 is listed twice"),
        (tiff(packed=34925), "a TIFF of compression 34925"),
        (tiff(width=70_000, height=60_000, packed=5), "a TIFF of 70000 x 60000"),
        (scans(1500), "a JPEG of 1000 x 1000 pixels in 1510 scans, which would take too long"),
        (plain_scans(1500), "in 1501 scans, which would take too long"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript; convert it"),
        (b"\0\0\0\x20ftypheic\0\0\0\0", "HEIC; convert it"),
        (b"P6\n9 9\n255\n" + bytes(243), "a file that begins with 'P6"),
        (b"{}", "a file that begins with '{}'"),
    ],
)
def test_hostile_files_are_refused(file: bytes, says: str) -> None:
    """They are refused before they use memory or time."""
    with pytest.raises(InvalidInput) as refused:
        ask(file)
    assert says in str(refused.value)


def test_a_file_of_many_parts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part takes time, however short it is."""
    monkeypatch.setattr(picture_files, "MAX_READS", 1000)
    with pytest.raises(InvalidInput, match="a file of too many parts"):
        ask(png(8, 8, *[chunk(b"tEXt", b"a\0b")] * 1000))


def test_long_work_ends_where_nobody_waits() -> None:
    """It ends in the middle of a picture."""
    values = np.empty(1, np.object_)
    values[0] = saved(picture(600, 600), "PNG", compress_level=0)
    asked = 0

    def check() -> None:
        nonlocal asked
        asked += 1
        if asked == 10:
            raise DeadlineExceeded(1.0)

    with pytest.raises(DeadlineExceeded):
        STEP.prepare(values, check)
    assert asked == 10


def test_many_frames_are_not_looked_at() -> None:
    """The first one alone is decoded, also where thousands follow."""
    frame = saved(Image.new("P", (8, 8)), "GIF")
    at = frame.index(b",\0\0\0\0")
    ask(frame[:-1] + frame[at:-1] * 50_000 + b";")


@pytest.mark.parametrize(
    "exif", [b"", b"Exif\0\0", b"II*\0", b"MM\0*\0\0\0\x08\xff\xff", bytes(99)]
)
def test_broken_exif_turns_nothing(exif: bytes) -> None:
    """The picture is neither turned nor refused, since EXIF is not the picture."""
    assert orientation_of(exif) == 1
    ask(saved(picture(20, 20), "PNG", exif=b"Exif\0\0" + exif))


def test_pillow_opens_nothing_else() -> None:
    """Its formats that run programs, or that were not requested, are not even known."""
    file = BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PPM")
    with pytest.raises(InvalidInput, match="begins with"):
        ask(file.getvalue())
