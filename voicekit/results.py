"""What a tool answers: a small dict that says how it went, in one sentence, and what may come next.

Every result has `status` (one of `STATUSES`), `summary` (what can be said aloud) and `next_hint` (for the model, may be
""). Every status but "ok" also has `retryable` (could the very same call do better?) and `reason` (a code). Further
keys carry machine values. An empty answer ({} or None) makes a model call again with variations, or invent something
(Google's migration page for Gemini 3.8 Live, September 2026), so none ever reaches it: every returned value goes
through `as_result`.
"""

from __future__ import annotations

import json
from typing import Any, Literal

Result = dict[str, Any]

STATUSES = ("ok", "no_results", "invalid_argument", "failed", "unknown", "cancelled", "needs_consent")
WENT_WRONG = "Something went wrong."


def ok(summary: str, hint: str = "", **data: Any) -> Result:
    """It worked: `summary` in one sentence, `data` as machine values."""
    return _result("ok", summary, hint, {}, data)


def no_results(summary: str, *, retryable: bool, reason: str, hint: str = "", **data: Any) -> Result:
    """It worked and found nothing. `retryable=True` only if trying once more, as `hint` says, can help."""
    return _result("no_results", summary, hint, {"retryable": retryable, "reason": reason}, data)


def invalid_argument(summary: str, *, reason: str, valid_options: list[str], hint: str = "") -> Result:
    """The call was not run: the same one again is useless, one with corrected arguments is not."""
    hint = hint or "Correct the call once, or ask the caller."
    return _result(
        "invalid_argument", summary, hint, {"retryable": False, "reason": reason}, {"valid_options": valid_options}
    )


def failed(
    summary: str = WENT_WRONG, *, reason: str = "error", retryable: bool = False, hint: str = "", **data: Any
) -> Result:
    """It did not work, and nothing was changed."""
    return _result("failed", summary, hint, {"retryable": retryable, "reason": reason}, data)


def unknown(summary: str = WENT_WRONG, *, reason: str, retryable: bool = False, hint: str = "", **data: Any) -> Result:
    """Nobody knows whether it worked: the answer was lost, or has not come yet."""
    hint = hint or "It may have happened. Say so; do not repeat it before somebody has looked."
    return _result("unknown", summary, hint, {"retryable": retryable, "reason": reason}, data)


def cancelled(summary: str = "That was cancelled.", *, reason: str = "cancelled", **data: Any) -> Result:
    """It was called off before it changed anything."""
    return _result("cancelled", summary, "", {"retryable": True, "reason": reason}, data)


def needs_consent(question: str, *, reason: str = "needs_consent", **data: Any) -> Result:
    """It was not run: first the caller has to hear `question` and say yes to it."""
    hint = "Nothing has been done. Ask the caller exactly this; call again, with the same arguments, after their yes."
    return _result("needs_consent", question, hint, {"retryable": True, "reason": reason}, data)


def problem(value: Any) -> Literal["empty", "wrong_shape"] | None:
    """What keeps a returned value from being a result; None if it is one. Anything that is not JSON has no shape."""
    if value is None or (isinstance(value, (dict, str, list, tuple)) and not value):
        return "empty"
    if not isinstance(value, dict) or value.get("status") not in STATUSES:
        return "wrong_shape"
    if not isinstance(value.get("summary"), str) or not value["summary"].strip():
        return "wrong_shape"
    ending = isinstance(value.get("retryable"), bool) and isinstance(value.get("reason"), str) and value["reason"]
    if value["status"] != "ok" and not ending:
        return "wrong_shape"
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return "wrong_shape"
    return None


def as_result(value: Any, summary: str = WENT_WRONG) -> Result:
    """Return a copy of `value` if it is a result, otherwise a failed one that says `summary`, with the `problem`."""
    if reason := problem(value):
        return failed(summary, reason=reason, hint="The tool is at fault, not the arguments. Do not call it again.")
    copy: Result = json.loads(json.dumps(value))
    copy.setdefault("next_hint", "")
    return copy


def _result(status: str, summary: str, hint: str, ending: dict[str, Any], data: dict[str, Any]) -> Result:
    result: Result = {"status": status, "summary": summary, "next_hint": hint, **ending}
    if taken := sorted(set(result) & set(data)):
        raise ValueError(f"a result has {', '.join(taken)} already; give the data another name")
    return result | data
