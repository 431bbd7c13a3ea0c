"""What a run shows of its model, beside what is claimed of it, and the way from a measurement to a row of claims.

calibrate.beside_claims(run)              # each claim of data/models.csv, and what the run says to it
calibrate.seconds(run, "call_latency")    # one latency, turn by turn
calibrate.tokens(run)                     # what the service counted, by report
calibrate.endpoint(model, "live")         # where a run would go
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import os
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from voicekit import application
from voicekit.clock import run_blocking
from voicekit.experiment import Plan, Target
from voicekit.metrics import played, utterances
from voicekit.models import Claim, claims, facts, provider
from voicekit.runs import Run
from voicekit.sessions import open_session
from voicekit.sessions.base import Endpoint, RealtimeSession, SessionConfig, WireTap

if TYPE_CHECKING:
    import pandas as pd

LATENCIES = ("call_latency", "speech_latency")
# Whoever is going to answer has begun by then: twice the published medians from voice to voice, which are 1.5 to 1.6 s
# (aiewf-eval, 2026-08).
LONG_ENOUGH = 3.0
BYTES_PER_MS = 48  # PCM16 mono at 24 kHz, which both services send
COLUMNS = ("property", "claimed", "use", "seen", "verdict", "evidence", "source", "date")
TOKENS = ("t", "text_in", "audio_in", "cached_in", "text_out", "audio_out")


def beside_claims(run: Run, model: str | None = None) -> pd.DataFrame:
    """Each claim about a model beside what a run shows of it, one row per claim (two where two sources disagree).

    model      whose claims: the run's own model by default
    property, claimed, use, evidence, source, date   the row of data/models.csv
    seen       what the run shows, latencies in seconds with the number of turns; or "not shown: " and why
    verdict    "agrees" or "differs"; empty where nothing is shown. A latency agrees within three times the claimed
               `latency_spread` (a relative one, from turn to turn)

    Nothing is taken from the simulator: the journal and the frames are read, of a live run as of any other. So a run on
    the simulator can but agree with the claims it was made from; it tries the ruler, not the claim. What only a
    setting brings out that the run did not have (`thinking`, `scheduling`) is not shown. Raises ValueError for an
    unknown model.
    """
    import pandas as pd

    about = model or run.meta["model"]
    followed, found = facts(about), observed(run)
    near = 3 * float(followed["latency_spread"].value)
    rows = []
    for claim in [each for each in claims() if each.model in ("*", about) and each.property != "provider"]:
        if claim.model == "*" and followed[claim.property].model == about:
            continue  # the model has a row of its own
        seen, value = found.get(claim.property, ("not shown: it takes another conversation", None))
        rows.append((claim.property, claim.value, claim.use, seen, _verdict(claim, value, near), *_from(claim)))
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.rename_axis(columns=str(run.meta["provenance"]))


def _from(claim: Claim) -> tuple[str, str, str]:
    return claim.evidence, claim.source, claim.date


def _verdict(claim: Claim, value: str | float | None, near: float) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return "agrees" if value == claim.value else "differs"
    return "agrees" if abs(value - float(claim.value)) <= near * float(claim.value) else "differs"


def observed(run: Run) -> dict[str, tuple[str, str | float | None]]:
    """By property what a run shows: in words, and as a value (None if it shows nothing)."""
    kind = provider(run.meta["model"])
    found: dict[str, tuple[str, str | float | None]] = {}
    if kind == "gpt-live":  # it speaks in one stream: no frame says to what it is an answer
        return found
    for name in LATENCIES:
        found[name] = _spread(seconds(run, name), "s") if name in _readable(kind) else _hidden(run)
    found |= {"audio_pieces": _pieces(run), "audio_speed": _speed(run), "parallel_calls": _parallel(run)}
    found["latency_spread"] = ("not shown: it takes several runs", None)
    found |= _while_the_tool_runs(run) | _announcements(run)
    return found


def _readable(kind: str) -> tuple[str, ...]:
    return LATENCIES if kind == "openai-realtime" else LATENCIES[1:]


def seconds(run: Run, name: str) -> list[float]:
    """A latency of the model in every turn that shows it, in seconds, rounded to the millisecond.

    call_latency    from the moment in which the model could begin to the call with complete arguments
    speech_latency  from that moment to the first audio

    OpenAI: it could begin when the service said that the caller had stopped, or when the application asked for a
    response, whichever came last. Gemini says neither; what is left is the time from a result, sent into silence, to
    the first audio. All times are those at which frames crossed this machine's socket, so the way there and back is in
    them. Empty if no turn shows it. Raises ValueError for another name, and for a latency the service hides.
    """
    kind = provider(run.meta["model"])
    if name not in LATENCIES:
        raise ValueError(f"no latency {name!r} is read from a run; known: {', '.join(LATENCIES)}")
    if kind == "gpt-live" or name not in _readable(kind):
        raise ValueError(f"{name} of {run.meta['model']}: the service does not say when it notices the caller's end")
    pairs = _openai_turns(run, name) if kind == "openai-realtime" else _after_results(run)
    return [round(end - begin, 3) for begin, end in pairs]


def _openai_turns(run: Run, name: str) -> Iterator[tuple[float, float]]:
    """For each turn that shows it: the moment the model could begin, and its first call or first audio."""
    asked = [row["t"] for row in run.wire_rows if row["direction"] == "sent" and row["type"] == "response.create"]
    begins = [event["t"] for event in run.event_rows if event["kind"] == "speech_stopped"] + asked
    for event in run.event_rows:
        if event["kind"] != "turn_started":
            continue
        before = [t for t in begins if t <= event["t"]]
        first = next(
            (
                each
                for each in run.event_rows
                if each["kind"] in ("proposed", "generating") and each["detail"].get("turn") == event["item"]
            ),
            None,
        )
        if before and first and first["kind"] == ("proposed" if name == "call_latency" else "generating"):
            yield max(before), first["t"]


def _after_results(run: Run) -> Iterator[tuple[float, float]]:
    """For each result sent while nobody spoke: that moment, and the first audio after it."""
    talk = [(each.start, each.end) for each in utterances(run.event_rows)]
    talk += [(each.start, each.end) for each in played(run.event_rows)]
    for event in run.event_rows:
        if event["kind"] == "answered" and event["detail"].get("delivery") != "silent":
            t = event["t"]
            first = next((e["t"] for e in run.event_rows if e["kind"] == "generating" and e["t"] > t), None)
            if first is not None and not any(start < first and end > t for start, end in talk):
                yield t, first


def _spread(values: list[float], unit: str) -> tuple[str, float | None]:
    if not values:
        return "not shown: no turn of the run has it", None
    middle = statistics.median(values)
    turns = "1 turn" if len(values) == 1 else f"{len(values)} turns, {min(values):.2f} to {max(values):.2f}"
    return f"{middle:.2f} {unit} ({turns})", middle


def _hidden(run: Run) -> tuple[str, None]:
    """Of Gemini's call latency only the sum is visible: detection and model together."""
    call = next((event["t"] for event in run.event_rows if event["kind"] == "proposed"), None)
    ends = [each.end for each in utterances(run.event_rows) if call is not None and each.end <= call]
    all_in_all = f"; with the detection of the end it is {call - ends[-1]:.2f} s" if call is not None and ends else ""
    return f"not shown: the service does not say when it notices the caller's end{all_in_all}", None


