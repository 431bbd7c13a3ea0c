"""What was sounded in a run: the two tracks mixed, labelled, and measured once more from the sound alone.

A track is a list of `(start, samples)`: `start` counts samples at 24 kHz from session start. Channel 0 (left) is the
caller as sent, channel 1 (right) the agent as heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from voicekit import audio, metrics
from voicekit.audio import AUDIBLE_DBFS, FRAME, MERGE_SECONDS, RATE, Samples
from voicekit.metrics import Event, Interval

Track = Sequence[tuple[int, Samples]]

# Speech counts as audible over noise where a 10 ms frame of both stands this far above the noise alone: measured in 240
# samples, white noise scatters by about 0.4 dB, so by itself it never gets there.
NOISE_MARGIN_DB = 10.0
PERCENTILE_DB = 0.5  # the tenth percentile of such measurements lies this far below the level itself


def audible_from(start: int, samples: Samples, threshold: float = AUDIBLE_DBFS) -> list[list[float]]:
    """Audible stretches [[start, stop], ...] in session seconds of sound whose first sample is session sample `start`.

    Measured on the session's own 10 ms frames (not the sound's), exactly as `audio_intervals` finds them in the file.
    """
    lead = start % FRAME
    padded = np.zeros(-(-(lead + len(samples)) // FRAME) * FRAME, np.int16)
    padded[lead : lead + len(samples)] = samples
    offset = start - lead
    return [[_seconds(a, offset), _seconds(b, offset)] for a, b in audio.audible(padded, threshold)]


def _seconds(seconds: float, offset: int) -> float:
    return round((round(seconds * RATE) + offset) / RATE, 6)


def mix(caller: Track, agent: Track, seconds: float | None = None) -> npt.NDArray[np.int16]:
    """Both tracks as an array of shape (n, 2); `seconds` cuts or pads it, otherwise the longer track decides."""
    ends = [start + len(samples) for track in (caller, agent) for start, samples in track]
    length = round(seconds * RATE) if seconds is not None else max(ends, default=0)
    stereo = np.zeros((length, 2), np.int16)
    for channel, track in enumerate((caller, agent)):
        for start, samples in track:
            stereo[start : start + len(samples), channel] = samples[: max(0, length - start)]
    return stereo


def noise_threshold(noise_db: float | None) -> float:
    """Level in dBFS above which a 10 ms frame is audible on a line with noise of `noise_db` dBFS (None: silent)."""
    return AUDIBLE_DBFS if noise_db is None else max(AUDIBLE_DBFS, noise_db + NOISE_MARGIN_DB)


def audio_intervals(stereo: npt.NDArray[np.int16]) -> tuple[list[Interval], list[Interval]]:
    """Audible stretches (start, stop) in seconds of caller and agent, from the sound of shape (n, 2) alone.

    The caller's line may carry noise: its floor is taken from the quietest tenth of the recording, in which the caller
    is silent. What the loudspeaker played has none.
    """
    frames = -(-len(stereo) // FRAME)
    whole = np.zeros((2, frames * FRAME), np.int16)
    whole[:, : len(stereo)] = stereo.T
    caller_levels, agent_levels = map(audio.frame_levels, whole)
    floor = float(np.percentile(caller_levels, 10)) + PERCENTILE_DB if frames else None
    caller = audio.stretches(caller_levels > noise_threshold(floor))
    agent = audio.stretches(agent_levels > audio.AUDIBLE_DBFS)
    return [(round(a, 6), round(b, 6)) for a, b in caller], [(round(a, 6), round(b, 6)) for a, b in agent]


def journal_intervals(events: Iterable[Event]) -> tuple[list[Interval], list[Interval]]:
    """The same stretches as the journal states them, pauses shorter than 0.2 s closed across clips and items too."""
    events = list(events)
    caller = [interval for each in metrics.utterances(events) for interval in each.audible]
    agent = [interval for each in metrics.played(events) for interval in each.audible]
    return _joined(caller), _joined(agent)


def _joined(intervals: Iterable[Interval]) -> list[Interval]:
    result: list[Interval] = []
    for start, stop in metrics.merged(intervals):
        if result and start - result[-1][1] < MERGE_SECONDS - 1e-9:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return result


def audio_check(events: Iterable[Event], stereo: npt.NDArray[np.int16]) -> dict[str, float]:
    """Largest differences in ms between journal and recording: response_latency, dead_air_total/_longest, talk_over.

    Both sides go through the same definitions, on the whole conversation from its first sound to its last; a latency
    that only one side has counts in full. Above 20 ms the run's numbers are not to be trusted.
    """
    stated, measured = _measures(*journal_intervals(events)), _measures(*audio_intervals(stereo))
    differences: dict[str, float] = {}
    for name in stated:
        pairs = zip_longest(stated[name], measured[name], fillvalue=0.0)
        differences[name] = round(1000.0 * max((abs(a - b) for a, b in pairs), default=0.0), 3)
    return differences


def _measures(caller: list[Interval], agent: list[Interval]) -> dict[str, list[float]]:
    turns = [metrics.Utterance("", start, stop, ((start, stop),)) for start, stop in caller]
    quiet = [stop - start for start, stop in conversation_silences(caller, agent)]
    return {
        "response_latency": metrics.response_latencies(turns, agent),
        "dead_air_total": [sum(quiet)],
        "dead_air_longest": [max(quiet, default=0.0)],
        "talk_over": [metrics.overlap(caller, agent)],
    }


def conversation_silences(caller: Sequence[Interval], agent: Sequence[Interval]) -> list[Interval]:
    """Stretches of at least 0.2 s between the first and the last sound in which neither side is audible."""
    sounds = metrics.merged([*caller, *agent])
    return metrics.silences((sounds[0][0], sounds[-1][1]), caller, agent) if sounds else []


def speech(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Who said what, by time: dicts of who ("caller", "agent"), item, start, stop, text, unheard, audible, flushed.

    Agent speech that never left the loudspeaker has start == stop; an utterance without its stop event is not in it.
    """
    rows = []
    for event in events:
        who = {("caller", "speech_stop"): "caller", ("heard", "played"): "agent"}.get((event["lane"], event["kind"]))
        if who is not None:
            detail = event["detail"] or {}
            audible = detail.get("audible") or []
            row = {"who": who, "item": event["item"], "text": event["text"] or "", "audible": audible}
            row["start"] = detail.get("start", audible[0][0] if audible else event["t"])
            row["stop"] = detail.get("stop", event["t"])
            rows.append(row | {"unheard": detail.get("unheard") or "", "flushed": detail.get("flushed") or 0.0})
    return sorted(rows, key=lambda row: (row["start"], row["stop"]))


