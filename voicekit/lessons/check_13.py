"""The check of notebook 13: which of two claims does the model of a run follow, if the run can tell at all?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from voicekit.caller import Line
from voicekit.experiment import Scenario
from voicekit.lessons.findings import Findings
from voicekit.lessons.two_pages import unstated
from voicekit.runs import Run

OLDER, NEWER = "gemini-2.5-flash-native-audio-preview-12-2025", "gemini-3.8-live"
WAITS = Scenario("waits", tools={"get_order_status": 6.0}, lines=(Line("order_status", at=0.5),))
ASKS = dataclasses.replace(WAITS, lines=(*WAITS.lines, Line("opening_hours", after="tool_starts", seconds=0.8)))
ANSWERS = ("blocking", "non_blocking", None)
KEPT = ("model", "target", "clock", "seed", "versions", "started", "provenance")


@dataclass(frozen=True)
class Sealed:
    """A conversation with a model that follows `claim`; `decides`: under the other claim it would have been another.

    hint   what to look at, if the function says something else
    """

    what: str
    model: str
    scenario: Scenario
    claim: str
    decides: bool
    hint: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def answer(self) -> str | None:
        return self.claim if self.decides else None


CASES = (
    Sealed("a question while the tool runs", NEWER, ASKS, "non_blocking", True,
           "her question was answered while the call was open"),
    Sealed("the same question, another service", NEWER, ASKS, "blocking", True,
           "her question was answered after the call had been withdrawn, and the order never came"),
    Sealed("an announcement, then a question", OLDER, ASKS, "blocking", True,
           "what is said before she asks is no answer to her", (("preamble", "action"),)),
    Sealed("a question and a slow tool", OLDER, ASKS, "non_blocking", True,
           "her question was answered while the call was open", (("tool_seconds", 7.0),)),
    Sealed("a caller who waits politely", OLDER, WAITS, "non_blocking", False,
           "nobody asked anything while the call was open"),
    Sealed("a question and a quick tool", OLDER, ASKS, "blocking", False,
           "the call was over before she asked", (("tool_seconds", 0.4),)),
)  # fmt: skip


def which_claim(function: Callable[[Run], str | None]) -> Findings:
    """Notebook 13: does `function(run)` say which default the model of a run follows, in six sealed conversations?

    Its answers are "blocking", "non_blocking", or None for a run that would be the same under either claim. The
    application left `behavior` out. The models are always simulated, and what the run was told about them is taken out
    of `run.meta`: a live run does not know it either.
    """
    findings: list[str] = []
    for number, case in enumerate(CASES):
        what = f"conversation {number + 1} ({case.what}, {case.model})"
        try:
            said = function(sealed(number))
        except Exception as error:
            mend = "; a live run does not say what its model follows either, look at what happened in it"
            known = mend if isinstance(error, KeyError) else ""
            return Findings((*findings, f"{what}: an answer; it raised {type(error).__name__}: {error}{known}."))
        if said not in ANSWERS:
            findings.append(f'{what}: "blocking", "non_blocking" or None; the function says {said!r}.')
        elif said != case.answer:
            findings.append(f"{what}: {case.answer!r}, not {said!r}; {case.hint} (simulated).")
    return Findings(tuple(findings))


def sealed(number: int) -> Run:
    """The run of a case as the function gets it: without what tells how it was made."""
    run = _held(number)
    meta = {key: value for key, value in run.meta.items() if key in KEPT}
    return dataclasses.replace(run, meta={"scenario": "sealed", **meta})


@cache
def _held(number: int) -> Run:
    """The conversation of a case. Kept, because a check is run again and again."""
    case = CASES[number]
    claims = {"default_behavior": case.claim}
    return unstated(case.scenario, model=case.model, claims=claims, **dict(case.options))
