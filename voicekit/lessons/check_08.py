"""The check of notebook 08: which tools a voice agent may use without asking, after asking, and never."""

from __future__ import annotations

from collections.abc import Collection

from voicekit.lessons.consent_lab import ATTENTION, Attention, eight_tools, let_through, weigh
from voicekit.lessons.findings import Findings

QUESTIONS = 0.7  # in one conversation, in the mean
EUROS = 10.0  # lost by unwanted calls in 100 conversations
SENT_AWAY = 6.0  # of 100 conversations


def consent_lists(
    without_asking: Collection[str],
    never_by_voice: Collection[str],
    questions: float = QUESTIONS,
    euros: float = EUROS,
    sent_away: float = SENT_AWAY,
    attention: Attention = ATTENTION,
) -> Findings:
    """Notebook 08: are the eight tools so divided that the risk, the questions and the refusals are bearable?

    What is on neither list is asked about. `questions` in one conversation, `euros` lost by unwanted calls and
    `sent_away` callers in 100 conversations are the limits. The figures of the tools are made up (`eight_tools`).
    """
    known = [tool.name for tool in eight_tools()]
    for label, names in (("without_asking", without_asking), ("never_by_voice", never_by_voice)):
        if isinstance(names, str) or (strange := [name for name in names if name not in known]):
            wrong = names if isinstance(names, str) else strange[0]
            return Findings((f"{label} as a set of names from {', '.join(known)}; {wrong!r} is none.",))
    if both := [name for name in without_asking if name in never_by_voice]:
        return Findings((f"one list for {both[0]}; it is on two.",))
    found, findings = weigh(without_asking, never_by_voice, attention), []
    slips = 100 * let_through(max(1.0, found.questions), attention)
    if found.questions > questions:
        findings.append(
            f"fewer questions: {found.questions:.2f} in a conversation, the budget is {questions:g}; the last of them "
            f"lets {slips:.0f} % of the unwanted calls pass (calculated)."
        )
    if found.euros > euros:
        worst = _worst(without_asking, never_by_voice, slips / 100)
        findings.append(
            f"less risk: {found.euros:.2f} euros in 100 conversations (calculated), at most {euros:g}; "
            f"most of it by {worst}."
        )
    if found.sent_away > sent_away:
        findings.append(
            f"more that can be done by voice: {found.sent_away:g} of 100 conversations send the caller elsewhere "
            f"(calculated), at most {sent_away:g}."
        )
    return Findings(tuple(findings))


def _worst(free: Collection[str], away: Collection[str], slips: float) -> str:
    """The tool that loses most."""
    open_tools = [tool for tool in eight_tools() if tool.name not in away]
    return max(open_tools, key=lambda t: t.cost * t.per_conversation * (1.0 if t.name in free else slips)).name
