"""Audio as the kit handles it: mono PCM16 at 24 kHz inside, any file outside; framing, resampling, loudness.

Samples are numpy int16 arrays of shape (n,); `pcm` is the same as little-endian bytes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from voicekit.models import data_path

RATE = 24_000
FRAME = RATE // 100  # samples in 10 ms, the grain of loudness measurements
AUDIBLE_DBFS = -45.0  # a 10 ms frame above this counts as audible
MERGE_SECONDS = 0.2  # shorter gaps inside speech are part of it
MAX_CLIP_SECONDS = 60.0
FORGETTING_SECONDS = 0.25  # of silence, after which soxr's filter holds nothing else: it is some 50 ms long
LEAD_SECONDS = 0.01  # of silence before a sound that the filter is given as well: it begins to sound a little early

Samples = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Clip:
    """A caller's recorded sentence and what it means. `intent` and `slots` are what a simulated model understands."""

    name: str
    path: Path
    language: str = "en"
    speaker: str = ""
    transcript: str = ""
    intent: str = ""
    slots: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""

    @cached_property
    def samples(self) -> Samples:
        """The sound, mono at 24 kHz. Raises ValueError for a missing, damaged or changed file."""
        if not self.path.is_file():
            raise ValueError(f"clip {self.name!r}: {self.path.name} is missing; restore the file or the manifest row")
        if self.sha256 and hashlib.sha256(self.path.read_bytes()).hexdigest() != self.sha256:
            raise ValueError(f"clip {self.name!r}: {self.path.name} is not the file the manifest describes (sha256)")
        return read(self.path)

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE


def read(path: Path | str) -> Samples:
    """Read a sound file (WAV, FLAC, OGG, any rate, any number of channels) as mono 24 kHz.

    Raises ValueError with one line when it is unreadable, empty, longer than a minute or silent.
    """
    path = Path(path)
    try:
        with soundfile.SoundFile(path) as file:
            rate = file.samplerate
            seconds = file.frames / rate
            if seconds > MAX_CLIP_SECONDS:  # asked before it is read: an hour would take gigabytes
                raise ValueError(f"{path.name} lasts {seconds:.0f} s; a clip is one sentence of at most 60 s")
            sound = file.read(dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, OSError, TypeError) as error:
        raise ValueError(f"{path.name} cannot be read as audio ({error}); give a WAV, FLAC or OGG file") from None
    mono = sound.mean(axis=1)
    if not len(mono):
        raise ValueError(f"{path.name} holds no sound; record it again")
    if not np.isfinite(mono).all():
        raise ValueError(f"{path.name} holds values that are no sound (NaN or infinity); export it again")
    if rate != RATE:
        mono = soxr.resample(mono, rate, RATE)
    samples = to_int16(mono)
    if not audible(samples):
        raise ValueError(f"{path.name} is silent (nothing above {AUDIBLE_DBFS:g} dBFS); record it louder")
    return samples


def write(path: Path | str, samples: npt.NDArray[np.int16], rate: int = RATE) -> None:
    """Write samples of shape (n,) or (n, channels); the ending of `path` chooses the format."""
    soundfile.write(path, samples, rate, subtype="PCM_16")


def read_raw(path: Path | str) -> npt.NDArray[np.int16]:
    """Read what `write` has written, as it is: int16 of shape (n, channels). Raises ValueError for a damaged file."""
    try:
        samples, _ = soundfile.read(path, dtype="int16", always_2d=True)
    except (soundfile.LibsndfileError, OSError) as error:
        raise ValueError(f"{Path(path).name} cannot be read ({error})") from None
    return np.asarray(samples, dtype=np.int16)


def to_int16(sound: npt.NDArray[Any]) -> Samples:
    """Turn float samples (full scale 1.0) into int16; what is louder than full scale is clipped."""
    return _rounded(sound * 32768.0)


def from_pcm(pcm: bytes) -> Samples:
    return np.frombuffer(pcm, dtype="<i2").astype(np.int16, copy=False)


def to_pcm(samples: Samples) -> bytes:
    return samples.astype("<i2", copy=False).tobytes()