def _audio(run: Run) -> list[list[tuple[float, int]]]:
    """The agent's audio as it came: for each stretch of speech (time, milliseconds) of its frames."""
    begins = [event["t"] for event in run.event_rows if event["kind"] == "generating"]
    stretches: list[list[tuple[float, int]]] = [[] for _ in begins]
    for row in run.wire_rows:
        if row["direction"] != "received":
            continue
        sizes = re.findall(r"<(\d+) bytes of audio>", json.dumps(row["frame"]))
        begun = sum(t <= row["t"] for t in begins)
        if sizes and begun:
            stretches[begun - 1].append((row["t"], sum(map(int, sizes)) // BYTES_PER_MS))
    return stretches


def _pieces(run: Run) -> tuple[str, str | None]:
    """The commonest length of the first, of the second and of all further frames but the last, in milliseconds."""
    lengths = [[ms for _, ms in stretch] for stretch in _audio(run) if len(stretch) > 3]
    if not lengths:
        return "not shown: no speech of more than three frames", None
    further = [ms for each in lengths for ms in each[2:-1]]
    places = [[each[0] for each in lengths], [each[1] for each in lengths], further]
    value = " ".join(str(Counter(place).most_common(1)[0][0]) for place in places)
    return f"{value} ms", value


def _speed(run: Run) -> tuple[str, float | None]:
    """Seconds of audio that came per second, in stretches of a second and more."""
    speeds = []
    for stretch in _audio(run):
        took, came = (stretch[-1][0] - stretch[0][0], sum(ms for _, ms in stretch[1:])) if stretch else (0.0, 0)
        if took > 0 and came >= 1000:
            speeds.append(came / 1000 / took)
    return _spread(speeds, "s of audio per second")


def _parallel(run: Run) -> tuple[str, str | None]:
    turns = Counter(event["detail"].get("turn") for event in run.event_rows if event["kind"] == "proposed")
    if turns and max(turns.values()) > 1:
        return f"yes ({max(turns.values())} calls in one turn)", "yes"
    return "not shown: no turn made more than one call", None


def _while_the_tool_runs(run: Run) -> dict[str, tuple[str, str | None]]:
    """Whether somebody who asks while a tool runs is answered before its result."""
    names = ("waits_for_result", "default_behavior", "input_during_blocking_call")
    withdrawn = {event["call_id"] for event in run.event_rows if event["kind"] == "withdrawn"}
    asked, spoke = False, False
    for call in [each for each in run.call_rows if each["started"] is not None]:
        over = call["finished"] if call["finished"] is not None else run.event_rows[-1]["t"]
        turn = next(e["detail"].get("turn") for e in run.event_rows if e["call_id"] == call["call_id"])
        for end in [each.end for each in utterances(run.event_rows) if call["started"] < each.end < over]:
            answers = [e for e in run.event_rows if e["kind"] == "generating" and end < e["t"] < over]
            spoke = spoke or any(event["detail"].get("turn") != turn for event in answers)
            asked = asked or over - end >= LONG_ENOUGH
    if withdrawn:
        return dict.fromkeys(names[:2], ("not shown: the call was called off", None)) | {
            names[2]: ("cancels: the service called the call off", "cancels")
        }
    if not asked and not spoke:
        return dict.fromkeys(names, ("not shown: nobody asked anything while the tool ran", None))
    what = "it spoke while the tool ran" if spoke else "asked meanwhile, it said nothing until the result was there"
    declared = "behaviors" in facts(run.meta["model"]) and facts(run.meta["model"])["behaviors"].value
    waits, default = ("no", "non_blocking") if spoke else ("yes", "blocking")
    return {
        names[0]: (f"{waits}: {what}", waits),
        names[1]: ("not shown: the session says of each tool how it is to behave", None)
        if declared
        else (f"{default}: {what}", default),
        names[2]: ("not shown: the call did not block", None) if spoke else (f"waits: {what}", "waits"),
    }


def _announcements(run: Run) -> dict[str, tuple[str, str | None]]:
    """Whether calls were announced: only where the instructions leave that to the model."""
    told = any("# Preambles" in json.dumps(row["frame"]) for row in run.wire_rows if row["direction"] == "sent")
    rate = run.values.get("preamble_rate")
    if told or rate is None:
        why = "the instructions say what to announce" if told else "no call was made"
        return dict.fromkeys(("preambles", "fillers"), (f"not shown: {why}", None))
    value = "yes" if rate else "no"
    return dict.fromkeys(("preambles", "fillers"), (f"{value} ({rate:.0%} of the calls)", value))


def tokens(run: Run) -> pd.DataFrame:
    """The tokens a service has counted, one row per report: t (session seconds), and how many of each kind.

    text_in, audio_in   read anew; cached_in: read again and taken from the service's cache, which is charged otherwise
    text_out, audio_out made

    A service reads the conversation from the start for every answer, so a row counts again what rows above it have
    counted. Their sum is what is charged. Empty for GPT-Live, which reports the seconds of the voice.
    """
    import pandas as pd

    reports = [event for event in run.event_rows if event["kind"] == "usage" and "seconds" not in event["detail"]]
    rows = [(event["t"], *_counted(event["detail"])) for event in reports]
    return pd.DataFrame(rows, columns=list(TOKENS)).rename_axis(columns=str(run.meta["provenance"]))


def _counted(usage: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    if "input_tokens" in usage:  # OpenAI
        read, made = usage.get("input_token_details") or {}, usage.get("output_token_details") or {}
        cached = read.get("cached_tokens_details") or {}
        kinds = ("text_tokens", "audio_tokens")
        text, sound = ((read.get(kind) or 0) - (cached.get(kind) or 0) for kind in kinds)
        return text, sound, read.get("cached_tokens") or 0, *((made.get(kind) or 0) for kind in kinds)  # type: ignore[return-value]
    by = {
        name: {each["modality"]: each["token_count"] for each in usage.get(f"{name}_tokens_details") or ()}
        for name in ("prompt", "cache", "response")
    }
    text, sound = (by["prompt"].get(kind, 0) - by["cache"].get(kind, 0) for kind in ("TEXT", "AUDIO"))
    made_text, made_sound = (by["response"].get(kind, 0) for kind in ("TEXT", "AUDIO"))
    return text, sound, sum(by["cache"].values()), made_text, made_sound


def claim_line(model: str, name: str, row: Mapping[str, Any], source: str) -> str:
    """A line for data/models.csv from a measured `row`: value, low, high (seconds), n, evidence, date.

    It is an "alternative": the claims stay as they are until somebody decides, and a run follows it when it is chosen
    (`claims={name: value}`). Raises ValueError for a row that was not measured.
    """
    if row["evidence"] != "measured":
        raise ValueError(f"{name} of {model}: {row['evidence']}, not measured; data/models.csv takes live runs only")
    said = f"Median of {row['n']} runs, {row['low']:.2f} to {row['high']:.2f} s"
    claim = Claim(model, name, f"{row['value']:.2f}", "alternative", said, source, row["date"], "measured")
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(dataclasses.astuple(claim))
    return text.getvalue()


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """For the length of a `with`: of the variables that a live run reads, `variables` are set and no others.

    Your own keys and addresses are put back afterwards. Not for several threads at once.
    """
    keys = [name for names in application.KEYS.values() for name in names]
    addresses = [variable for variable, _ in application.ADDRESSES.values()]
    kept = {name: os.environ.pop(name) for name in {*keys, *addresses, *variables} if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(kept)


def endpoint(model: str, target: Target) -> dict[str, str]:
    """Where a run would go, without going there: base_url, key and certificate. The key itself is not in it.

    Raises ValueError where a run would, as without a key for "live".
    """
    plan = Plan.of("order_status", model=model, target=target)

    async def look() -> dict[str, str]:
        async with application.service(plan) as found:
            url = found.base_url or ""
            trusted = "the simulator's, trusted by this client only" if found.tls else "none, and no encryption"
            return {
                "base_url": re.sub(r":[0-9]+", ":PORT", url) or "the SDK's own",
                "key": "a made-up word" if found.base_url else "yours, from the environment",
                "certificate": trusted if found.base_url else "the vendor's, trusted as any",
            }

    return run_blocking(look, plan.clock)


def run_with_key(key: str, scenario: str, *, model: str, **options: Any) -> Run:
    """A run on the simulator, as `vk.run`, whose SDK carries `key` where a live one carries yours.

    For made-up keys: the simulated service takes any.
    """
    plan = Plan.of(scenario, model=model, target="simulator", **options)

    def connect(config: SessionConfig, endpoint: Endpoint, tap: WireTap) -> RealtimeSession:
        return open_session(config, dataclasses.replace(endpoint, api_key=key), tap=tap)

    return run_blocking(lambda: application.converse(plan, connect), plan.clock)
