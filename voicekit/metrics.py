"""From the journal of a run to numbers; each is defined in the docstring of the function that computes it.

Everything is in seconds of session time. "Heard" means that it has left the playout buffer, "silent" that neither side
is audible. A metric without a value in a run is None, never 0.
"""

from __future__ import annotations

import itertools
import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Interval = tuple[float, float]
Value = float | int | bool | None

SHORTEST_SILENCE = 0.2  # shorter ones are pauses inside speech
YIELD_WITHIN = 2.0  # an agent that is still audible after this has not yielded
STOP_WORDS = frozenset([
    "a", "an", "and", "are", "at", "for", "has", "in", "is", "it", "of", "on", "our", "the", "there", "this", "to",
    "was", "were", "your", "you",
])  # fmt: skip


@dataclass(frozen=True)
class Utterance:
    """One thing the caller said: the clip, when it began and ended, and where it was audible."""

    clip: str
    start: float
    end: float
    audible: tuple[Interval, ...]


@dataclass(frozen=True)
class Played:
    """One stretch of agent speech as heard. `words`: (time, piece of transcript) of what was heard."""

    item: str
    turn: str
    start: float
    end: float
    audible: tuple[Interval, ...]
    heard: float
    flushed: float
    words: tuple[tuple[float, str], ...]
    unheard: str = ""


def utterances(events: Iterable[Event]) -> list[Utterance]:
    """The caller's utterances, in order."""
    found = []
    for event in events:
        if event["lane"] == "caller" and event["kind"] == "speech_stop":
            audible = tuple((a, b) for a, b in event["detail"]["audible"])
            start = audible[0][0] if audible else event["t"]
            found.append(Utterance(event["item"], start, audible[-1][1] if audible else event["t"], audible))
    return found


def played(events: Iterable[Event]) -> list[Played]:
    """The agent's speech as it was heard, in order; what was flushed before its first sample is not in it."""
    found = []
    for event in events:
        if event["lane"] == "heard" and event["kind"] == "played":
            detail = event["detail"]
            words = tuple((t, word) for t, word in detail.get("words", []))
            audible = tuple((a, b) for a, b in detail["audible"])
            found.append(
                Played(event["item"], detail.get("turn", ""), detail["start"], detail["stop"], audible,
                       detail["heard"], detail["flushed"], words, detail.get("unheard", ""))
            )  # fmt: skip
    return found


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals, in order."""
    result: list[Interval] = []
    for start, end in sorted(intervals):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result


def overlap(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Seconds in which both are."""
    return sum(max(0.0, min(b, d) - max(a, c)) for a, b in merged(first) for c, d in merged(second))


def silences(span: Interval, *sides: Sequence[Interval]) -> list[Interval]:
    """Stretches of at least `SHORTEST_SILENCE` inside `span` in which no side is audible."""
    gaps, position = [], span[0]
    for start, end in [*merged(interval for side in sides for interval in side), (span[1], span[1])]:
        gap = (max(position, span[0]), min(start, span[1]))
        if gap[1] - gap[0] >= SHORTEST_SILENCE - 1e-9:
            gaps.append(gap)
        position = max(position, end)
    return gaps


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower())) - STOP_WORDS


def result_heard(wanted: set[str], after: float, speech: Iterable[Played]) -> float | None:
    """When the speech that carries a result was first heard.

    Nobody marks it on the wire, so it is found by its words: the first stretch of speech heard from `after` on whose
    transcript has half of the `wanted` words, those of the result's summary. Of a stretch that was cut off the words
    never heard count too, as long as one of them was heard. Its beginning is that of the sentence.
    """
    for stretch in speech if wanted else ():
        heard = [(t, word) for t, word in stretch.words if t >= after - 0.5]
        text = " ".join(word for _, word in heard) + " " + stretch.unheard
        first = next((t for t, word in heard if wanted & words_of(word)), None)
        if stretch.end >= after and first is not None and len(wanted & words_of(text)) * 2 >= len(wanted):
            return _onset(_sentence_start(heard, first), stretch)
    return None


def _sentence_start(heard: Sequence[tuple[float, str]], position: float) -> float:
    start = heard[0][0]
    for (_, word), (following, _) in itertools.pairwise(heard):
        if following <= position and word.rstrip().endswith((".", "!", "?")):
            start = following
    return start


def _onset(position: float, stretch: Played) -> float:
    """The first audible moment at or after `position`: a transcript piece may come a little before its sound."""
    for start, end in stretch.audible:
        if end > position:
            return max(start, position)
    return position


