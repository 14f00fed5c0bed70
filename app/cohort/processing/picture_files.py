"""Decode pictures from untrusted files, and check their headers first."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from io import BytesIO
from math import prod
from typing import NamedTuple, TypeVar

from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from cohort.errors import CohortError, quoted
from cohort.processing.steps import Check
from cohort.processing.tiff_tags import orientation_of, read_tags

_T = TypeVar("_T")

PICTURE_KINDS = "JPEG, PNG, WebP, GIF, BMP, TIFF"

MAX_PIXELS = 1 << 26
"""Maximum pixels of a picture: 8192 x 8192. Decoding needs up to 24 bytes per pixel."""

MAX_SIDE = 65_535
"""Maximum pixels of a side, which is the limit of JPEG."""

MAX_SCANS = 20 * MAX_PIXELS
"""Maximum pixels in all scans of a JPEG. Each scan counts all pixels; 10 scans are common."""

MAX_TAG_VALUES = 1 << 18
"""Maximum numbers in the tags of a TIFF, each of which becomes an object.

A TIFF with one strip per row has 131,070.
"""

MAX_READS = 1 << 20
"""Maximum reads of a file, in Python. A PNG of 60 MB in parts of 8 KiB needs 30,000."""

_TIFF_COMPRESSIONS = frozenset({1, 5, 7, 8, 32773, 32946})
"""None, LZW, JPEG, Deflate, PackBits: decoders whose memory is limited by their output.

They stop at the first error. The CCITT decoder continues and logs a line for each row of pixels.
"""

_TILE_SIZE = (322, 323)

# Pillow's warnings about odd tags contain text from the file, and Python would keep each of them.
warnings.filterwarnings("ignore", module=r"PIL\.")


_SCAN = b"\xff\xda"
_SCANS_BYTES = 8
"""Additional bytes per pixel to decode a JPEG with several scans."""


class BadPicture(Exception):
    """A file is not a valid picture; the message describes the file."""


class _Checked(BytesIO):
    """A file that calls `check` at each read, and limits the number of reads."""

    def __init__(self, data: bytes, check: Check) -> None:
        super().__init__(data)
        self._check = check
        self._left = MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._check()
        self._left -= 1
        if self._left < 0:
            raise BadPicture("a file of too many parts")
        return super().read(size)


class _Tiff(TiffImageFile):
    """A TIFF of which only the first picture is read."""

    def load_end(self) -> None:
        """Skip Pillow's own step, which reads all tags and directories and rotates the picture."""
        self._size = self._tile_size


class _Kind(NamedTuple):
    """A file format: its signature, its reader, and the bytes per pixel that decoding needs."""

    name: str
    begins: Callable[[bytes], bool]
    opens: Callable[[BytesIO], ImageFile]
    bytes: int


