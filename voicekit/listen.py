"""The sound player and the transcript that a notebook shows of a run, both inside the saved file.

Sound in a notebook is optional: many viewers drop it. What a lesson needs is in the picture and in the transcript, so
both objects here also have a plain-text form.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

from voicekit.audio import RATE, to_int16
from voicekit.metrics import Event
from voicekit.recording import speech

# Half a minute without a pause takes less than 200 KB in a notebook, at the level it has and the sides apart. Opus is
# smaller, but libsndfile takes six times as long for it, and every lesson has a player.
VORBIS_COMPRESSION = 0.9
NO_SOUND = "No sound here? The timeline and the transcript tell the same."


@dataclass(frozen=True)
class Player:
    """A sound player for notebooks: controls, no autoplay, the sound inside the page and at the level it has.

    clipped_db  how far the loudest sample was above full scale before it was clipped; 0.0 for none
    """

    seconds: float
    channels: int
    clipped_db: float
    simulated: bool
    encoded: bytes = field(repr=False)

    @property
    def caption(self) -> str:
        sides = "left: caller, right: agent as heard; " if self.channels == 2 else ""
        clipped = f"; clipped, it was {self.clipped_db:.1f} dB above full scale" if self.clipped_db else ""
        size = f"{-(-len(self.encoded) // 1000)} KB" if self.encoded else "sound cannot be encoded on this machine"
        return f"{sides}{self.seconds:.1f} s{', simulated' if self.simulated else ''}, {size}{clipped}"

    def __repr__(self) -> str:
        return f"<player: {self.caption}>"

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.encoded).decode()
        sound = f'<audio controls preload="metadata" src="data:audio/ogg;base64,{data}"></audio><br>' if data else ""
        return f"<div>{sound}<small>{html.escape(self.caption)}. {NO_SOUND}</small></div>"


def player(sound: npt.NDArray[Any], *, rate: int = RATE, simulated: bool = True) -> Player:
    """A player for sound of shape (n,) or (n, 2): int16, or floats with full scale 1.0.

    Never normalised, so that two players can be compared; what is louder than full scale is clipped, and said so.
    `rate` is one that browsers play (8, 12, 16, 24 or 48 kHz). Raises ValueError for values that are no sound, other
    shapes, and other rates.
    """
    sound = np.asarray(sound)
    if sound.ndim not in (1, 2) or (sound.ndim == 2 and sound.shape[1] not in (1, 2)):
        raise ValueError(f"a player takes sound of shape (n,) or (n, 2), not {sound.shape}")
    if rate not in (8000, 12_000, 16_000, 24_000, 48_000):
        raise ValueError(f"a player takes sound at 8, 12, 16, 24 or 48 kHz, not {rate} Hz; resample it first")
    clipped_db = 0.0
    if sound.dtype != np.int16:
        if not np.issubdtype(sound.dtype, np.floating):
            raise ValueError(f"a player takes int16 or float samples, not {sound.dtype}")
        if not np.isfinite(sound).all():
            count = int((~np.isfinite(sound)).sum())
            raise ValueError(f"{count} of the samples are no sound (NaN or infinity); mend what made them")
        peak = float(np.abs(sound).max(initial=0.0))
        clipped_db = 20.0 * float(np.log10(peak)) if peak > 1.0 else 0.0
        sound = to_int16(sound)
    channels = 1 if sound.ndim == 1 else sound.shape[1]
    return Player(len(sound) / rate, channels, clipped_db, simulated, _encoded(sound, rate))


def _encoded(sound: npt.NDArray[np.int16], rate: int) -> bytes:
    """OGG/Vorbis, or nothing where there is no sound or the system's libsndfile has no Vorbis."""
    buffer = io.BytesIO()
    try:
        if len(sound):
            soundfile.write(buffer, sound, rate, format="OGG", subtype="VORBIS", compression_level=VORBIS_COMPRESSION)
    except (soundfile.LibsndfileError, ValueError, TypeError):
        return b""
    return buffer.getvalue()


@dataclass(frozen=True)
class Transcript:
    """Who said what and when. Text in HTML is struck through, in plain text put between ~~, when nobody heard it."""

    rows: tuple[dict[str, Any], ...] = field(repr=False)
    simulated: bool = True

    def __str__(self) -> str:
        lines = [f"{row['start']:7.2f}  {row['who']:6}  {_marked(row, '~~', '~~')}" for row in self.rows]
        return "\n".join([self._caption, *lines])

    __repr__ = __str__

    @property
    def _caption(self) -> str:
        return f"seconds{' (simulated)' if self.simulated else ''}; struck through: generated, never heard"

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><td style="text-align:right">{row["start"]:.2f}</td>'
            f'<td style="text-align:left"><b>{row["who"]}</b></td>'
            f'<td style="text-align:left">{_marked(_escaped(row), "<del>", "</del>")}</td></tr>'
            for row in self.rows
        )
        caption = f'<caption style="text-align:left;white-space:nowrap">{self._caption}</caption>'
        return f"<table>{caption}<tbody>{cells}</tbody></table>"


def _marked(row: dict[str, Any], before: str, after: str) -> str:
    unheard = f"{before}{row['unheard']}{after}" if row["unheard"] else ""
    return " ".join(part for part in (row["text"], unheard) if part) or "(no words)"


def _escaped(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: html.escape(row[name]) for name in ("text", "unheard")}


def transcript(events: Iterable[Event], *, simulated: bool = True) -> Transcript:
    """The conversation from the journal's rows (dicts): what was heard, and struck through what never was."""
    rows = (row | {name: " ".join(row[name].split()) for name in ("text", "unheard")} for row in speech(events))
    return Transcript(tuple(rows), simulated)
