"""The checks of the exercises: each says what is still missing, in words, from numbers it measures itself.

vk.check.silence(run, below=4.0)
vk.check.empty_search(my_tool)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from voicekit.caller import Line
from voicekit.dispatcher import Moment
from voicekit.experiment import Scenario, Target, run
from voicekit.instructions import BASE
from voicekit.lesson import loop
from voicekit.lessons.check_08 import consent_lists as consent_lists
from voicekit.lessons.check_09 import review as review
from voicekit.lessons.check_10 import idempotent as idempotent
from voicekit.lessons.check_13 import which_claim as which_claim
from voicekit.lessons.check_14 import measured_row as measured_row
from voicekit.lessons.findings import Findings
from voicekit.metrics import played, utterances
from voicekit.policy import Policy
from voicekit.results import ok, problem
from voicekit.runs import Run
from voicekit.tools import Result, Tool
from voicekit.tools import tool as make_tool
from voicekit.wording import SENTENCES, sentence_count, words_about
from voicekit.world import World


def silence(run: Run, below: float, above: float = 0.0) -> Findings:
    """Notebook 00: is the longest silence of a run between `above` and `below` seconds, with the result still heard?"""
    findings = []
    longest, heard = run.values["dead_air_longest"], run.values["time_to_result"]
    source = run.meta["provenance"]
    if heard is None or longest is None:
        findings.append("the caller has to hear the result; a run without one has no wait to measure.")
    elif longest >= below:
        findings.append(f"the longest silence is {longest:.2f} s ({source}); it has to be below {below:g} s.")
    elif longest < above:
        hint = f"the tool may take longer: it has to be {above:g} s or more."
        findings.append(f"the longest silence is {longest:.2f} s ({source}); {hint}")
    return Findings(tuple(findings))


def empty_search(tool: Any, model: str = "gemini-3.1-flash-live-preview", target: Target = "simulator") -> Findings:
    """Notebook 01: does a model that gets this tool's empty answer stop searching and tell the caller?

    `tool` is called check_stock and is asked for the red kettle, which it does not find. What its function returns goes
    to the model as it is: the kit's own application would have replaced an answer that says nothing.
    """
    if getattr(tool, "name", "") != "check_stock":
        return Findings((f"a Tool named check_stock, not {getattr(tool, 'name', type(tool).__name__)}.",))
    done = loop("stock_red", tool, model=model, target=target)
    if not done.calls:
        return Findings(("a call: the model never used your tool.",))
    findings, (_, result) = [], done.answers[0]
    if len(done.calls) > 1:
        source = "live" if target == "live" else "simulated"
        tried = "; ".join(call.arguments for call in done.calls)
        findings.append(f"one call. The model searched {len(done.calls)} times ({source}): {tried}")
    if reason := problem(result):
        findings.append(f"a result ({reason}): say the status, a summary to read aloud, and whether to try again.")
    elif result["status"] not in ("no_results", "ok"):
        findings.append(f"the right status; {result['status']} says that something else happened.")
    elif not done.said:
        findings.append("a sentence for the caller, who heard nothing.")
    return Findings(tuple(findings))


def unannounced(
    names: Collection[str],
    seconds: Mapping[str, float | tuple[float, ...]],
    below: float = 4.0,
    model: str = "gemini-3.1-flash-live-preview",
    target: Target = "simulator",
) -> Findings:
    """Notebook 02: are `names` the tools that a model which stands still may call without an announcement?

    `seconds` says by tool how long it takes; of several numbers the longest counts. The silence of each is measured in
    a conversation; one that stays below `below` seconds needs no announcement, and one would only lengthen it.
    """
    findings = [f"a tool named {name}: the list has {', '.join(seconds)}." for name in names if name not in seconds]
    source = "live" if target == "live" else "simulated"
    for name, times in seconds.items():
        slow = max(times) if isinstance(times, tuple) else times
        longest = _silence_of(slow, model, target)
        if longest is None:
            findings.append(f"{name} ({slow:g} s): the result was never heard.")
        elif longest >= below and name in names:
            findings.append(f"{name}: at {slow:g} s the silence is {longest:.2f} s ({source}); announce it.")
        elif longest < below and name not in names:
            findings.append(f"{name}: even at {slow:g} s the silence is {longest:.2f} s ({source}); just call it.")
    return Findings(tuple(findings))


@cache
def _silence_of(seconds: float, model: str, target: Target) -> float | None:
    """The longest silence around one lookup that takes `seconds`. Kept, because a check is run again and again."""
    scenario = Scenario("one_lookup", tools={"check_stock": seconds}, lines=(Line("stock", at=0.5),))
    longest = run(scenario, model=model, target=target).values["dead_air_longest"]
    return None if longest is None else float(longest)


# What comes in when, what is going on, and what a good `delivery` function says to it.
SILENCE: dict[str, Any] = {"caller_speaking": False, "agent_speaking": False, "caller_turns_since": 0}
AGENT_TALKS = SILENCE | {"agent_speaking": True, "caller_turns_since": 1}
CALLER_TALKS = SILENCE | {"caller_speaking": True}
DELIVERY_CASES: tuple[tuple[str, dict[str, Any], dict[str, Any], str], ...] = (  # several words: any of them
    ("an urgent result while the agent talks", {"urgent": True}, AGENT_TALKS, "interrupt"),
    ("an urgent result in silence", {"urgent": True}, SILENCE, "interrupt"),
    ("an ordinary result while the agent talks about something else", {}, AGENT_TALKS, "when_idle"),
    ("an ordinary result while the caller talks", {}, CALLER_TALKS, "when_idle"),
    ("an ordinary result in silence", {}, SILENCE, "when_idle or interrupt"),  # which is the same then
    ("a result that is only stored", {"store_only": True}, SILENCE, "silent"),
    ("a result that is only stored, while the agent talks", {"store_only": True}, AGENT_TALKS, "silent"),
)
SUMMARY = "Your order left our warehouse this morning and arrives on Friday."
# Two seconds into the lookup the caller asks something else: the result comes while the agent answers that.
SMALL_TALK = (
    Line("order_status", at=0.5),
    Line("opening_hours", after="tool_starts", seconds=2.0),
    Line("any_news", after="agent_done", seconds=1.0),
)


def delivery(
    function: Callable[[dict[str, Any], Any], str], model: str = "gemini-3.8-live", target: Target = "simulator"
) -> Findings:
    """Notebook 03: does `function(result, moment)` choose well, on a table of moments and in three conversations?"""
    findings: list[str] = []
    for what, data, state, wanted in DELIVERY_CASES:
        moment = Moment(tool="get_order_status", seconds_since=6.0, **state)
        try:
            chosen = function(ok(SUMMARY, **data), moment)
        except Exception as error:
            mend = "; a result is a dict, and a mark may be missing: result.get('urgent')"
            known = isinstance(error, (AttributeError, KeyError)) and mend
            return Findings((f"{what}: the function raised {type(error).__name__}: {error}{known or ''}",))
        if chosen not in wanted.split(" or "):
            words = ("interrupt", "when_idle", "silent")
            mend = "" if chosen in words else f" (the words are {', '.join(words)}, in lower case)"
            findings.append(f"{what}: {wanted}, not {chosen}{mend}.")
    if not findings:
        findings = [f"in a conversation, {f}" for f in _talks(function, model, target)]
    return Findings(tuple(findings))


def _talks(function: Callable[[dict[str, Any], Any], str], model: str, target: Target) -> list[str]:
    """The three kinds of result, each in a conversation in which it comes while the agent talks of something else."""
    kinds: tuple[dict[str, Any], ...] = ({"urgent": True}, {}, {"store_only": True})
    urgent, ordinary, stored = (_talk(data, function, model, target) for data in kinds)
    findings = []
    if not urgent.values["flushed_seconds"]:
        findings.append("the urgent result has to come before the end of the agent's own sentence.")
    if ordinary.values["flushed_seconds"]:
        findings.append("the agent's answer to the second question was cut off by an ordinary result.")
    if ordinary.values["time_to_result"] is None:
        findings.append("the ordinary result has to be heard.")
    asked = next((u.end for u in utterances(stored.event_rows) if u.clip == "any_news"), 0.0)
    heard = stored.call_rows[0]["heard"] if stored.call_rows else None
    if heard is None or heard < asked:
        findings.append("the stored result has to be heard when the caller asks for it, and not before.")
    return findings


def _talk(data: dict[str, Any], function: Callable[..., str], model: str, target: Target) -> Run:
    @make_tool(effect="read", seconds=6.0)
    async def get_order_status(order_id: str) -> Result:
        """Look up the status of an order. Never creates or cancels one."""
        return ok(SUMMARY, **data)

    scenario = Scenario("small_talk", lines=SMALL_TALK)
    policy = Policy(delivery=function)  # type: ignore[arg-type]
    return run(scenario, model=model, policy=policy, tools=(get_order_status,), target=target)


@dataclass(frozen=True, repr=False)
class Wording(Findings):
    """What an announcement is about: "caller" (their matter), "machine" (its state), "both" or "neither"."""

    about: str = "neither"

    def __repr__(self) -> str:
        of = {"caller": "the caller's matter", "machine": "the machine's state"}
        first = f"It describes {of.get(self.about, self.about)}."
        return "\n".join([first, *(f"Still missing: {finding}" for finding in self.findings)])


def preamble(text: str, language: str | None = None, words: Iterable[tuple[str, str]] = ()) -> Wording:
    """Notebook 04: does an announcement describe the machine's state or the caller's matter? True for the latter.

    By the words of data/preamble_words.csv (English and German), of one `language` or of all; `words` are more of them,
    as (words, about) with about one of caller, action, machine, wait: `words=[("parcel*", "caller")]`.
    """
    found = words_about(text, language, words)
    theirs, ours = found.get("caller", []) + found.get("action", []), found.get("machine", []) + found.get("wait", [])
    findings = [f'"{word}" is about the machine; say what is done about the caller\'s matter.' for word in ours]
    if not theirs:
        findings.append("what is done for the caller: a verb and a thing, such as checking an order.")
    if sentence_count(text) > SENTENCES:
        findings.append(f"brevity: one short sentence, {SENTENCES} at most.")
    about = "both" if theirs and ours else "caller" if theirs else "machine" if ours else "neither"
    return Wording(tuple(findings), about)


CONFIRMED = (Line("book_thursday", at=0.5), Line("yes_please", after="agent_done", seconds=0.6))
ANNOUNCEMENT_CASES = (
    ("the fast tool", Scenario("fast", tools={"check_stock": 0.2}, lines=(Line("stock", at=0.5),)), False),
    ("the slow tool", Scenario("slow", tools={"get_order_status": 6.0}, lines=(Line("order_status", at=0.5),)), True),
    ("the confirmed booking", Scenario("confirmed", tools={"book_appointment": 2.0}, lines=CONFIRMED), False),
)


def announcements(section: str, model: str = "gpt-realtime", target: Target = "simulator") -> Findings:
    """Notebook 04: does a model that reads this `# Preambles` section announce the slow tool, and nothing else?

    Three conversations are held: a lookup that takes 0.2 s, one that takes 6 s, and a booking that the caller has just
    confirmed. What was said in the turn of the call, before its result, is the announcement.
    """
    findings = []
    if "# preambles" not in section.lower():
        findings.append("the heading `# Preambles`, by which a model finds the section.")
    for what, scenario, wanted in ANNOUNCEMENT_CASES:
        talk = run(scenario, model=model, instructions=f"{BASE['en']}\n\n{section}", target=target)
        said = _announced(talk)
        if not talk.call_rows:
            findings.append(f"a call of {what}; the model never made one.")
        elif said and not wanted:
            wait = f"{talk.values['time_to_result']:.2f} s ({talk.meta['provenance']})"
            findings.append(f'silence before {what}: "{said}" came first, the answer after {wait}.')
        elif wanted and not said:
            longest = f"{talk.values['dead_air_longest']:.2f} s ({talk.meta['provenance']})"
            findings.append(f"an announcement of {what}: the longest silence is {longest}.")
        elif wanted and not preamble(said):
            findings.append(f'an action before {what}: "{said}" is about the machine, not about the caller\'s matter.')
    return Findings(tuple(findings))


def _announced(talk: Run) -> str:
    """What was said in the turn of the first call before its result was there."""
    events = talk.event_rows
    turn = next((event["detail"]["turn"] for event in events if event["kind"] == "proposed"), None)
    done = next((event["t"] for event in events if event["kind"] == "answered"), float("inf"))
    spoken = [each for each in played(events) if turn and each.turn == turn and each.start < done]
    return " ".join(" ".join(word for _, word in each.words) for each in spoken).strip()


FRIDAY, THURSDAY = {"day": "friday"}, {"day": "thursday"}
FIRST, SECOND = {"order_id": "OD-20260818-001"}, {"order_id": "OD-20260818-002"}
BLUE, RED = {"item": "blue kettle"}, {"item": "red kettle"}
AT_TEN, AT_TWO = FRIDAY | {"time": "10:00"}, THURSDAY | {"time": "14:00"}
# What the caller said second, the calls it led to while the first was running, and whether the first is outdated by it.
REVISION_CASES: tuple[tuple[str, tuple[str, dict[str, Any]], tuple[str, dict[str, Any]], bool], ...] = (
    ("No, make that Thursday.", ("find_appointment", FRIDAY), ("find_appointment", THURSDAY), True),
    ("On Friday, but at ten.", ("find_appointment", FRIDAY), ("find_appointment", AT_TEN), True),
    ("And where is my other order?", ("get_order_status", FIRST), ("get_order_status", SECOND), False),
    ("Tell me all about it.", ("get_order_status", FIRST), ("get_order_status", FIRST | {"details": True}), True),
    ("And how much is shipping?", ("check_stock", BLUE), ("get_shipping", BLUE), False),
    ("And do you have the red one?", ("check_stock", BLUE), ("check_stock", RED), False),
    ("Thursday at two is fine, book it.", ("find_appointment", THURSDAY), ("book_appointment", AT_TWO), False),
    ("And my wife on Friday at ten.", ("book_appointment", AT_TWO), ("book_appointment", AT_TEN), False),
)


def revision_key(
    function: Callable[[str, dict[str, Any]], str], model: str = "gemini-3.8-live", target: Target = "simulator"
) -> Findings:
    """Notebook 06: does `function(tool, arguments)` tell a changed wish from a second one, in eight conversations?"""
    findings = []
    for said, first, second, outdated in REVISION_CASES:
        try:
            keys = [function(name, dict(arguments)) for name, arguments in (first, second)]
        except Exception as error:
            findings.append(f'"{said}": a key; the function raised {type(error).__name__}: {error}')
            continue
        if not all(isinstance(key, str) for key in keys):
            findings.append(f'"{said}": a key that is a string, not {keys[0]!r}.')
        elif (keys[0] == keys[1] != "") != outdated:
            calls = f"{first[0]}, then {second[0]}"
            wanted = "the first result is outdated; give both the same key" if outdated else "both results are wanted"
            findings.append(f'"{said}" ({calls}): {wanted}.')
    if findings:
        return Findings(tuple(findings))
    talk = run("friday_thursday", model=model, policy=Policy(revision_key=function), target=target)
    if talk.values["stale_spoken"] or not talk.values["stale_dropped"]:
        findings.append("in the conversation about Friday and Thursday, silence about Friday.")
    return Findings(tuple(findings))


# A tool of each effect, a conversation that interrupts it, what may then become of the call, and why nothing else may.
BARGE_IN_CASES: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("get_order_status", "interrupted_lookup", ("finish", "cancel"), "it changes nothing; nobody has to be asked"),
    ("book_appointment", "interrupted_booking", ("cancel", "hold_until_confirmed"), "it would book what is not wanted"),
    ("cancel_appointment", "interrupted_cancellation", ("hold_until_confirmed",), "once begun, nothing stops it"),
)


def on_barge_in(function: Callable[[Tool], Any], model: str = "gpt-realtime", target: Target = "simulator") -> Findings:
    """Notebook 05: does `function(tool)` do the right thing to a read, a write and an irreversible call under way?"""
    findings, tools = [], {each.name: each for each in World().tools()}
    for name, _, allowed, why in BARGE_IN_CASES:
        what = f"{name} ({tools[name].effect})"
        try:
            chosen = function(tools[name])
        except Exception as error:
            findings.append(f"{what}: an answer; the function raised {type(error).__name__}: {error}")
            continue
        if chosen not in allowed:
            findings.append(f"{what}: {' or '.join(allowed)}, not {chosen}; {why}.")
    if findings:
        return Findings(tuple(findings))
    for name, scenario, _, _ in BARGE_IN_CASES:
        talk = run(scenario, model=model, policy=Policy(on_barge_in=function), target=target)
        effects = [call["effect"] for call in talk.call_rows]
        if "committed" in effects or talk.values["stale_spoken"]:
            findings.append(f"{name}, taken back while it ran: no effect and no word of it in the conversation.")
    return Findings(tuple(findings))


ANSWER = "Friday"  # the word of the order's answer that matters
CUT_OFF = Scenario(
    "cut_off",
    tools={"get_order_status": 6.0},
    lines=(Line("order_status", at=0.5), Line("returns", after="heard_text", text="order left", seconds=0.4)),
)
# Calls in which the answer arrives, gets lost on its way to the caller's ear, or goes another way.
TOLD_CASES: tuple[tuple[str, str | Scenario, dict[str, Any]], ...] = (
    ("an ordinary call", "order_status", {}),
    ("commentary that is acknowledged and never spoken", "order_status", {"faults": {"unspoken": True}}),
    ("an answer the caller talks over", CUT_OFF, {}),
    ("the same on a model that is ahead of the loudspeaker", CUT_OFF, {"model": "gpt-realtime"}),
    ("a connection that breaks while the tool runs", "order_status", {"faults": {"close": {"after_s": 11.0}}}),
    ("Responses delegation, where the service has the answer said", "order_status", {"delegation": "responses"}),
)


def told(function: Callable[[Run, str], bool], model: str = "gpt-live-1", target: Target = "simulator") -> Findings:
    """Notebook 07: does `function(run, word)` know, in six calls, whether the caller heard the word that matters?"""
    findings = []
    for number, (what, _, _) in enumerate(TOLD_CASES):
        talk = _told_call(number, model, target)
        heard = any(word.strip(" .,") == ANSWER for each in played(talk.event_rows) for _, word in each.words)
        try:
            answer = bool(function(talk, ANSWER))
        except Exception as error:
            findings.append(f"{what}: an answer; the function raised {type(error).__name__}: {error}")
            continue
        if answer != heard:
            truth = "the caller has heard it" if heard else "the caller has not heard it"
            findings.append(f'{what}: {truth} ("{ANSWER}", {talk.meta["provenance"]}); the function says {answer}.')
    return Findings(tuple(findings))


@cache
def _told_call(number: int, model: str, target: Target) -> Run:
    """The call of a case. Kept, because a check is run again and again."""
    _, scenario, options = TOLD_CASES[number]
    return run(scenario, target=target, **{"model": model, **options})
