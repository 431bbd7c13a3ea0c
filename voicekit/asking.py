"""Whether the caller has agreed to a call: what they were asked and heard, what they said to it, and what waits for it.

Consent without a screen is a recognition result, so a yes counts only if it is plain (consent.py), was begun after the
question had been heard to its end, and the question named this very call. Who asked, the model or the application,
makes no difference. Whatever else is said leaves the question open or closes it with no; silence closes it too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from voicekit.backend import ToolBackend
from voicekit.calls import Call
from voicekit.consent import Verdict, verdict
from voicekit.conversation import Conversation
from voicekit.gate import CONSENT_SECONDS
from voicekit.journal import Journal
from voicekit.replies import Replies
from voicekit.results import cancelled, needs_consent
from voicekit.sessions.base import NotSupported, SessionError
from voicekit.understanding import named_in_question, question, sentences

# A question that the caller leaves unanswered for this long is answered with no.
HOLD_SECONDS = 30.0
# An answer that is neither yes nor no is followed by the same question once more; after that it counts as no.
ASKS = 2
# A yes may begin on the last sound of the question, which is mostly breath.
OVERLAP_SECONDS = 0.2
# "Shall I cancel it, or keep it?" can not be answered with yes.
ALTERNATIVES = {"or", "oder"}
# How long a call waits for the words of the utterance that led to it: a transcript may come after the call.
TRANSCRIPT_SECONDS = 2.0


@dataclass(frozen=True)
class Question:
    """A question the caller has heard to its end. Times in session seconds."""

    text: str
    begun: float
    ended: float


@dataclass(frozen=True)
class Answer:
    """What the caller said to it; `question` is None if nothing had been asked, or not to its end."""

    text: str
    verdict: Verdict
    question: Question | None
    at: float


@dataclass(eq=False)
class _Held:
    """A call that waits for the answer to a question of the application's."""

    words: set[str]
    named: set[str]  # what is done, and to what: a question without these words asks for something else
    since: float
    begun: bool = False  # some of the question was generated and played
    heard: Question | None = None  # of the questions about it the latest, once it was heard to its end
    asked_at: float | None = None  # when the first that was heard to its end began


