"""Notebook 13: what hangs on which of two pages is right, what does not depend on it, and what tells them apart."""

from __future__ import annotations

from typing import Any

import pytest
from talks import talk

import voicekit as vk
from voicekit.lesson import claims_table, disputes
from voicekit.lessons import check_13
from voicekit.lessons.two_pages import unstated
from voicekit.metrics import played, utterances
from voicekit.models import Claim
from voicekit.runs import Run

OLDER, NEWER = check_13.OLDER, check_13.NEWER
ASKS, WAITS = check_13.ASKS, check_13.WAITS
LATE = vk.Scenario(
    "late",
    tools={"get_order_status": 6.0},
    lines=(vk.Line("order_status", at=0.5), vk.Line("opening_hours", after="tool_starts", seconds=5.9)),
)


def waits(model: str, default: str) -> Run:
    return unstated(WAITS, model=model, claims={"default_behavior": default})


def frames(run: Run, *kinds: str) -> list[tuple[float, str]]:
    return [(row["t"], row["type"]) for row in run.wire_rows if row["type"] in kinds]


def turns_complete(run: Run) -> list[float]:
    contents = [(row["t"], row["frame"]) for row in run.wire_rows if row["type"] == "serverContent"]
    return [t for t, frame in contents if "turnComplete" in frame["serverContent"]]


# The pages


def newest(rows: tuple[Claim, ...]) -> str:
    last = max(row.date for row in rows)
    values = {row.value for row in rows if last.startswith(row.date)}
    return values.pop() if len(values) == 1 else "?"


def test_two_rules_for_choosing_a_page_do_not_agree() -> None:
    pairs = disputes(OLDER, NEWER)
    chosen = {(rows[0].property, rows[0].model): newest(rows) for rows in pairs}
    vendor = {
        (rows[0].property, rows[0].model): newest(tuple(r for r in rows if r.evidence == "vendor")) for rows in pairs
    }
    assert chosen["default_behavior", OLDER] == vendor["default_behavior", OLDER] == "blocking"
    assert (chosen["default_behavior", NEWER], vendor["default_behavior", NEWER]) == ("blocking", "non_blocking")
    assert (chosen["scheduling", NEWER], vendor["scheduling", NEWER]) == ("?", "yes")
    assert (chosen["fillers", NEWER], vendor["fillers", NEWER]) == ("?", "?")
    assert chosen["interrupt_while_caller_speaks", NEWER] == "waits"


def test_a_dispute_has_all_claims_about_it_by_date_and_no_figures() -> None:
    pairs = disputes(NEWER)
    assert all([row.date for row in rows] == sorted(row.date for row in rows) for rows in pairs)
    assert all(sum(row.use == "default" for row in rows) == 1 for rows in pairs)
    assert not {rows[0].property for rows in pairs} & {"prefill", "confusion", "call_latency"}
    assert disputes("gemini-3.1-flash-live-preview") == []
    assert list(claims_table(pairs[0])["value"]) == [row.value for row in pairs[0]]
    with pytest.raises(ValueError, match="unknown model 'gemini-9'"):
        disputes("gemini-9")


# The default


def test_under_one_claim_the_order_is_never_heard_and_the_question_is_answered_all_the_same() -> None:
    one, two = check_13.sealed(0), check_13.sealed(1)
    asked = utterances(one.event_rows)[-1].end
    for run in (one, two):
        hours = next(each for each in played(run.event_rows) if "open" in "".join(word for _, word in each.words))
        assert hours.start == pytest.approx(10.47, abs=0.02) and hours.start - asked < 1.6
        assert run.values["unanswered_calls"] == 0 and not run.problem
    assert one.values["time_to_result"] == pytest.approx(8.71, abs=0.02)
    assert two.values["time_to_result"] is None and two.call_rows[0]["state"] == "cancelled"
    assert frames(one, "tool_response", "toolCallCancellation") == [(12.718, "tool_response")]
    assert frames(two, "tool_response", "toolCallCancellation") == [(9.6, "toolCallCancellation")]


def test_what_is_said_does_not_depend_on_the_default_nor_on_a_field_that_is_left_out() -> None:
    against: dict[str, Any] = {"default_behavior": "blocking", "scheduling": "no"}
    safe = unstated(ASKS, model=NEWER, leave_out=["scheduling"], behavior="non_blocking", claims=against)
    assert safe.values == check_13.sealed(0).values
    sent = next(row["frame"] for row in safe.wire_rows if row["type"] == "tool_response")
    assert "scheduling" not in sent["tool_response"]["functionResponses"][0]
    assert safe.meta["left_out"] == ["scheduling"]


