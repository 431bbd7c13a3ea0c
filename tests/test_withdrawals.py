"""Which words take something back, in which language, and what."""

from __future__ import annotations

import pytest

from voicekit.calls import withdraws


@pytest.mark.parametrize(
    ("text", "language", "what"),
    [
        ("Never mind. What time do you close?", "en", "all"),
        ("NEVER  MIND", "en", "all"),
        ("Don\u2019t do that!", "en", "all"),
        ("never", "en", ""),
        ("I never minded the wait.", "en", ""),
        ("I have forgotten about that.", "en", ""),
        ("I don't bookmark pages.", "en", ""),
        ("Schon gut, vergessen Sie es.", "de", "all"),
        ("Schon gut, vergessen Sie es.", "en", ""),
        ("Never mind.", "de", ""),
        ("Er ist jedoch nichtig.", "de", ""),
        ("Cancel my booking.", "en", "orders"),
        ("Never mind, cancel my booking.", "en", "all"),
        ("Please cancel my appointment on Friday at ten.", "en", ""),
        ("Bitte die Buchung stornieren.", "de", "orders"),
        ("", "en", ""),
    ],
)
def test_words_count_whole_and_in_their_language(text: str, language: str, what: str) -> None:
    assert withdraws(text, language) == what
