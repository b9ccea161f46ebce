"""The compression codecs of record batches."""

from __future__ import annotations

import enum


class Codec(enum.IntEnum):
    """Bits 0 to 2 of the batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