def spans(calls: Iterable[dict[str, Any]], events: Sequence[Event]) -> list[Interval]:
    """For each call whose result was heard: from the end of the utterance that led to it, to the result."""
    spoken = utterances(events)
    proposed = {event["call_id"]: event["t"] for event in events if event["kind"] == "proposed"}
    found = []
    for call in calls:
        t = proposed.get(call["call_id"])
        before = [each.end for each in spoken if t is not None and each.end <= t]
        if before and call.get("heard") is not None:
            found.append((before[-1], float(call["heard"])))
    return found


def open_waits(calls: Iterable[dict[str, Any]], events: Sequence[Event]) -> list[Interval]:
    """For each call whose result the caller waited for in vain: from the end of the utterance that led to it, to their
    next one, or to the end of the run.

    Not of a call that was refused, called off, changed or withdrawn, nor of a result that was not to be said.
    """
    spoken = utterances(events)
    proposed = {event["call_id"]: event["t"] for event in events if event["kind"] == "proposed"}
    unwanted = {event["call_id"] for event in events if event["kind"] in ("outdated", "withdrawn")}
    answers = [event for event in events if event["kind"] == "answered"]
    silent = {event["call_id"] for event in answers if event["detail"].get("delivery") == "silent"}
    found = []
    for call in calls:
        call_id, t = call["call_id"], proposed.get(call["call_id"])
        waited = call.get("heard") is None and call["state"] not in ("cancelled", "rejected")
        before = [each.end for each in spoken if t is not None and each.end <= t]
        if waited and before and call_id not in unwanted | silent:
            later = [each.start for each in spoken if each.start > before[-1]]
            found.append((before[-1], later[0] if later else events[-1]["t"]))
    return found


def measure(events: Sequence[Event], calls: Sequence[dict[str, Any]]) -> dict[str, Value]:
    """All metrics of a run, in seconds but for rates, counts and `truncate_error_ms`.

    `calls` are the ledger's rows, their `heard` filled in by `mark_heard`. None stands for a metric without a value.

    response_latency   the end of an utterance to the first agent speech after it, whatever it says; the median
    time_to_result     the end of the utterance that led to a call to the first sample heard of the speech that carries
                       its result; the longest of the run. None if no result was heard
    dead_air_total, dead_air_longest   silence of both sides in those spans and in `open_waits` (for results never
                       heard), stretches of `SHORTEST_SILENCE` on: their sum, and the longest
    done_to_heard      the end of a tool to its result first heard; the longest
    preamble_rate      calls announced in their own turn, by speech heard before the result, of all calls
    preamble_seconds   seconds of such speech heard
    yield_latency      the caller begins to interrupt to the agent silent at the loudspeaker; the median of those within
                       `YIELD_WITHIN`
    yielded            whether the agent was silent within that time at every interruption
    talk_over          seconds in which both are audible
    generated_seconds, heard_seconds, flushed_seconds   agent speech that arrived, was heard, was thrown away unheard
    truncate_error_ms  the position reported to the provider minus the one really heard, largest, milliseconds
    stale_spoken, stale_dropped   results of a changed or withdrawn request that the caller heard, or was spared
    duplicate_effects  effects beyond the first for the same intended action
    unanswered_calls   call ids with neither exactly one final answer nor a cancellation. A provider that hangs up
                       leaves some behind that nobody could answer: `Run.undelivered` has what it was to be told
    consent_turns, consent_seconds   turns of either side, and seconds, from asking for consent to the decision
    tool_calls, calls_in_a_row   calls made; the longest run of them without speech heard in between
    caller_turns       utterances of the caller
    audio_check_ms     (added by the run) how far the sound recorded disagrees with the journal at most, milliseconds
    """
    spoken, speech = utterances(events), played(events)
    caller = [interval for each in spoken for interval in each.audible]
    agent = [interval for each in speech for interval in each.audible]
    waits = merged([*spans(calls, events), *open_waits(calls, events)])
    quiet = [b - a for span in waits for a, b in silences(span, caller, agent)]
    interruptions = _interruptions(spoken, speech)
    done_to_heard = [
        call["heard"] - call["finished"]
        for call in calls
        if call.get("heard") is not None and call.get("finished") is not None
    ]
    has_turns = bool(calls) and (not speech or any(each.turn for each in speech))
    announced = _preambles(calls, events, speech)
    generated = [event["detail"]["seconds"] for event in events if event["kind"] == "generated"]
    truncated = [event["detail"] for event in events if event["kind"] == "truncate"]
    values: dict[str, Value] = {
        "response_latency": _median(response_latencies(spoken, agent)),
        "time_to_result": max((b - a for a, b in spans(calls, events)), default=None),
        "dead_air_total": sum(quiet) if waits else None,
        "dead_air_longest": max(quiet, default=0.0) if waits else None,
        "done_to_heard": max(done_to_heard, default=None),
        "preamble_rate": len(announced) / len(calls) if has_turns else None,  # "in the same turn"
        "preamble_seconds": float(sum(announced.values())) if has_turns else None,
        "yield_latency": _median([each for each in interruptions if each is not None]),
        "yielded": all(each is not None for each in interruptions) if interruptions else None,
        "talk_over": overlap(caller, agent),
        "generated_seconds": sum(generated),
        "heard_seconds": sum(each.heard for each in speech),
        "flushed_seconds": sum(event["detail"]["flushed"] for event in events if event["kind"] == "played"),
        "truncate_error_ms": max((abs(d["reported_ms"] - d["heard_ms"]) for d in truncated), default=None),
        "stale_spoken": sum(1 for call in calls if call.get("stale") and call.get("heard") is not None),
        "stale_dropped": sum(1 for call in calls if call.get("stale") and call.get("heard") is None),
        "duplicate_effects": duplicate_effects(calls),
        "unanswered_calls": unanswered_calls(events),
        **_consent(events, spoken, speech),
        "tool_calls": len(calls),
        "calls_in_a_row": _calls_in_a_row(events),
        "caller_turns": len(spoken),
    }
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}


