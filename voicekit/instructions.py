"""The instructions a session starts with; a live model reads them as the simulated one does."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import cache

from voicekit.models import data_path
from voicekit.policy import Policy

BASE = {
    "en": "You answer the telephone of a small shop. Speak English, in one or two short sentences. Use the tools for "
    "everything about orders, stock, shipping, weather and appointments; never guess what a tool would say. "
    "Opening hours: nine to six, Monday to Saturday. Returns: within thirty days.",
    "de": "Du gehst bei einem kleinen Laden ans Telefon. Sprich Deutsch, in ein oder zwei kurzen Sätzen. Nutze die "
    "Werkzeuge für alles, was Bestellungen, Bestand, Versand, Wetter und Termine betrifft; rate nie, was ein Werkzeug "
    "sagen würde. Öffnungszeiten: Montag bis Samstag von neun bis achtzehn Uhr. Rückgabe: innerhalb von dreißig Tagen.",
}


@cache
def phrases(kind: str, language: str) -> dict[str, str]:
    """The preambles of a kind ("action", "filler") by tool, "*" for any other, from data/preambles.csv."""
    with data_path("preambles.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind]
    return {row["tool"]: row["text"] for lang in ("en", language) for row in rows if row["language"] == lang}


def preamble_section(policy: Policy, tools: Iterable[str], language: str = "en") -> str:
    """The `# Preambles` section: what to say before a call, when, and when not.

    It follows the layout of OpenAI's prompting guide for realtime models: when to use one, when to skip it, samples.
    """
    if policy.preamble == "none":
        return "# Preambles\nSay nothing before a tool call.\n- any tool: none\n"
    known = phrases(policy.preamble, language)
    lines = [f'- {tool}: "{known.get(tool, known["*"])}"' for tool in tools]
    return "\n".join(
        [
            "# Preambles",
            "Use one before a call that may take noticeable time, when records are checked or when you hand over.",
            "Skip it when the answer is immediate, the caller only confirms or corrects, or the tool is fast.",
            "One short sentence, spoken right before the call. Sample phrases:",
            *lines,
            f'- any tool: "{known["*"]}"',
            "",
        ]
    )


def earlier_section(results: Iterable[tuple[str, str, str]]) -> str:
    """What came after the last call was over, as (tool, arguments as JSON, summary): context, no news to begin with."""
    lines = [f"- {tool} {arguments}: {summary}" for tool, arguments, summary in results]
    if not lines:
        return ""
    advice = "The caller has not heard them. Do not begin with them; they may have changed their mind."
    return "\n".join(["# Results that came after the last call", advice, *lines, ""])


def instructions(
    policy: Policy, tools: Iterable[str], language: str = "en", earlier: Iterable[tuple[str, str, str]] = ()
) -> str:
    """The whole text: the task, the section on preambles, and results nobody could be told in an earlier call."""
    task = f"{BASE.get(language, BASE['en'])}\n\n{preamble_section(policy, tools, language)}"
    section = earlier_section(earlier)
    return f"{task}\n{section}" if section else task