def test_the_field_is_on_the_wire_or_it_is_not() -> None:
    def declared(run: Run) -> dict[str, Any]:
        return run.wire_rows[0]["frame"]["setup"]["tools"][0]["functionDeclarations"][0]

    assert "behavior" not in declared(check_13.sealed(1))
    assert declared(talk(ASKS, NEWER, claims={"scheduling": "no"}))["behavior"] == "NON_BLOCKING"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"leave_out": "behavior"}, "leave_out is a list of fields from behavior, scheduling, not 'behavior'"),
        ({"leave_out": ["voice"]}, "not 'voice'"),
        ({"model": "gpt-realtime"}, "gpt-realtime has no behavior or scheduling to leave out"),
        ({"target": "replay"}, "a recorded run is what it was"),
    ],
)
def test_what_cannot_be_left_out_is_said(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        unstated(ASKS, **{"model": NEWER, **wrong})


# Experiments


def test_a_patient_caller_hears_the_same_under_both_claims() -> None:
    one, two = (waits(NEWER, default) for default in ("non_blocking", "blocking"))
    assert one.values == two.values and one.values["dead_air_longest"] == pytest.approx(8.21, abs=0.02)
    assert (one.heard == two.heard).all()
    sent = one.call_rows[0]["delivered"]
    assert [turns_complete(run)[0] < sent for run in (one, two)] == [True, False]  # one frame gives it away


def test_on_the_older_model_not_even_a_frame_differs() -> None:
    assert (check_13.CASES[4].model, check_13.CASES[4].claim) == (OLDER, "non_blocking")
    held, other = check_13.sealed(4), waits(OLDER, "blocking")
    assert held.wire_rows == other.wire_rows and held.event_rows == other.event_rows


def test_the_quick_tool_is_answered_before_she_begins_to_ask() -> None:
    held = check_13.sealed(5)
    assert held.call_rows[0]["delivered"] < utterances(held.event_rows)[-1].start


# The other disputes


def test_when_idle_is_the_same_on_a_model_that_would_speak_over_the_caller() -> None:
    def late(claim: str, delivery: str) -> Run:
        claims = {"interrupt_while_caller_speaks": claim}
        return talk(LATE, NEWER, claims=claims, delivery=delivery, max_seconds=17.2)

    polite, rude, idle = late("waits", "interrupt"), late("speaks_over", "interrupt"), late("speaks_over", "when_idle")
    assert [run.values["talk_over"] for run in (polite, rude, idle)] == [0.0, pytest.approx(0.41, abs=0.02), 0.0]
    assert polite.values == idle.values and idle.values["done_to_heard"] == pytest.approx(2.84, abs=0.02)
    assert rude.values["done_to_heard"] == pytest.approx(0.90, abs=0.02)


def test_a_field_the_model_does_not_know_ends_the_call_and_the_ledger_says_delivered() -> None:
    run = talk(ASKS, NEWER, claims={"scheduling": "no"})
    assert frames(run, "tool_response", "close") == [(12.718, "tool_response"), (12.718, "close")]
    assert run.wire_rows[-1]["frame"]["code"] == 1007 and "1007" in run.problem
    assert (run.call_rows[0]["delivered"], run.call_rows[0]["heard"]) == (12.718, None)


@pytest.mark.parametrize("setting", [{"delivery": "interrupt"}, {"behavior": "blocking"}])
def test_what_a_model_is_known_to_refuse_is_never_sent(setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"extended-thinking (takes no scheduling|has no blocking calls)"):
        vk.run(ASKS, model="gemini-3.8-live-extended-thinking", **setting)


# The exercise


def solved(run: Run) -> str | None:
    call = run.call_rows[0]
    asked = [each.end for each in utterances(run.event_rows) if call["started"] < each.end < call["finished"]]
    if not asked:
        return None
    answered = any(asked[0] < each.start < call["finished"] for each in played(run.event_rows))
    return "non_blocking" if answered else "blocking"


def by_first_words(run: Run) -> str:
    return "non_blocking" if "open" in "".join(word for _, word in played(run.event_rows)[0].words) else "blocking"


def by_turn_complete(run: Run) -> str:
    sent = run.call_rows[0]["delivered"] or run.call_rows[0]["finished"]
    return "non_blocking" if turns_complete(run)[0] < sent else "blocking"


def by_cancellation(run: Run) -> str:
    return "blocking" if "toolCallCancellation" in set(run.wire["type"]) else "non_blocking"


def by_silence(run: Run) -> str:
    return "blocking" if (run.values["dead_air_longest"] or 9.0) > 4.0 else "non_blocking"


def spoke_meanwhile(run: Run) -> str:
    """The rule of `vk.probe`."""
    call = run.call_rows[0]
    spoken = [e for e in run.event_rows if e["kind"] == "playing" and call["started"] < e["t"] < call["finished"]]
    return "non_blocking" if spoken else "blocking"


def failed(function: Any) -> list[int]:
    """The numbers of the conversations in which a function is wrong."""
    return [int(finding.split()[1]) for finding in vk.check.which_claim(function).findings]


def test_the_check_takes_the_solution() -> None:
    assert vk.check.which_claim(solved)


def test_the_check_refuses_constants_and_models() -> None:
    assert failed(lambda run: "blocking") == [1, 4, 5, 6]
    assert failed(lambda run: "non_blocking") == [2, 3, 5, 6]
    assert failed(lambda run: None) == [1, 2, 3, 4]
    by_model = {OLDER: "blocking", NEWER: "non_blocking"}
    assert failed(lambda run: by_model[run.meta["model"]]) == [2, 4, 5, 6]


def test_the_check_refuses_what_the_run_was_told() -> None:
    assert "claims" not in check_13.sealed(0).meta
    (finding,) = vk.check.which_claim(lambda run: run.meta["claims"]["default_behavior"]).findings
    assert "raised KeyError: 'claims'; a live run does not say" in finding


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        (by_first_words, [2, 5, 6]),
        (by_turn_complete, [3, 5, 6]),
        (by_cancellation, [3, 5, 6]),
        (by_silence, [5, 6]),
        (spoke_meanwhile, [5, 6]),
    ],
)
def test_the_check_refuses_signs_that_hold_on_some_runs(function: Any, wrong: list[int]) -> None:
    assert failed(function) == wrong


def test_the_check_names_what_is_no_answer() -> None:
    assert vk.check.which_claim(lambda run: "blocked").findings[0].endswith("the function says 'blocked'.")
    assert "raised ZeroDivisionError" in vk.check.which_claim(lambda run: str(1 / 0)).findings[0]