def labels(events: Iterable[Event], calls: Iterable[Mapping[str, Any]] = ()) -> str:
    """Audacity label track: "start<tab>stop<tab>label" for each utterance, stretch of speech, tool run and decision."""
    events = list(events)
    lines = [(row["start"], row["stop"], f"{row['who']}: {row['text'] or '(not heard)'}") for row in speech(events)]
    for call in calls:
        if call.get("started") is not None:
            stop = call["started"] if call.get("finished") is None else call["finished"]
            lines.append((call["started"], stop, f"tool: {call['tool']} ({call['state']})"))
    lines += [(e["t"], e["t"], f"decision: {e['kind']}") for e in events if e["lane"] == "decision"]
    return "".join(f"{start:.6f}\t{stop:.6f}\t{' '.join(label.split())}\n" for start, stop, label in sorted(lines))


def vtt(events: Iterable[Event]) -> str:
    """WebVTT captions of what was really heard, speakers as voice tags; text never heard is left out."""
    cues = ["WEBVTT\n"]
    for row in speech(events):
        text = " ".join(row["text"].split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        if text and row["stop"] > row["start"]:
            cues.append(f"{_clock(row['start'])} --> {_clock(row['stop'])}\n<v {row['who']}>{text}\n")
    return "\n".join(cues)


def _clock(seconds: float) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d}.{ms % 1000:03d}"