def dbfs(samples: npt.NDArray[Any]) -> float:
    """Root-mean-square level in dB below full scale; -120 for digital silence."""
    if not len(samples):
        return -120.0
    power = float(np.mean(np.square(samples.astype(np.float64)))) / 32768.0**2
    return max(-120.0, 10.0 * float(np.log10(power + 1e-12)))


def frame_levels(samples: Samples) -> npt.NDArray[np.float64]:
    """Level of each whole 10 ms frame in dBFS, shape (n // 240,)."""
    frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
    levels = np.full(len(frames), -120.0)
    sounding = frames.any(axis=1)  # most of a recording is digital silence
    sound = frames[sounding].astype(np.float64)
    levels[sounding] = 10.0 * np.log10(np.einsum("ij,ij->i", sound, sound) / FRAME / 32768.0**2 + 1e-12)
    return levels


def audible(
    samples: Samples, threshold: float = AUDIBLE_DBFS, merge: float = MERGE_SECONDS
) -> list[tuple[float, float]]:
    """Stretches (start, end) in seconds that are louder than `threshold`, gaps shorter than `merge` closed."""
    return stretches(frame_levels(samples) > threshold, merge)


def stretches(loud: npt.NDArray[np.bool_], merge: float = MERGE_SECONDS) -> list[tuple[float, float]]:
    """The same from 10 ms frames that are known to be loud or not."""
    loud = np.concatenate(([0], loud.astype(np.int8), [0]))
    starts, ends = np.flatnonzero(np.diff(loud) == 1), np.flatnonzero(np.diff(loud) == -1)
    found: list[tuple[float, float]] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if found and (start * FRAME / RATE) - found[-1][1] < merge:
            found[-1] = (found[-1][0], end * FRAME / RATE)
        else:
            found.append((start * FRAME / RATE, end * FRAME / RATE))
    return found


