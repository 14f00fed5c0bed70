"""The limits and settings that connections announce."""

from __future__ import annotations

from cohort.http2.frames import (
    FIRST_WINDOW,
    HEADER_TABLE_SIZE,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    settings_frame,
    window_update,
)
from cohort.http2.header_blocks import MAX_HEADER_BYTES
from cohort.http2.incoming import OUR_FRAME
from cohort.http2.streams import STREAM_WINDOW

CONNECTION_WINDOW = 16 << 20
"""Bytes that all streams of a connection may receive ahead. Each stream has its own limit."""

STREAMS_PER_CONNECTION = 1024
"""Maximum calls in progress on a connection. Further ones are refused, and clients may retry them.
"""

GREETING = settings_frame(
    {
        HEADER_TABLE_SIZE: 4096,
        MAX_CONCURRENT_STREAMS: STREAMS_PER_CONNECTION,
        INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        MAX_FRAME_SIZE: OUR_FRAME,
        MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
    }
) + window_update(0, CONNECTION_WINDOW - FIRST_WINDOW)
"""The first bytes that a connection sends."""
