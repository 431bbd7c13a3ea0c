"""Answers that are misheard: in the simulated services, and by the thousand in the laboratory of lesson 08."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import random
from typing import Any

import pytest
from talks import talk

import voicekit as vk
from voicekit.lesson import provenance
from voicekit.lessons import consent_lab
from voicekit.lessons.consent_lab import (
    ATTENTION,
    Attention,
    answers,
    confusions,
    eight_tools,
    error_rates,
    let_through,
    mishear,
    ways,
    weigh,
    worth_of_yes,
)
from voicekit.models import data_path
from voicekit.runs import Run
from voicekit.simulator import Settings
from voicekit.simulator.ears import Ears
from voicekit.translation import translated
from voicekit.world import World

MODELS = ["gpt-realtime", "gemini-3.8-live", "gpt-live-1"]
REFUSED = vk.Scenario(
    "refused",
    tools={"cancel_appointment": 1.0},
    lines=(
        vk.Line("cancel_friday", at=0.5),
        vk.Line("no", after="agent_done", seconds=0.6),
    ),
)


def effects(run: Run) -> list[str]:
    return [row["effect"] for row in run.call_rows]


# The fault


@pytest.mark.parametrize("model", MODELS)
def test_a_no_that_is_heard_as_yes_is_a_yes_for_everybody_behind_the_ears(model: str) -> None:
    heard = vk.run(REFUSED, model=model, language="de", faults={"mishear": {"no_de": "yes_de"}})
    understood = [event["text"] for event in heard.event_rows if event["kind"] == "understood"]
    assert effects(heard) == ["committed"] and "Ja." in understood and "Nein." not in understood
    assert heard.problem == "" and heard.values["unanswered_calls"] == 0


def test_a_no_that_is_heard_is_a_no() -> None:
    run = talk(REFUSED, MODELS[0], language="de")
    assert "committed" not in effects(run)
    assert "Nein." in [event["text"] for event in run.event_rows if event["kind"] == "understood"]


def test_a_rate_is_drawn_with_the_seed() -> None:
    fault = {"mishear": {"no": {"yes": 0.5}}}
    no, yes = vk.clips()["no"], vk.clips()["yes"]
    drawn = []
    for seed in (0, 1, 2, 3, 4, 5, 0):
        report = Settings(seed=seed, faults=fault).fit(Ears).keywords["report"]  # type: ignore[attr-defined]
        drawn.append([report(no) for _ in range(20)])
        assert {each.name for each in drawn[-1]} == {"no", "yes"} and report(yes) is yes
    assert drawn[0] == drawn[-1] != drawn[1]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"no": "jes"}, "unknown clip 'jes'"),
        ({"noo": "yes"}, "unknown clip 'noo'"),
        ({"no": {"yes": 1.2}}, "numbers from 0 to 1"),
        ({"no": {"yes": 0.6, "okay": 0.6}}, "together at most 1"),
        ({"no": {"yes": "often"}}, "numbers from 0 to 1"),
        ("no", "a mapping such as"),
        ({"no": ["yes"]}, "a mapping such as"),
    ],
)
def test_an_impossible_mishearing_is_said_in_one_line_before_anything_starts(fault: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Settings(faults={"mishear": fault})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("by_rule", [True, False])
def test_a_yes_to_a_call_that_is_off_is_not_answered_with_okay(by_rule: bool) -> None:
    lines = (vk.Line("cancel_friday", at=0.5), vk.Line("yes_please", after="agent_done", seconds=12.0))
    asks = {"policy": vk.Policy(without_asking=()), "faults": {"cancel_call_after_s": 9.0}}
    rule = {"guardrails": (lambda tool, arguments, result: vk.skip("never") if result is None else None,)}
    tools = [dataclasses.replace(each, description="Cancel an appointment.") for each in World().tools()]
    run = vk.run(vk.Scenario("off", lines=lines), model=MODELS[1], tools=tools, **(rule if by_rule else asks))
    said = [event["text"] for event in run.event_rows if event["kind"] == "played"]
    assert "committed" not in effects(run) and said[-1] == "That was not done." and "Okay." not in said


# Words


def test_every_rate_says_where_it_comes_from() -> None:
    rows = list(csv.DictReader(data_path("confusions.csv").open(newline="", encoding="utf-8")))
    assert all(row["source"] and row["evidence"] == "assumed" for row in rows)
    for language in ("en", "de"):
        for others in confusions(language).values():
            assert sum(rate for _, rate in others) == pytest.approx(0.02)


def test_words_are_misheard_at_the_rates_of_the_table() -> None:
    draw = random.Random(0)
    heard = [mishear("No.", "en", draw) for _ in range(20_000)]
    assert {each for each in heard if each != "No."} == {"", "yes", "go"}
    assert heard.count("yes") / len(heard) == pytest.approx(0.005, abs=0.0015)
    assert mishear("No.", "en", random.Random(1)) == mishear("No.", "en", random.Random(1))


def test_a_language_without_rates_is_named() -> None:
    with pytest.raises(ValueError, match="'fr'"):
        mishear("Non.", "fr", random.Random(0))
    with pytest.raises(ValueError, match="'fr'"):
        ways("fr")


# Ways of asking


@pytest.mark.parametrize("language", ["en", "de"])
def test_no_refusal_that_is_heard_right_is_taken_as_consent_in_any_way_of_asking(language: str) -> None:
    refusals = answers(language)["no"]
    assert len(refusals) >= 10
    for way in ways(language):
        assert all(way.judge(answer) != "yes" for answer in (*refusals, *way.no, "")), way.name


def test_without_mishearing_there_are_no_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consent_lab, "confusions", lambda language: {"*": (("", 0.0),)})
    rates = error_rates(ways("en"), n=200)
    assert set(rates["rate, no"]) == {0.0}
    assert set(rates["rate, yes"].drop("a keyword")) == {0.0}
    assert 0 < rates.loc["a keyword", "rate, yes"] < 0.15  # who says "yes" twice has not said the word


def test_each_way_of_asking_trades_one_error_for_the_other_or_for_time() -> None:
    rates = error_rates(ways("en"), n=4000)
    plain, twice, keyword = (rates.loc[name] for name in ("yes or no", "asked twice", "a keyword"))
    assert plain["rate, no"] > 0.002 > twice["rate, no"]
    assert twice["rate, yes"] > plain["rate, yes"] and twice["seconds"] > 1.8 * plain["seconds"]
    assert keyword["rate, no"] < plain["rate, no"] and keyword["rate, yes"] > 5 * plain["rate, yes"]
    assert plain["no taken as yes"] == f"{round(plain['rate, no'] * 4000)} of 4000"
    assert (rates["turns"] >= 2).all()
    assert error_rates(ways("en"), n=400).equals(error_rates(ways("en"), n=400))


def test_a_way_of_asking_is_misheard_in_its_own_language(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf_to = {"de": {"nein": (("ja", 1.0),), "*": (("", 0.0),)}, "en": {"*": (("", 0.0),)}}
    monkeypatch.setattr(consent_lab, "confusions", deaf_to.__getitem__)
    rates = {language: error_rates(ways(language)[:1], n=50)["rate, no"].item() for language in ("en", "de")}
    assert rates == {"en": 0.0, "de": 1.0}


# Fatigue


def test_attention_falls_to_its_floor_and_a_yes_with_it() -> None:
    listens = [ATTENTION.at(number) for number in range(1, 30)]
    assert listens[0] == 0.95 and listens == sorted(listens, reverse=True) and listens[-1] == pytest.approx(0.55)
    drops = [a - b for a, b in itertools.pairwise(listens)]
    assert drops == sorted(drops, reverse=True)
    worth = worth_of_yes(wanted=0.9)
    assert worth["caller wants it"].is_monotonic_decreasing and worth["stopped"].is_monotonic_decreasing
    assert ((worth["caller wants it"] > 0.9) & (worth["caller wants it"] < 1)).all()


def test_a_yes_nobody_listened_for_says_nothing() -> None:
    deaf = Attention(first=0.0, floor=0.0)
    assert let_through(1, deaf, reflex=1.0) == 1.0
    assert set(worth_of_yes(attention=deaf, reflex=1.0, wanted=0.7)["caller wants it"]) == {0.7}


# Three lists


def test_asking_about_everything_is_worse_than_asking_about_what_matters() -> None:
    reads = {tool.name for tool in eight_tools() if tool.effect == "read"}
    everything, what_matters = weigh((), ()), weigh(reads | {"send_confirmation"}, {"refund_order"})
    assert what_matters.questions < everything.questions and what_matters.euros < everything.euros
    assert weigh({tool.name for tool in eight_tools()}, ()).euros > everything.euros


def test_a_tool_is_on_one_list_and_known() -> None:
    with pytest.raises(ValueError, match="both lists"):
        weigh({"refund_order"}, {"refund_order"})
    with pytest.raises(ValueError, match="unknown tool 'pay'"):
        weigh({"pay"}, ())


def test_the_check_says_what_is_still_missing() -> None:
    reads = {tool.name for tool in eight_tools() if tool.effect == "read"}
    solved = vk.check.consent_lists(reads | {"send_confirmation"}, {"refund_order"})
    assert solved and repr(solved) == "Done: nothing is missing."
    for free, never, missing in (
        (set(), set(), "fewer questions"),
        (reads | {"send_confirmation"}, set(), "less risk"),
        (reads | {"send_confirmation"}, {"refund_order", "book_appointment"}, "more that can be done by voice"),
        ({"pay"}, set(), "'pay' is none"),
        ("refund_order", set(), "a set of names"),
        (reads, reads, "it is on two"),
    ):
        assert missing in repr(vk.check.consent_lists(free, never)), (free, never)


# Predictions


def test_a_prediction_stands_beside_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert vk.predicted(0, 1, "bookings") == "You said 0, measured 1 bookings (simulated): +1."
    assert vk.predicted(2.0, 0, "bookings") == "You said 2, measured 0 bookings (simulated): -2."
    assert vk.predicted(0.5, 1, "bookings") == "You said 0.50, measured 1 bookings (simulated): +0.50."
    assert vk.predicted(2, 7.27) == "You said 2.00, measured 7.27 seconds (simulated): +5.27."
    assert vk.predicted(50, 46, "callers", kind="calculated") == "You said 50, measured 46 callers (calculated): -4."
    assert "Measured: 46 callers" in vk.predicted(None, 46, "callers")
    monkeypatch.setenv("VOICEKIT_TARGET", "live")
    assert vk.predicted(2, 7.27) == "You said 2.00, measured 7.27 seconds (live): +5.27."


@pytest.mark.parametrize("guess", ["six", "6", True, [6]])
def test_a_prediction_that_is_no_number_is_said_in_one_line(guess: Any) -> None:
    with pytest.raises(ValueError, match=r"^a prediction is a number, such as GUESS = 6\.5, not .*$"):
        vk.predicted(guess, 1)


def test_the_label_is_that_of_the_runs_or_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    run = talk(REFUSED, MODELS[0], language="de")
    monkeypatch.setenv("VOICEKIT_TARGET", "live")
    assert provenance(run) == "simulated" and provenance() == "live"
    monkeypatch.setenv("VOICEKIT_TARGET", "replay")
    assert provenance() == "replayed"


# German


# Every scenario once: its words are the same for all providers.
@pytest.mark.parametrize(
    ("scenario", "model"),
    [
        ("booking", MODELS[1]),
        ("cancellation", MODELS[0]),
        ("order_status", MODELS[2]),
        ("friday_thursday", MODELS[1]),
        ("never_mind", MODELS[2]),
    ],
)
def test_the_same_scenario_runs_in_german(scenario: str, model: str) -> None:
    run = talk(scenario, model, language="de")
    assert run.problem == "" and run.values["unanswered_calls"] == 0
    assert not [event for event in run.event_rows if event["kind"] == "cue_missed"]
    known = vk.clips()
    said = [event["item"] for event in run.event_rows if event["kind"] == "speech_stop"]
    assert said and all(known[name].language == "de" for name in said)
    committed = [row["tool"] for row in run.call_rows if row["effect"] == "committed"]
    assert committed == (["book_appointment"] if scenario in ("booking", "friday_thursday") else [])


def test_there_are_german_clips_and_each_says_who_speaks() -> None:
    german = [row for row in csv.DictReader(data_path("audio", "manifest.csv").open(encoding="utf-8-sig"))
              if row["language"] == "de"]  # fmt: skip
    assert len(german) >= 15 and all("synthetic" in row["engine"] and row["licence"] for row in german)


def test_a_line_is_translated_by_its_meaning_or_named_as_missing() -> None:
    known = vk.clips()
    lines, missing = translated([vk.Line("never_mind_hours", after="tool_starts", seconds=1.5)], "de", known)
    assert [line.clip for line in lines] == ["never_mind_de", "opening_hours_de"] and not missing
    assert (lines[0].after, lines[0].seconds) == ("tool_starts", 1.5)
    assert translated([vk.Line("stock_and_shipping")], "de", known) == ((), ["stock_and_shipping_de"])
    with pytest.raises(ValueError, match="no clip stock_and_shipping_de"):
        vk.scenarios()["two_lookups"].in_language("de")
