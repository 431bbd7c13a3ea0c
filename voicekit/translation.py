"""A conversation with the clips of another language, found by what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from voicekit.audio import Clip
from voicekit.caller import Line

PAUSE_SECONDS = 0.8  # between two sentences that are one clip in the original; long enough to be two turns


def translated(lines: Sequence[Line], language: str, clips: Mapping[str, Clip]) -> tuple[tuple[Line, ...], list[str]]:
    """The lines in `language`, and the names of the clips that have nothing to correspond to in it.

    The clip of the same name (`yes_de` for `yes`), else one with the same intent and slots, whoever speaks it. What
    one clip says together ("Never mind. What are your opening hours?") may be two clips, one after the other.
    """
    found: list[Line] = []
    missing: list[str] = []
    for line in lines:
        name = f"{line.clip.removesuffix(f'_{language}')}_{language}"
        said = [name] if name in clips else _same_meaning(line.clip, language, clips)
        if not said:
            missing.append(name)
            continue
        found.append(replace(line, clip=said[0]))
        found += [Line(each, seconds=PAUSE_SECONDS) for each in said[1:]]
    return tuple(found), sorted(set(missing))


def _same_meaning(name: str, language: str, clips: Mapping[str, Clip]) -> list[str]:
    """Clips of `language` that say together what `name` does; [] if there are none."""
    clip = clips.get(name)
    if clip is None or not clip.intent:
        return []
    known = [each for each in clips.values() if each.language == language]
    parts = [] if clip.slots else clip.intent.split("+")
    apart: list[tuple[str, dict[str, object]]] = [(intent, {}) for intent in parts]
    for meanings in ([(clip.intent, clip.slots)], apart):
        chosen = [next((each.name for each in known if (each.intent, each.slots) == what), "") for what in meanings]
        if chosen and all(chosen):
            return chosen
    return []
