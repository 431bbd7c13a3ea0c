"""What a spoken answer is worth: every row of data/consent.csv, and what must hold for any answer at all."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicekit.consent import verdict, words
from voicekit.models import data_path

ROWS = list(csv.DictReader(data_path("consent.csv").open(newline="", encoding="utf-8")))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['language']}: {row['answer'] or '(silence)'}")
def test_each_answer_of_the_table_gets_its_verdict(row: dict[str, str]) -> None:
    assert verdict(row["answer"], row["language"]) == row["verdict"]


def test_the_table_is_large_enough_and_has_both_languages() -> None:
    assert len(ROWS) >= 60
    for language in ("en", "de"):
        assert {row["verdict"] for row in ROWS if row["language"] == language} == {"yes", "no", "neither"}


CANCEL, BOOK = "Shall I cancel your appointment on Friday at ten?", "Shall I book Thursday at two?"
ABSAGEN = "Soll ich Ihren Termin am Freitag um zehn absagen?"


@pytest.mark.parametrize(
    ("question", "answer", "right"),
    [
        (CANCEL, "Yes, cancel that.", "yes"),
        (CANCEL, "Yes, please cancel it.", "yes"),
        (CANCEL, "Cancel that.", "neither"),  # the appointment, or what was just said?
        (CANCEL, "No, don't cancel that.", "no"),
        (CANCEL, "Yes, no, cancel that, no.", "no"),
        (CANCEL, "Yes, book it.", "neither"),  # a yes to something else
        (BOOK, "Yes, book it.", "yes"),
        (BOOK, "Yes, cancel that.", "no"),
        (BOOK, "Cancel that.", "no"),
        ("Shall I book Thursday, or cancel it all?", "Yes, cancel that.", "no"),
        ("", "Yes, cancel that.", "no"),
        (f"You can cancel up to a day before. {BOOK}", "Okay, cancel that.", "no"),  # not what was asked
        (f"It takes an hour or two. {CANCEL}", "Yes, cancel that.", "yes"),
        (ABSAGEN, "Ja, sagen Sie ihn ab.", "yes"),
        (ABSAGEN, "Ja, bitte absagen.", "yes"),
        (ABSAGEN, "Nicht absagen.", "no"),
        (ABSAGEN, "Ja, buchen Sie das.", "neither"),
        (ABSAGEN, "Bitte buchen Sie das.", "neither"),
        ("Shall I cancel your appointment on Dec. 5 at 10 a.m. in Bonn?", "Okay, cancel that.", "yes"),
        ("Shall I cancel your appointment with Dr. Vogel?", "Okay, cancel that.", "yes"),
        ("You can cancel until 10 a.m. Shall I book Thursday?", "Okay, cancel that.", "no"),
        ("you can cancel until 10 a.m. shall i book thursday?", "Okay, cancel that.", "no"),
    ],
)
def test_an_answer_may_repeat_the_question(question: str, answer: str, right: str) -> None:
    assert verdict(answer, "de" if question == ABSAGEN else "en", question) == right


@given(st.sampled_from(["en", "de"]), st.text(max_size=40), st.text(max_size=40), st.data())
def test_a_refusal_anywhere_is_never_taken_for_consent(
    language: str, before: str, after: str, data: st.DataObject
) -> None:
    refusal = data.draw(st.sampled_from(words(language)["no"]))
    assert verdict(f"{before} {refusal} {after}", language) != "yes"
    assert verdict(f"{before} {refusal} {after}", language, BOOK if language == "en" else ABSAGEN) != "yes"


@given(st.text(max_size=60))
def test_an_unknown_language_consents_to_nothing(answer: str) -> None:
    assert verdict(answer, "xx") == "neither"