class Asking:
    """Looks after consent in one session; feed it what the caller says with `heard`."""

    def __init__(
        self,
        conversation: Conversation,
        replies: Replies,
        backend: ToolBackend,
        calls: Mapping[str, Call],
        journal: Journal,
        now: Callable[[], float],
        language: str = "en",
    ) -> None:
        self.conversation, self.session, self.replies = conversation, conversation.session, replies
        self.backend, self.calls, self.journal, self.now, self.language = backend, calls, journal, now, language
        self._held: dict[str, _Held] = {}
        self._question: Question | None = None  # the latest thing the agent was heard to say, if it was a question
        self._void_before = float("-inf")  # questions begun before this ask nothing any more
        self._answer: Answer | None = None
        self._so_far = ""  # of the utterance that is being transcribed
        self._began: float | None = None  # when the caller began it
        self._transcript_due = False
        self._unnoticed: Call | None = None  # runs already; what the caller said to it has no words yet
        journal.listen(self._on_journal)

    # What is said

    def heard(self, piece: str, *, final: bool) -> None:
        """What the provider understood of an utterance. An answer has to be the whole of it."""
        if self._began is None:
            self._began = self.now()
        self._so_far = piece if final else self._so_far + piece
        if not final:
            return
        answer = self._judge(self._so_far)
        self._so_far, self._began, self._transcript_due = "", None, False
        if answer.verdict != "neither":
            self._question = None  # answered
        if answer.verdict == "no" and answer.question is not None and not self._held:
            asked = answer.question
            self._decide("declined", None, f'"{asked.text}" "{answer.text}"', asked_at=asked.begun)
        self._answer = answer
        if self._unnoticed is not None:
            self._agreed_to(self._unnoticed)
            self._unnoticed = None
        self.conversation.wake()
        for call in [each for each in self.calls.values() if each.held is not None]:
            self._take_answer(call, answer)

    def forget(self) -> None:
        """What was wanted is off: a yes given before is good for nothing any more, nor is one to an earlier question,
        also if that is still being said."""
        if (asked := self._question) is not None and not self._held:
            self._decide("declined", None, f'"{asked.text}" was answered by a withdrawal', asked_at=asked.begun)
        self._question = self._answer = None
        self._void_before = self.now() if self._began is None else self._began
        self.backend.gate.revoke()

    def _judge(self, text: str) -> Answer:
        began = self.now() if self._began is None else self._began
        asked = self._question
        in_time = asked is not None and began >= asked.ended - OVERLAP_SECONDS
        return Answer(text.strip(), verdict(text, self.language), asked if in_time else None, self.now())

    def _take_answer(self, call: Call, answer: Answer) -> None:
        held = self._held[call.id]
        said = f'the caller said "{answer.text}"'
        if answer.verdict == "no":  # a refusal counts whenever it comes
            self.release(call, "no", said)
            return
        if held.heard is not None and held.heard == answer.question:
            self.release(call, answer.verdict, said)
            return
        if answer.verdict == "yes":
            self._decide(
                "not_yet", call.id, f'"{answer.text}" came before the question was heard; it is no answer to it'
            )
        if held.begun:  # it was talked over, or lost among other things: it will not come again by itself
            self.release(call, "neither", f"{said}, and had not heard the question to its end")

    def _on_journal(self, event: dict[str, Any]) -> None:
        match event["lane"], event["kind"]:
            case "session", "speech_started":
                self._began = event["t"] if self._began is None else self._began
            case "session", "speech_stopped":
                self._transcript_due = True
            case "heard", "played":
                self._played(event["text"] or "", event["detail"])

    def _played(self, text: str, detail: Mapping[str, Any]) -> None:
        """Of what was heard the last sentence counts, if it is a question; what was cut off asks nothing."""
        last = re.split(r"(?<=[.!?])\s+", text.strip())[-1]
        is_whole = not str(detail["unheard"]).strip() and detail["start"] >= self._void_before
        is_question = last.endswith("?") and is_whole and not _words(last) & ALTERNATIVES
        self._question = Question(last, detail["start"], detail["stop"]) if is_question else None
        for held in self._held.values():
            everything = _words(f"{text} {detail['unheard']}")
            held.begun |= len(held.words & everything) * 2 >= len(held.words)
            words = _words(self._question.text) if self._question else set()
            # A live model asks in its own words: half of ours will do, but it has to name this call.
            if held.named <= words and len(held.words & words) * 2 >= len(held.words):
                held.heard = self._question
                held.asked_at = held.asked_at or detail["start"]

    # A call that needs a yes

    async def has_agreed(self, call: Call) -> bool:
        """Whether the caller has just said yes to a question that named this call; their consent is then granted.

        The question has to hold every word of the application's own one, so that a yes to "Shall I book it?" opens
        nothing else. A yes is good for one call.
        """
        try:
            await self.conversation.until(lambda: not self._transcript_due, TRANSCRIPT_SECONDS, "a transcript")
        except TimeoutError:
            self._decide(
                "no_transcript", call.id, f"what the caller said last had no words after {TRANSCRIPT_SECONDS:g} s"
            )
            return False
        if self._agreed_to(call) is None:
            return False
        self._answer = self._question = None
        self.backend.gate.grant(call.name, call.arguments, at=self.now())
        return True

    def notice(self, call: Call) -> None:
        """Note, once their words are there, whether the caller agreed to a call that needs no yes; nothing waits."""
        if self._transcript_due:
            self._unnoticed = call
        else:
            self._agreed_to(call)

    def _agreed_to(self, call: Call) -> Question | None:
        """The question about this call that the caller's latest utterance was a plain yes to; it is written down."""
        # A model that begins to act has taken the utterance for complete, whether or not its transcript is closed.
        answer = self._judge(self._so_far) if self._so_far else self._answer
        if answer is None or answer.verdict != "yes" or answer.question is None:
            return None
        asked = answer.question
        fits = _words(question(call.name, call.arguments, self.language)) <= _words(asked.text)
        if not fits or self.now() - answer.at > CONSENT_SECONDS:
            return None
        self._decide("consented", call.id, f'"{asked.text}" "{answer.text}"', asked_at=asked.begun)
        return asked

    async def confirm(self, call: Call) -> dict[str, Any] | None:
        """Ask the caller and wait. Returns None when they said yes, otherwise the result of a call that never ran."""
        asked = question(call.name, call.arguments, self.language)
        if self.session.capabilities.delegates:
            result = needs_consent(asked)  # who works elsewhere says the question, and comes again after the yes
            self.backend.reject(call.id, result)
            self._decide("hold", call.id, f"not begun before the caller agrees: {asked}")
            return result
        named = named_in_question(call.name, call.arguments, self.language)
        held = _Held(_words(asked), named, self.now())
        self._held[call.id] = held
        self._decide("hold", call.id, f"not begun before the caller agrees: {asked}")
        try:
            for number in range(1, ASKS + 1):
                held.begun, held.heard = False, None  # the question before has had its answer
                answer = await self._answer_to(call, asked, number)
                if answer != "neither":
                    break
        finally:
            call.held = None
            del self._held[call.id]
        if answer == "yes":
            self.backend.gate.grant(call.name, call.arguments, at=self.now())
            return None
        self.backend.cancel(call.id)
        return cancelled(sentences(self.language)["not_confirmed"], reason="not_confirmed")

    async def _answer_to(self, call: Call, asked: str, number: int) -> Verdict:
        call.held = asyncio.get_running_loop().create_future()
        asking = asyncio.get_running_loop().create_task(
            self._ask(call, asked, number), name=f"question about {call.id}"
        )
        asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen: asyncio need not warn
        try:
            waiting: list[asyncio.Future[Any]] = [asking, call.held]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not call.held.done():
                asking.result()
            async with asyncio.timeout(HOLD_SECONDS):
                answer = await call.held
        except TimeoutError:
            return self._give_up(call, f"no answer within {HOLD_SECONDS:g} s")
        except (NotSupported, SessionError) as error:
            return self._give_up(call, f"the caller cannot be asked: {error}")
        finally:
            asking.cancel()
        if answer == "neither" and number == ASKS:
            return self._give_up(call, f"no clear answer to {ASKS} questions")
        return answer

    def _give_up(self, call: Call, why: str) -> Verdict:
        self._decide("not_confirmed", call.id, why, asked_at=self._asked_at(call))
        return "no"

    async def _ask(self, call: Call, asked: str, number: int) -> None:
        """Let the model ask, by whatever way it has while a call is open."""
        can = self.session.capabilities
        message = {"status": "pending", "say": asked, "summary": asked, "next_hint": "Not done yet. Ask the caller."}
        if can.can_schedule and self.replies.behavior == "non_blocking":
            await self.session.send_result(call.id, message, delivery="when_idle", final=False)
            return
        if number == 1 and (can.implied_reply or can.waits_for_result):  # an open call would keep it from asking
            call.answered = call.pending = True
            await self.session.send_result(call.id, message)
            self.backend.deliver(call.id)
            about: dict[str, Any] = {"tool": call.name, "delivery": "when_idle", "final": True}
            self.journal.add("tool", "answered", call_id=call.id, text=asked, **about)
        else:
            await self.session.tell(f'Do not say that it is done. Ask the caller: "{asked}"')
        if not can.implied_reply:
            await self.replies.ask("to ask the caller", call.id)

    # The end of waiting

    def let_go(self, why: str) -> None:
        """Give up waiting: no answer will come any more."""
        for call in self.calls.values():
            self.release(call, "no", why)

    @property
    def waits_for_caller(self) -> bool:
        """Whether the caller has heard a question and it is theirs to answer."""
        return any(held.heard is not None for held in self._held.values())

    def release(self, call: Call, answer: Verdict, why: str) -> None:
        """Answer a call that waits; nothing happens to one that does not."""
        if call.held is not None and not call.held.done():
            kinds: dict[Verdict, str] = {"yes": "confirmed", "no": "refused", "neither": "unclear"}
            self._decide(kinds[answer], call.id, why, asked_at=self._asked_at(call))
            call.held.set_result(answer)

    def _asked_at(self, call: Call) -> float:
        held = self._held[call.id]
        return held.since if held.asked_at is None else held.asked_at

    def _decide(self, kind: str, call_id: str | None, text: str, **detail: Any) -> None:
        self.journal.add("decision", kind, call_id=call_id, text=text, **detail)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))