def mark_heard(calls: Sequence[dict[str, Any]], events: Sequence[Event]) -> None:
    """Fill in `heard` of each call: when the speech that carries its result was first heard, or None.

    `stale` says whether the caller had changed or withdrawn the request before the result was there. That something has
    happened is never stale: it has to be told.
    """
    speech = played(events)
    # Of a call whose answer was only "pending", the end is told apart from it.
    answered = {event["call_id"]: event["t"] for event in events if event["kind"] in ("answered", "told")}
    outdated = {event["call_id"] for event in events if event["kind"] == "outdated"}
    summaries = {call["call_id"]: _summary(call) for call in calls}
    for call in calls:
        call["stale"] = call["call_id"] in outdated and call["effect"] not in ("committed", "undone")
    wanted_still = {summaries[call["call_id"]] for call in calls if not call["stale"]}
    for call in calls:
        t, summary = answered.get(call["call_id"]), summaries[call["call_id"]]
        others = set[str]().union(*(words_of(each) for each in summaries.values() if each != summary))
        # "On Friday there is a free appointment at ten" and "On Thursday ... at two" differ in two words only.
        wanted = words_of(summary) - others or words_of(summary)
        is_repeated = call["stale"] and summary in wanted_still  # the same words are a later call's result
        has_result = t is not None and call["state"] not in ("cancelled", "rejected") and not is_repeated
        call["heard"] = result_heard(wanted, t, speech) if has_result and t is not None else None


def _summary(call: dict[str, Any]) -> str:
    return str(json.loads(call["result"]).get("summary", "")) if call.get("result") else ""


# Decisions that end an exchange about consent; each says when its question was first heard.
ANSWERED = ("consented", "declined", "confirmed", "refused", "not_confirmed")


def _consent(events: Sequence[Event], spoken: Sequence[Utterance], speech: Sequence[Played]) -> dict[str, Value]:
    """What asking for consent cost: turns of either side from a question to its answer, and seconds to the decision."""
    spans = merged((event["detail"]["asked_at"], event["t"]) for event in events if event["kind"] in ANSWERED)
    turns = 0
    for begin, end in spans:
        answers = [each.start for each in spoken if begin <= each.start < end]
        last = max(answers, default=end)  # what the agent says to the answer is no part of asking
        turns += len(answers) + sum(1 for each in speech if begin <= each.start <= last)
    seconds = float(sum(end - begin for begin, end in spans))
    return {"consent_turns": turns if spans else None, "consent_seconds": seconds if spans else None}


def response_latencies(spoken: Sequence[Utterance], agent: Sequence[Interval]) -> list[float]:
    """For each utterance: its end -> first agent speech that begins after it and before the caller speaks again."""
    starts = [start for start, _ in merged(agent)]
    found = []
    for index, utterance in enumerate(spoken):
        limit = spoken[index + 1].start if index + 1 < len(spoken) else float("inf")
        later = [start for start in starts if utterance.end <= start < limit]
        if later:
            found.append(later[0] - utterance.end)
    return found