_KINDS = (
    _Kind("JPEG", lambda head: head.startswith(b"\xff\xd8\xff"), JpegImageFile, 12),
    _Kind("PNG", lambda head: head.startswith(b"\x89PNG\r\n\x1a\n"), PngImageFile, 12),
    _Kind("WebP", lambda head: head[:4] == b"RIFF" and head[8:12] == b"WEBP", WebPImageFile, 24),
    _Kind("GIF", lambda head: head.startswith((b"GIF87a", b"GIF89a")), GifImageFile, 12),
    _Kind("BMP", lambda head: head.startswith(b"BM"), BmpImageFile, 12),
    _Kind("TIFF", lambda head: head[:4] in {b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"}, _Tiff, 24),
)

_OTHERS = {b"ftyphei": "HEIC", b"ftypmif": "HEIC", b"ftypavi": "AVIF", b"JXL ": "JPEG XL",
           b"jP  ": "JPEG 2000", b"%PDF": "PDF", b"%!PS": "PostScript", b"8BPS": "Photoshop",
           b"<svg": "SVG", b"<?xml": "XML", b"<html": "HTML", b"<!DOC": "HTML"}  # fmt: skip


def picture_bytes(data: bytes, check: Check) -> tuple[int, int]:
    """Return the maximum bytes that decoding needs, and the longer side, without decoding.

    check: Raises to end long work.

    Raises BadPicture if the file is not a picture, or if the picture is too large.
    """
    kind, picture = _open(data, check)
    if kind.name == "PNG":
        _guarded(kind, picture.verify)  # checks checksums, which decoding ignores
    width, height = picture.size
    several = kind.name == "JPEG" and data.count(_SCAN) > 1
    return width * height * (kind.bytes + several * _SCANS_BYTES), max(width, height)


def decode_picture(data: bytes, mode: str, check: Check) -> Image.Image:
    """Decode a picture to "RGB" or "L", and apply its EXIF orientation. Raises BadPicture."""
    kind, picture = _open(data, check)

    def decode() -> Image.Image:
        picture.load()
        exif = data if kind.name == "TIFF" else picture.info.get("exif")
        turned = _TURNS.get(orientation_of(exif)) if isinstance(exif, bytes) else None
        flat = _as_mode(picture, mode)
        return flat if turned is None else flat.transpose(turned)

    return _guarded(kind, decode)


def _open(data: bytes, check: Check) -> tuple[_Kind, ImageFile]:
    """Read the header of a file. Raises BadPicture, also if its picture would be too large."""
    head = data[:16]
    kind = next((kind for kind in _KINDS if kind.begins(head)), None)
    if kind is None:
        raise BadPicture(_what_it_is(head))
    if kind.name == "TIFF":
        _check_tags(data)
    picture = _guarded(kind, lambda: kind.opens(_Checked(data, check)))
    width, height = picture.size
    size = f"{kind.name} of {width} x {height} pixels"
    if width * height > MAX_PIXELS:
        raise BadPicture(f"a {size}; the limit is {MAX_PIXELS:,} pixels")
    if max(width, height) > MAX_SIDE:
        raise BadPicture(f"a {size}; the limit is {MAX_SIDE:,} per side")
    if not width or not height:
        raise BadPicture(f"a {size}")
    scans = data.count(_SCAN) if kind.name == "JPEG" else 0  # includes thumbnails
    if scans * width * height > MAX_SCANS:
        raise BadPicture(f"a {size} in {scans} scans, which would take too long")
    return kind, picture


def _what_it_is(head: bytes) -> str:
    for begins, name in _OTHERS.items():
        if begins.lower() in head.lower():
            return f"{name}; convert it to one of those"
    return f"a file that begins with {quoted(head.decode('latin-1'))}"


def _guarded(kind: _Kind, work: Callable[[], _T]) -> _T:
    """Call Pillow, which may raise any error for a damaged file. Raises BadPicture."""
    try:
        return work()
    except (CohortError, BadPicture):
        raise
    except Image.DecompressionBombError:
        raise BadPicture(f"a {kind.name} of more than {MAX_PIXELS:,} pixels") from None
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise a dozen kinds
        reason = str(error) or type(error).__name__
        raise BadPicture(f"a damaged {kind.name}: {quoted(reason)}") from None


def _check_tags(data: bytes) -> None:
    """Raise BadPicture for a TIFF whose compression, tags or tiles are not accepted."""
    try:
        tags = read_tags(data)
    except ValueError as error:
        raise BadPicture(f"a damaged TIFF: {error}") from None
    compression = tags.get(259)
    number = 1 if compression is None else compression.number
    if number not in _TIFF_COMPRESSIONS:
        raise BadPicture(
            f"a TIFF of compression {number}; it may be none, LZW, Deflate, JPEG or PackBits"
        )
    if sum(tag.elements for tag in tags.values() if tag.size > tag.elements) > MAX_TAG_VALUES:
        raise BadPicture(f"a TIFF of more than {MAX_TAG_VALUES:,} numbers in its tags")
    sides = [tags[tag].number or MAX_PIXELS for tag in _TILE_SIZE if tag in tags]
    if prod(sides) > MAX_PIXELS:
        raise BadPicture(f"a TIFF in tiles of more than {MAX_PIXELS:,} pixels")


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _as_mode(picture: Image.Image, mode: str) -> Image.Image:
    """Return the picture without alpha, with 8 bits per channel. Raises BadPicture."""
    if picture.mode in {"I", "F"}:
        raise BadPicture("one of 32 bits a channel, whose range is not known")
    if picture.mode.startswith("I;16"):  # Pillow's own conversion clips at 255
        picture = picture.point(lambda value: value * (1 / 256)).convert("L")
    if picture.mode in {"RGBa", "La"}:  # premultiplied alpha
        picture = picture.convert(picture.mode.upper())
    if picture.mode == mode:
        return picture
    picture.info.pop("transparency", None)  # Pillow warns about one transparent colour
    if mode == "L" and picture.mode not in {"1", "LA"}:
        picture = picture.convert("RGB")
    return picture.convert(mode)
