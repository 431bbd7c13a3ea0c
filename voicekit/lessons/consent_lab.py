"""Experiments about asking for consent by voice: how often an answer is misheard, and what a yes is worth.

Everything here works on texts and is drawn with a seed: thousands of callers in a second, where a simulated
conversation gives one. The rates are assumptions with their sources (data/confusions.csv), the callers are simple. What
can be learned from it is how the numbers move with the way of asking, not how large they are with real callers.
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from voicekit.asking import ASKS
from voicekit.consent import Verdict, verdict
from voicekit.models import data_path
from voicekit.simulator.voice import Voice

if TYPE_CHECKING:
    import pandas as pd

CALLER_SECONDS = 0.6  # until a caller answers a question; as in the kit's scenarios
# Of ten callers who were asked to say a certain word so many say it, the others just say yes. Of ten who refuse so many
# repeat the word ("don't cancel it"), the others just say no. Both assumed.
SAY_THE_WORD, REFUSE_WITH_IT = 8, 1


# Mishearing


@cache
def confusions(language: str) -> dict[str, tuple[tuple[str, float], ...]]:
    """By word said: (word heard, rate); "" for a word that is lost, "*" for every word that has no row of its own.

    From data/confusions.csv, which names the source of each rate. Raises ValueError for a language without rows.
    """
    found: dict[str, tuple[tuple[str, float], ...]] = {}
    with data_path("confusions.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["language"] == language:
                found[row["said"]] = (*found.get(row["said"], ()), (row["heard"], float(row["rate"])))
    if not found:
        raise ValueError(f"data/confusions.csv has no words in {language!r}")
    return found


def mishear(text: str, language: str, random_: random.Random) -> str:
    """What a recogniser makes of `text`: each word is drawn for itself. The text itself if nothing was misheard."""
    table = confusions(language)
    said = re.findall(r"[\w']+", text.lower().replace("\u2019", "'"))
    heard = [_heard(word, table.get(word, table["*"]), random_.random()) for word in said]
    return text if heard == said else " ".join(word for word in heard if word)


def _heard(word: str, others: Iterable[tuple[str, float]], drawn: float) -> str:
    for other, rate in others:
        if drawn < rate:
            return other
        drawn -= rate
    return word


# Ways of asking


@dataclass(frozen=True)
class Way:
    """A way of asking for consent.

    yes, no   what callers say who want it and who do not; one of them is drawn for each question
    judge     what an answer is worth
    language  "en" or "de": which of the words of data/confusions.csv are misheard
    times     so many of its questions must be answered with yes
    """

    name: str
    question: str
    yes: tuple[str, ...]
    no: tuple[str, ...]
    judge: Callable[[str], Verdict]
    language: str
    times: int = 1


def ways(language: str) -> tuple[Way, ...]:
    """Five ways of asking whether an appointment is to be cancelled. Raises ValueError but for "en" and "de"."""
    if language not in TEXTS:
        raise ValueError(f"language is one of {', '.join(TEXTS)}, not {language!r}")
    ask, yes, no, say_it, keyword, not_it, which, day, not_then = TEXTS[language]
    plain = _judged(lambda answer: verdict(answer, language))
    by_word = _judged(lambda answer: names(keyword, answer, language))
    by_day = _judged(lambda answer: names(day, answer, language))
    own = answers(language)
    said, refused = (yes,) * (10 - SAY_THE_WORD), (no,) * (10 - REFUSE_WITH_IT)
    return (
        Way("yes or no", ask, (yes,), (no,), plain, language),
        Way("yes or no, in their words", ask, own["yes"], own["no"], plain, language),
        Way("asked twice", ask, (yes,), (no,), plain, language, times=2),
        Way("a keyword", f"{ask} {say_it}", said + (keyword,) * SAY_THE_WORD, refused + (not_it,) * REFUSE_WITH_IT,
            by_word, language),
        Way("repeat a detail", which, (day,), refused + (not_then,) * REFUSE_WITH_IT, by_day, language),
    )  # fmt: skip


# The question; yes; no; how a keyword is asked for, the keyword, a refusal that repeats it; how a detail is asked for,
# the detail, a refusal that repeats it.
TEXTS = {
    "en": (
        "Shall I cancel your appointment on Friday at ten?", "Yes.", "No.",
        'Say "cancel it", or no.', "Cancel it.", "Don't cancel it.",
        "On which day shall I cancel your appointment?", "Friday.", "Not on Friday.",
    ),
    "de": (
        "Soll ich Ihren Termin am Freitag um zehn absagen?", "Ja.", "Nein.",
        'Sagen Sie "absagen" oder nein.', "Absagen.", "Nicht absagen.",
        "An welchem Tag soll ich Ihren Termin absagen?", "Freitag.", "Nicht am Freitag.",
    ),
}  # fmt: skip


def names(wanted: str, answer: str, language: str) -> Verdict:
    """Judge an answer that has to contain `wanted`: a refusal still wins, and a mere yes leaves the question open."""
    if verdict(answer, language) == "no":
        return "no"
    return "yes" if re.search(rf"\b{re.escape(wanted.lower().rstrip('.'))}\b", answer.lower()) else "neither"


@cache
def answers(language: str) -> dict[Verdict, tuple[str, ...]]:
    """The answers of data/consent.csv by their right verdict."""
    found: dict[Verdict, tuple[str, ...]] = {"yes": (), "no": (), "neither": ()}
    with data_path("consent.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["language"] == language:
                found[row["verdict"]] = (*found[row["verdict"]], row["answer"])  # type: ignore[index]
    return found


def error_rates(asked: Iterable[Way], n: int = 10_000, seed: int = 0, agent_seconds: float = 1.7) -> pd.DataFrame:
    """Both errors of each way of asking, with `n` callers who want it and `n` who do not: one draw with `seed`.

    A question without a clear answer is asked once more, as the application does. Columns, with their counts:

        yes not taken    callers who wanted it and did not get it
        no taken as yes  callers who did not want it and got it
        turns, seconds   what it cost one who wanted it, in the mean: turns of both sides, and the time from the first
                         question to the decision. Speech at the pace of the kit's recordings (`voice.PACE`) + the
                         caller's `CALLER_SECONDS` + `agent_seconds` until the agent has understood
    """
    import pandas as pd

    rows = []
    for way in asked:
        draw = random.Random(f"{seed}/{way.language}/{way.name}")
        wanted = [_ask(way, True, draw) for _ in range(n)]
        unwanted = [_ask(way, False, draw) for _ in range(n)]
        lost, wrong = sum(not taken for taken, _ in wanted), sum(taken for taken, _ in unwanted)
        questions = sum(number for _, number in wanted) / n
        voice = Voice(way.language)
        answer = sum(_seconds(voice, each) for each in way.yes) / len(way.yes)
        each_seconds = _seconds(voice, way.question) + CALLER_SECONDS + answer + agent_seconds
        rows.append(
            {
                "way": way.name, "yes not taken": f"{lost} of {n}", "no taken as yes": f"{wrong} of {n}",
                "rate, yes": lost / n, "rate, no": wrong / n, "turns": round(2 * questions, 2),
                "seconds": round(questions * each_seconds, 2),
            }
        )  # fmt: skip
    return pd.DataFrame(rows).set_index("way")


def _ask(way: Way, wants: bool, draw: random.Random) -> tuple[bool, int]:
    """Ask one caller. Returns whether their answer was taken as consent, and how many questions it took."""
    questions = 0
    for _ in range(way.times):
        judged: Verdict = "neither"
        for _ in range(ASKS):
            questions += 1
            judged = way.judge(mishear(draw.choice(way.yes if wants else way.no), way.language, draw))
            if judged != "neither":
                break
        if judged != "yes":
            return False, questions
    return True, questions


def _judged(judge: Callable[[str], Verdict]) -> Callable[[str], Verdict]:
    return cache(judge)  # the same few answers come thousands of times


def _seconds(voice: Voice, text: str) -> float:
    return len(voice.say(text)) / 24_000


# Fatigue


@dataclass(frozen=True)
class Attention:
    """How likely a caller listens to the n-th question of one conversation: it falls fast at first, then less and less.

    The shape is that of habituation: a decrease to an asymptote, often exponential (Rankin et al. 2009), with the
    largest drop at the second exposure (Anderson et al. 2015, security warnings in the fMRI). There are no published
    figures for spoken questions; these are of another medium or ours:

    first   listens to the first question. Assumed
    left    what is left, after each question, of the attention above the floor. Assumed
    floor   listens however often asked. 0.55: the share of risky permission warnings that were heeded on telephones
            at the end of a field study, if they always looked the same (0.76 if they did not); Vance et al. 2018
    """

    first: float = 0.95
    left: float = 0.5
    floor: float = 0.55

    def at(self, number: float) -> float:
        """The probability that question `number` (from 1 on) is listened to."""
        return self.floor + (self.first - self.floor) * float(self.left ** (number - 1))


ATTENTION = Attention()


def let_through(number: float, attention: Attention = ATTENTION, reflex: float = 0.95) -> float:
    """The probability that a caller who does not want it says yes to question `number`.

    Who listens says no; who does not says yes with probability `reflex` (assumed).
    """
    return (1 - attention.at(number)) * reflex


def worth_of_yes(
    questions: int = 6, attention: Attention = ATTENTION, reflex: float = 0.95, wanted: float = 0.9
) -> pd.DataFrame:
    """What the yes to each of so many questions in one conversation is worth.

    reflex   who does not listen to a question says yes to it with this probability (see `let_through`). Assumed
    wanted   of 100 calls that a model proposes, so many (as a share) are what the caller wants. Assumed

    Columns: listens (probability), stopped (of the unwanted calls, the share that the question stops), caller wants it
    (probability, given a yes: `wanted` is what it would be without a question).
    """
    import pandas as pd

    rows = []
    for number in range(1, questions + 1):
        slips = let_through(number, attention, reflex)
        listens = attention.at(number)
        agrees = listens + (1 - listens) * reflex
        posterior = wanted * agrees / (wanted * agrees + (1 - wanted) * slips)
        row = {"listens": listens, "stopped": 1 - slips, "caller wants it": posterior}
        rows.append({"question": number, **{name: round(value, 3) for name, value in row.items()}})
    return pd.DataFrame(rows).set_index("question")


# Which tools to ask about


@dataclass(frozen=True)
class ToolAtRisk:
    """A tool of the exercise; the figures are made up for it (data/consent_tools.csv).

    cost              euros that one unwanted call costs
    per_conversation  how often it is called in one
    """

    name: str
    effect: str
    wrong_call: str
    cost: float
    per_conversation: float


@dataclass(frozen=True)
class Weighed:
    """What a division into three lists leads to.

    questions    asked in one conversation, in the mean
    euros        lost by unwanted calls in 100 conversations
    sent_away    of 100 conversations, those whose caller has to go to another channel for something
    """

    questions: float
    euros: float
    sent_away: float


@cache
def eight_tools() -> tuple[ToolAtRisk, ...]:
    """The tools of the exercise (data/consent_tools.csv)."""
    with data_path("consent_tools.csv").open(newline="", encoding="utf-8") as file:
        return tuple(
            ToolAtRisk(
                row["tool"], row["effect"], row["wrong_call"], float(row["cost_euros"]), float(row["per_conversation"])
            )
            for row in csv.DictReader(file)
        )


def weigh(
    without_asking: Iterable[str], never: Iterable[str], attention: Attention = ATTENTION, wanted: float = 0.9
) -> Weighed:
    """Weigh a division of `eight_tools`: what is on neither list is asked about.

    Every question is taken to be worth as much as the last one of a conversation. Raises ValueError for an unknown
    tool and for one on both lists.
    """
    free, away = set(without_asking), set(never)
    known = {tool.name for tool in eight_tools()}
    if strange := sorted((free | away) - known):
        raise ValueError(f"unknown tool {strange[0]!r}; known: {', '.join(sorted(known))}")
    if both := sorted(free & away):
        raise ValueError(f"{both[0]} is on both lists; it can be on one")
    asked = [tool for tool in eight_tools() if tool.name not in free | away]
    questions = sum(tool.per_conversation for tool in asked)
    slips = let_through(max(1.0, questions), attention)
    euros = 0.0
    for tool in eight_tools():
        loss = 100 * tool.per_conversation * (1 - wanted) * tool.cost
        euros += 0.0 if tool.name in away else loss if tool.name in free else loss * slips
    sent_away = sum(100 * tool.per_conversation for tool in eight_tools() if tool.name in away)
    return Weighed(round(questions, 3), round(euros, 2), round(sent_away, 2))