def _interruptions(spoken: Sequence[Utterance], speech: Sequence[Played]) -> list[float | None]:
    """For each utterance begun while the agent spoke: seconds until it is silent for good; None beyond the limit.

    A breath between two sentences is no yielding: what counts is the last sound of the stretch that was talked into.
    """
    stretches = merged((each.audible[0][0], each.audible[-1][1]) for each in speech if each.audible)
    found: list[float | None] = []
    for utterance in spoken:
        for start, end in stretches:
            if start < utterance.start < end:
                found.append(end - utterance.start if end - utterance.start <= YIELD_WITHIN else None)
    return found


def _preambles(calls: Sequence[dict[str, Any]], events: Sequence[Event], speech: Sequence[Played]) -> dict[str, float]:
    """Calls announced by speech of the same turn that was heard before their result: call id -> audible seconds.

    What tells the result of another call is no announcement. A turn that ends "in_progress" goes on in the next one
    (extended thinking closes the turn of its filler).
    """
    same = _continued(events)
    turns = {event["call_id"]: same(event["detail"].get("turn")) for event in events if event["kind"] == "proposed"}
    done = {event["call_id"]: event["t"] for event in events if event["kind"] == "answered"}
    found: dict[str, float] = {}
    for call in calls:
        call_id = call["call_id"]
        seconds = sum(
            end - start
            for stretch in speech
            if stretch.turn and same(stretch.turn) == turns.get(call_id)
            if stretch.start < done.get(call_id, float("inf"))
            for start, end in _announcing(stretch, [each for each in calls if each is not call])
        )
        if seconds > 0:
            found[call_id] = seconds
    return found


def _announcing(stretch: Played, others: Sequence[dict[str, Any]]) -> list[Interval]:
    """Where a stretch is audible, without the sentences that tell the result of one of the `others`."""
    told = [words_of(_summary(each)) for each in others if stretch.start <= (each.get("heard") or -1.0) <= stretch.end]
    if not told or not stretch.words:
        return list(stretch.audible)
    starts = list(dict.fromkeys(_sentence_start(stretch.words, t) for t, _ in stretch.words))
    kept = []
    for start, end in zip(starts, [*starts[1:], stretch.end], strict=True):
        words = words_of(" ".join(word for t, word in stretch.words if start <= t < end))
        if not any(len(words & each) * 2 >= len(words) for each in told):
            kept.append((start, end))
    return [(max(a, c), min(b, d)) for a, b in stretch.audible for c, d in kept if max(a, c) < min(b, d)]


def _continued(events: Sequence[Event]) -> Callable[[str | None], str | None]:
    """A function from the name of a turn to that of the turn it goes on from."""
    first: dict[str, str] = {}
    going_on: str | None = None
    for event in events:
        if event["kind"] == "turn_started" and going_on is not None:
            first[event["item"]], going_on = first.get(going_on, going_on), None
        elif event["kind"] == "turn_done" and event["detail"].get("reason") == "in_progress":
            going_on = event["item"]
    return lambda turn: first.get(turn, turn) if turn else turn


def duplicate_effects(calls: Sequence[dict[str, Any]]) -> int:
    """Effects beyond the first for the same intended action: same tool, canonical arguments and request."""
    keys = [
        (call["tool"], call["arguments"], call.get("request", "")) for call in calls if call["effect"] == "committed"
    ]
    return len(keys) - len(set(keys))


def unanswered_calls(events: Sequence[Event]) -> int:
    """Call ids with neither exactly one final answer nor a cancellation by the server."""
    ids = {event["call_id"] for event in events if event["kind"] == "proposed"}
    answers = [
        event["call_id"] for event in events if event["kind"] == "answered" and event["detail"].get("final", True)
    ]
    withdrawn = {event["call_id"] for event in events if event["kind"] == "withdrawn"}
    return sum(1 for call_id in ids if answers.count(call_id) != (0 if call_id in withdrawn else 1))


def _calls_in_a_row(events: Sequence[Event]) -> int:
    """Longest run of proposed calls with no speech heard in between."""
    longest = run = 0
    for event in events:
        if event["lane"] == "heard" and event["kind"] == "playing":
            run = 0
        elif event["kind"] == "proposed":
            run += 1
            longest = max(longest, run)
    return longest


def _median(values: Sequence[float]) -> float | None:
    return float(statistics.median(values)) if values else None