class Resampler:
    """Changes the rate of a PCM16 stream piece by piece, with the filter's memory kept between the pieces.

    Pieces may have any length; what does not fill a group waits for the next piece (a group: the fewest samples that
    are a whole number of samples at the other rate). Output comes in bursts (see soxr); `flush` ends the stream and
    returns what is left. Digital silence, most of what a caller sends, is not filtered once the filter has forgotten
    the sound before it: it sleeps, and as many zeros come out as belong to the silence. When it sleeps depends on the
    sound alone, not on how it is cut.
    """

    def __init__(self, source: int, target: int) -> None:
        self._rates = source, target
        shared = math.gcd(source, target)
        self._group, self._group_out = source // shared, target // shared
        self._patience, self._lead = (math.ceil(each * shared) for each in (FORGETTING_SECONDS, LEAD_SECONDS))
        self._rest = b""  # less than a group
        self._stream: soxr.ResampleStream | None = None  # asleep
        self._fed = 0  # groups given to the stream
        self._given = 0  # samples that came out of it
        self._quiet = 0  # groups of silence at its end
        self._slept = 0  # groups of silence that have not come out; they go through the filter if a sound follows

    def feed(self, pcm: bytes) -> bytes:
        pcm = self._whole(pcm)
        if self._group == self._group_out:
            return pcm
        count = len(pcm) // (2 * self._group)
        if self._stream is None and pcm == bytes(len(pcm)):
            return self._sleep_through(count)
        samples = from_pcm(pcm)
        if self._stream is not None and self._quiet + count < self._patience and samples[-self._group :].any():
            self._quiet = 0  # speech: not so much silence can be in it
            return self._filter(samples)
        sounds = np.flatnonzero(samples) // self._group
        pauses = np.flatnonzero(np.diff(sounds) > self._patience).tolist()
        stretches = zip([0, *(pause + 1 for pause in pauses)], [*pauses, len(sounds) - 1], strict=True)
        at, out = 0, b""
        for first, last in stretches if len(sounds) else ():
            begin, end = int(sounds[first]), int(sounds[last]) + 1
            out += self._be_silent(begin - at)
            out += self._sound(samples[begin * self._group : end * self._group])
            at = end
        return out + self._be_silent(count - at)

    def flush(self) -> bytes:
        rest, self._rest = from_pcm(self._rest[: len(self._rest) // 2 * 2]), b""
        if self._stream is None and not rest.any():
            zeros, self._slept = self._slept * self._group + len(rest), 0
            return bytes(2 * (zeros * self._group_out // self._group))
        stream = self._stream or self._wake()
        self._stream = None  # what is fed after this is another stream
        led = np.concatenate((np.zeros(self._slept * self._group), rest)).astype(np.float32)
        self._slept = 0
        return to_pcm(_rounded(stream.resample_chunk(led, last=True)))

    def _whole(self, pcm: bytes) -> bytes:
        """As much as fills groups; the rest waits."""
        pcm = self._rest + pcm
        cut = len(pcm) // (2 * self._group) * 2 * self._group
        self._rest = pcm[cut:]
        return pcm[:cut]

    def _wake(self) -> soxr.ResampleStream:
        # Floats: on its way to int16 soxr adds a noise of half a step, which is another one in each stream.
        self._stream = soxr.ResampleStream(*self._rates, 1, dtype="float32")
        self._fed = self._given = self._quiet = 0
        return self._stream

    def _sound(self, samples: Samples) -> bytes:
        if self._stream is None:
            self._wake()
            samples = np.concatenate((np.zeros(self._slept * self._group, np.int16), samples))
            self._slept = 0
        self._quiet = 0
        return self._filter(samples)

    def _be_silent(self, groups: int) -> bytes:
        out = b""
        if self._stream is not None and groups:
            heard = min(groups, self._patience - self._quiet)
            out = self._filter(np.zeros(heard * self._group, np.int16))
            self._quiet += heard
            groups -= heard
            if self._quiet == self._patience:
                out += self._fall_asleep()
        return out + self._sleep_through(groups) if self._stream is None else out

    def _filter(self, samples: Samples) -> bytes:
        assert self._stream is not None
        filtered = self._stream.resample_chunk(samples.astype(np.float32), last=False)
        self._fed += len(samples) // self._group
        self._given += len(filtered)
        return to_pcm(_rounded(filtered))

    def _fall_asleep(self) -> bytes:
        """Only silence is left in the filter: the zeros it owes, but for those that may lead the next sound."""
        groups = max(self._fed - self._lead, -(-self._given // self._group_out))
        self._stream, self._slept = None, self._fed - groups
        return bytes(2 * (groups * self._group_out - self._given))

    def _sleep_through(self, groups: int) -> bytes:
        self._slept += groups
        out = max(0, self._slept - self._lead)
        self._slept -= out
        return bytes(2 * out * self._group_out)


def _rounded(sound: npt.NDArray[Any]) -> Samples:
    return np.asarray(np.clip(np.rint(sound), -32768, 32767), dtype=np.int16)


def framed(pcm: bytes, seconds: float, rate: int = RATE) -> Iterator[bytes]:
    """Cut PCM into frames of `seconds`; the last one may be shorter."""
    size = 2 * round(rate * seconds)
    for start in range(0, len(pcm), size):
        yield pcm[start : start + size]


def read_manifest(path: Path) -> dict[str, Clip]:
    """Read a clip table: clip, file, language, speaker, transcript, intent, slots (JSON); files beside the table.

    Raises ValueError naming the row for a missing column or slots that are no JSON object.
    """
    clips: dict[str, Clip] = {}
    with path.open(newline="", encoding="utf-8-sig") as table:  # a spreadsheet program may put a mark in front
        for number, row in enumerate(csv.DictReader(table), 2):
            where = f"{path.name}, line {number}"
            if not row.get("clip") or not row.get("file"):
                raise ValueError(f"{where}: a clip needs at least the columns clip and file")
            try:
                slots = json.loads(row.get("slots") or "{}")
                if not isinstance(slots, dict):
                    raise ValueError
            except ValueError:
                raise ValueError(f'{where}: slots is a JSON object such as {{"order_id": "OD-20260818-001"}}') from None
            clips[row["clip"]] = Clip(
                name=row["clip"],
                path=path.parent / row["file"],
                language=row.get("language") or "en",
                speaker=row.get("speaker") or "",
                transcript=row.get("transcript") or "",
                intent=row.get("intent") or "",
                slots=slots,
                sha256=row.get("sha256") or "",
            )
    return clips


@cache
def clips() -> dict[str, Clip]:
    """The caller clips that ship with the kit, by name. All of them are synthetic speech (data/audio/manifest.csv)."""
    return read_manifest(data_path("audio", "manifest.csv"))
