"""Check that an MP3 file consists of complete frames up to its end.

The decoder skips damaged parts and reports them on standard error, so damaged files are rejected
first. Layers I to III: http://www.mp3-tech.org/programmer/frame_header.html
"""

from __future__ import annotations

from cohort.processing.steps import Check

_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
_KBITS = {  # by (True for MPEG 1, the layer's code in a header)
    (True, 1): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, 1): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_LAYER_3 = 1


def check_mp3(data: bytes, check: Check) -> None:
    """Raise ValueError, which states the position, if a file is damaged or cut off."""
    at, end = _first(data), _end(data)
    count = 0
    fixed = -1
    while at < end:
        if not count % 1024:
            check()
        header = int.from_bytes(data[at : at + 4], "big")
        size = frame_bytes(header)
        if not size or (fixed >= 0 and header & 0x1E0C00 != fixed):
            if count and not data[at:end].strip(b"\0"):
                break
            raise ValueError(f"byte {at} is not the start of an MP3 frame: it is damaged")
        fixed = header & 0x1E0C00  # the version, layer and rate of all frames
        if at + size > end:
            raise ValueError(f"the MP3 frame at byte {at} is not whole: the file is truncated")
        at += size
        count += 1
    if not count:
        raise ValueError("it has no MP3 frame")
    _check_count(data, count)


def frame_bytes(header: int) -> int:
    """Return the bytes of a layer III frame with this header, or 0 if the header is not valid."""
    version, layer = header >> 19 & 3, header >> 17 & 3
    bits, rate = header >> 12 & 15, header >> 10 & 3
    wrong = header >> 21 != 0x7FF or version == 1 or layer != _LAYER_3
    if wrong or bits in {0, 15} or rate == 3:
        return 0
    kbits = _KBITS[version == 3, layer][bits]
    return (144 if version == 3 else 72) * kbits * 1000 // _RATES[version][rate] + (header >> 9 & 1)


def _first(data: bytes) -> int:
    """Return the position of the first frame, after an ID3v2 tag. Raises ValueError.

    Format of the tag: https://id3.org/id3v2.4.0-structure
    """
    if data[:3] != b"ID3":
        return 0
    seven = data[6:10]
    if len(seven) < 4 or max(seven) > 127:
        raise ValueError("its ID3 tag is damaged")
    size = 0
    for byte in seven:
        size = size << 7 | byte
    at = 10 + size + (10 if data[5] & 16 else 0)
    while data[at : at + 1] == b"\0":
        at += 1
    return at


def _end(data: bytes) -> int:
    """Return the end of the last frame, before an APE tag and an ID3v1 tag."""
    end = len(data)
    if data[-128:-125] == b"TAG" and end >= 128:
        end -= 128
    footer = data[max(end - 32, 0) : end]
    if footer[:8] == b"APETAGEX" and len(footer) == 32:
        size = int.from_bytes(footer[12:16], "little")
        end = max(end - size - (32 if footer[23] & 0x80 else 0), 0)
    return end


def _check_count(data: bytes, count: int) -> None:
    """Raise ValueError if a Xing header in the first frame states more frames than `count`."""
    start = _first(data)
    head = data[start : start + 200]
    for name in (b"Xing", b"Info"):
        at = head.find(name)
        if at < 0 or not int.from_bytes(head[at + 4 : at + 8], "big") & 1:
            continue
        declared = int.from_bytes(head[at + 8 : at + 12], "big")
        if declared > count:
            raise ValueError(
                f"its header declares {declared} MP3 frames, but it has {count}: it is truncated"
            )
