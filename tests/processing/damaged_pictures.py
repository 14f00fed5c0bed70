"""Files that were pictures once, damaged in ways that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache

from PIL import Image

from tests.processing.pictures import picture, saved


@cache
def originals() -> dict[str, bytes]:
    """Return a file of each format and of each variant that has a separate decoder."""
    photo, small = picture(97, 61), picture(40, 30, seed=2)
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a picture " * 20
    frames = [picture(40, 30, seed=seed) for seed in range(3, 6)]
    deep = small.convert("I").point(lambda value: value * 257).convert("I;16")
    several = {"save_all": True, "append_images": frames}
    return {
        "jpeg": saved(photo, "JPEG", exif=exif.tobytes(), icc_profile=bytes(3000)),
        "jpeg-progressive": saved(photo, "JPEG", progressive=True),
        "jpeg-grey": saved(photo.convert("L"), "JPEG"),
        "jpeg-cmyk": saved(photo.convert("CMYK"), "JPEG"),
        "png": saved(photo, "PNG", exif=exif.tobytes(), icc_profile=bytes(3000)),
        "png-palette": saved(photo.convert("P"), "PNG", transparency=3),
        "png-alpha": saved(photo.convert("RGBA"), "PNG"),
        "png-16": saved(deep, "PNG"),
        "apng": saved(small, "PNG", **several),
        "webp": saved(photo, "WEBP", exif=exif.tobytes()),
        "webp-lossless": saved(photo.convert("RGBA"), "WEBP", lossless=True),
        "webp-frames": saved(small, "WEBP", **several),
        "gif": saved(photo, "GIF"),
        "gif-frames": saved(small, "GIF", **several),
        "bmp": saved(photo, "BMP"),
        "bmp-rle": run_lengths(16, 12),
        "bmp-1": saved(photo.convert("1"), "BMP"),
        "tiff": saved(photo, "TIFF", exif=exif),
        "tiff-lzw": saved(photo, "TIFF", compression="tiff_lzw"),
        "tiff-deflate": saved(photo, "TIFF", compression="tiff_adobe_deflate"),
        "tiff-jpeg": saved(photo, "TIFF", compression="jpeg"),
        "tiff-fax": saved(photo.convert("1"), "TIFF", compression="group4"),
        "tiff-pages": saved(small, "TIFF", **several),
    }


def run_lengths(width: int, height: int) -> bytes:
    """Return a BMP in run-length encoding, which Pillow reads and does not write."""
    palette = bytes(4 * 256)
    lines = b"".join(bytes([width, row, 0, 0]) for row in range(height)) + b"\0\1"
    start = 14 + 40 + len(palette)
    info = [(40, 4), (width, 4), (height, 4), (1, 2), (8, 2), (1, 4), (len(lines), 4)]
    header = b"BM" + (start + len(lines)).to_bytes(4, "little") + bytes(4)
    header += start.to_bytes(4, "little")
    header += b"".join(number.to_bytes(size, "little") for number, size in info) + bytes(16)
    return header + palette + lines


def damaged(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` files, each with the name of its original and of the damage."""
    chance = random.Random(seed)
    files = list(originals().items())
    for number in range(count):
        name, data = files[number % len(files)]
        how = chance.choice([cut, flip, fill, repeat, splice, grow, enlarge])
        yield f"{name} {how.__name__} {number}", how(bytearray(data), chance)


def cut(data: bytearray, chance: random.Random) -> bytes:
    """The end is missing."""
    return bytes(data[: chance.randrange(1, len(data) * 9 // 10)])


def flip(data: bytearray, chance: random.Random) -> bytes:
    """Some bytes are others, more of them at the beginning."""
    for _ in range(chance.choice([1, 3, 10, 50])):
        data[int(len(data) * chance.random() ** 3)] = chance.choice([0, 1, 127, 255, *range(256)])
    return bytes(data)


def fill(data: bytearray, chance: random.Random) -> bytes:
    """A block has one value."""
    start = chance.randrange(2, len(data))
    size = min(chance.choice([4, 64, 1000]), len(data) - start)
    data[start : start + size] = bytes([chance.choice([0, 255])]) * size
    return bytes(data)


def repeat(data: bytearray, chance: random.Random) -> bytes:
    """A block is there many times."""
    start = chance.randrange(len(data))
    block = data[start : start + chance.choice([2, 20, 200])]
    return bytes(data[:start] + block * chance.choice([2, 50, 1000]) + data[start:])


def splice(data: bytearray, chance: random.Random) -> bytes:
    """Continue with the bytes of another file."""
    other = chance.choice(list(originals().values()))
    return bytes(data[: chance.randrange(4, len(data))]) + other[chance.randrange(len(other)) :]


def grow(data: bytearray, chance: random.Random) -> bytes:
    """Random bytes are in it."""
    start = chance.randrange(8, len(data))
    return bytes(data[:start]) + chance.randbytes(chance.choice([1, 7, 500])) + bytes(data[start:])


def enlarge(data: bytearray, chance: random.Random) -> bytes:
    """Numbers near the beginning are huge, as sizes and counts may be."""
    for _ in range(chance.choice([1, 2, 4])):
        start = chance.randrange(4, min(len(data) - 4, 80))
        size = chance.choice([2, 4])
        data[start : start + size] = chance.choice(
            [b"\xff" * size, b"\x7f" * size, b"\xff\0\xff\0"[:size], b"\0" * (size - 1) + b"\xff"]
        )
    return bytes(data)
