"""The check of notebook 09: which tools of a list to hold back."""

from __future__ import annotations

from collections.abc import Collection

from voicekit.lessons import catalogue
from voicekit.lessons.findings import Findings

TO_FIND = 4  # of five; the rules find three of them, and raise one false alarm


def review(held: Collection[str]) -> Findings:
    """Notebook 09: of the ten tools of `catalogue.exercise`, are the right ones held back? Four of the five will do."""
    listed = catalogue.exercise()
    if isinstance(held, str) or not isinstance(held, Collection) or not all(isinstance(name, str) for name in held):
        return Findings((f"a list of names, such as ['track_parcel']; {held!r} is none.",))
    findings = [f"a name of the list instead of {name!r}." for name in held if name not in listed]
    hold = {name: hint for name, (_, bad, hint) in listed.items() if bad}
    alarms = {name: hint for name, (_, bad, hint) in listed.items() if not bad and name in held}
    findings += [f"letting {name} through: {hint}." for name, hint in alarms.items()]
    missed = [hint for name, hint in hold.items() if name not in held]
    if len(hold) - len(missed) < TO_FIND:
        findings.append(f"{TO_FIND} of the {len(hold)} that are not harmless; you have {len(hold) - len(missed)}.")
        findings += [f"a look at this: {hint}." for hint in missed]
    return Findings(tuple(findings))
