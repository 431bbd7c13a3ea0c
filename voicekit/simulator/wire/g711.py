"""G.711, the telephone's 8-bit sound: tables between PCM16 and mu-law or A-law bytes (ITU-T G.711)."""

from __future__ import annotations

from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from voicekit.audio import from_pcm, to_pcm

RATE = 8_000
Law = Literal["audio/pcmu", "audio/pcma"]


def decode(coded: bytes, law: Law) -> bytes:
    """Turn coded bytes into PCM16 at 8 kHz, two bytes for each of them."""
    return to_pcm(_decoded(law)[np.frombuffer(coded, dtype=np.uint8)])


def encode(pcm: bytes, law: Law) -> bytes:
    """Turn PCM16 at 8 kHz into coded bytes: the nearest of the 256 levels."""
    return _encoded(law)[from_pcm(pcm).astype(np.int32) + 32768].tobytes()


@cache
def _decoded(law: Law) -> npt.NDArray[np.int16]:
    code = np.arange(256)
    if law == "audio/pcmu":
        inverted = ~code & 0xFF
        exponent, mantissa = (inverted >> 4) & 7, inverted & 15
        level = (((mantissa << 3) + 132) << exponent) - 132
        positive = inverted < 128
    else:
        inverted = code ^ 0x55
        exponent, mantissa = (inverted >> 4) & 7, inverted & 15
        level = np.where(exponent == 0, (mantissa << 4) + 8, ((mantissa << 4) + 264) << np.maximum(exponent - 1, 0))
        positive = inverted >= 128
    return np.where(positive, level, -level).astype(np.int16)


@cache
def _encoded(law: Law) -> npt.NDArray[np.uint8]:
    """The code of each of the 65,536 PCM values, by nearest level."""
    levels = _decoded(law).astype(np.int32)
    order = np.argsort(levels, kind="stable")
    middles = (levels[order][1:] + levels[order][:-1]) / 2
    return order[np.searchsorted(middles, np.arange(-32768, 32768))].astype(np.uint8)
