"""Whether the caller has agreed to a call: what they were asked and heard, what they said to it, and what waits for it.

Consent without a screen is a recognition result, so a yes counts only if it is plain (consent.py), was begun after the
question had been heard to its end, and the question was, word for word, the one about this call. Who asked, the model
or the application, makes no difference. One question is open at a time and one yes is good for one call. Whatever else
is said leaves the question open or closes it with no; silence closes it too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from voicekit.backend import ToolBackend
from voicekit.calls import Call
from voicekit.consent import Verdict, verdict
from voicekit.conversation import Conversation
from voicekit.gate import CONSENT_SECONDS
from voicekit.journal import Journal
from voicekit.metrics import words_of
from voicekit.replies import Replies
from voicekit.results import cancelled, needs_consent
from voicekit.sessions.base import NotSupported, SessionError
from voicekit.understanding import asks, question, sentences

# A question that the caller leaves unanswered for this long is answered with no.
HOLD_SECONDS = 30.0
# An answer that is neither yes nor no is followed by the same question once more; after that it counts as no.
ASKS = 2
# A yes may begin on the last sound of the question, which is mostly breath.
OVERLAP_SECONDS = 0.2
# How long a call waits for the words of the utterance that led to it: a transcript may come after the call.
TRANSCRIPT_SECONDS = 2.0
# Where nobody says that an utterance is over, it is once no further piece of it has come for so long.
PIECES_SECONDS = 0.3


@dataclass(frozen=True)
class Question:
    """What the caller has heard the agent say to its end, and it ended with a question. Times in session seconds."""

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

    asked: str
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
        self._standing: Question | None = None  # what had been asked by then
        self._transcript_due = False
        self._closed: tuple[str, Question | None, float | None] | None = None  # the item closed last, as it was before
        self._over = ""  # why no answer will come any more
        self.one_at_a_time = asyncio.Lock()
        """Held by the call that may be asked about: of two open questions nobody knows which one a yes is to."""
        self.waiting: set[str] = set()
        """Calls whose turn to be asked about has not come yet."""
        self._refused: Counter[str] = Counter()  # questions left to a worker elsewhere, since the last yes
        self._unnoticed: Call | None = None  # runs already; what the caller said to it has no words yet
        journal.listen(self._on_journal)

    # What is said

    def heard(self, piece: str, *, final: bool, item: str | None = None) -> None:
        """What the provider understood of an utterance. An answer has to be the whole of it.

        A transcript that was closed and goes on is judged again, as if it had not been closed (GPT-Live does so).
        """
        if self._began is None:
            self._begin(self.now())
        self._so_far = piece if final else self._so_far + piece
        if not final:
            return
        if self._closed is not None and self._closed[0] == item:
            _, asked, began = self._closed
        else:
            asked, began = self._asked(), self._began
        answer = self._judge(self._so_far, asked, began)
        self._closed = (item, asked, began) if item is not None else None
        self._so_far, self._began, self._transcript_due = "", None, False
        if answer.verdict != "neither" and asked == self._question:
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

    def is_agreed(self, text: str) -> bool:
        """Whether this, as the utterance so far, is a yes to what was asked: "yes, cancel that" takes nothing back."""
        return self._judge(text, self._asked(), self._began).verdict == "yes"

    def forget(self) -> None:
        """What was wanted is off: a yes given before is good for nothing any more, nor is one to an earlier question,
        also if that is still being said."""
        if (asked := self._question) is not None and not self._held:
            self._decide("declined", None, f'"{asked.text}" was answered by a withdrawal', asked_at=asked.begun)
        self._question = self._standing = self._answer = self._closed = None
        self._void_before = self.now() if self._began is None else self._began
        self.backend.gate.revoke()

    def _begin(self, at: float) -> None:
        """The caller begins to speak: what they answer is what they have heard by now, not what is said meanwhile."""
        self._began, self._standing = at, self._question

    def _asked(self) -> Question | None:
        """The question that the utterance so far may be an answer to. One may end on the caller's first sound."""
        latest, began = self._question, self._began
        if latest is not None and (began is None or _is_in_time(latest, began)):
            return latest
        return self._standing if began is not None else None

    def _judge(self, text: str, asked: Question | None, began: float | None) -> Answer:
        in_time = asked is not None and _is_in_time(asked, self.now() if began is None else began)
        heard = asked if in_time else None
        return Answer(text.strip(), verdict(text, self.language, heard.text if heard else ""), heard, self.now())

    def _take_answer(self, call: Call, answer: Answer) -> None:
        held = self._held[call.id]
        said = f'the caller said "{answer.text}"'
        if answer.verdict == "no":  # a refusal counts whenever it comes
            self.release(call, "no", said)
            return
        if held.heard is not None and held.heard == answer.question:
            self._answer = self._closed = None  # used
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
                if self._began is None:
                    self._begin(event["t"])
            case "session", "speech_stopped":
                self._transcript_due = True
            case "heard", "played":
                self._played(event["text"] or "", event["detail"])

    def _played(self, text: str, detail: Mapping[str, Any]) -> None:
        """What was heard counts if it ends with a question; what was cut off asks nothing."""
        if not text.strip():
            return  # nothing of it was heard, so it takes nothing back
        is_whole = not str(detail["unheard"]).strip() and detail["start"] >= self._void_before
        is_question = text.rstrip().endswith("?") and is_whole
        self._question = Question(text.strip(), detail["start"], detail["stop"]) if is_question else None
        for held in self._held.values():
            wanted, everything = words_of(held.asked), words_of(f"{text} {detail['unheard']}")
            held.begun |= len(wanted & everything) * 2 >= len(wanted)
            if self._question is not None and asks(text, held.asked):
                held.heard = self._question
                held.asked_at = held.asked_at or detail["start"]

    # A call that needs a yes

    async def has_agreed(self, call: Call) -> bool:
        """Whether the caller has just said yes to a question that named this call; their consent is then granted.

        The question has to be the application's own one (see `understanding.asks`), so that a yes to "Shall I book it?"
        opens nothing else.
        """
        can = self.session.capabilities
        try:
            if can.reports_speech:
                is_whole = lambda: not self._transcript_due and not self._so_far  # noqa: E731
                await self.conversation.until(is_whole, TRANSCRIPT_SECONDS, "a transcript")
            while (so_far := self._so_far) and not can.reports_speech:
                await asyncio.sleep(PIECES_SECONDS)
                if self._so_far == so_far:
                    break  # the model has begun to act on it, so it is closed, whether or not its transcript is
        except TimeoutError:
            text = f"what the caller said last had no words after {TRANSCRIPT_SECONDS:g} s"
            self._decide("no_transcript", call.id, text)
            return False
        if self._agreed_to(call) is None:
            return False
        self._answer = self._question = self._standing = self._closed = None
        self._refused.clear()
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
        answer = self._judge(self._so_far, self._asked(), self._began) if self._so_far else self._answer
        if answer is None or answer.verdict != "yes" or answer.question is None:
            return None
        asked = answer.question
        fits = asks(asked.text, question(call.name, call.arguments, self.language))
        if not fits or self.now() - answer.at > CONSENT_SECONDS:
            return None
        self._decide("consented", call.id, f'"{asked.text}" "{answer.text}"', asked_at=asked.begun)
        return asked

    async def confirm(self, call: Call) -> dict[str, Any] | None:
        """Ask the caller and wait. Returns None when they said yes, otherwise the result of a call that never ran."""
        asked = question(call.name, call.arguments, self.language)
        if self.session.capabilities.delegates:
            return self._leave_question(call, asked)
        held = self._held[call.id] = _Held(asked, self.now())
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

    def _leave_question(self, call: Call, asked: str) -> dict[str, Any]:
        """Who works elsewhere says the question, as the last thing it says, and comes again after the yes."""
        self._refused[asked] += 1
        result = needs_consent(asked)
        if self._refused[asked] > ASKS:
            result = cancelled(sentences(self.language)["not_confirmed"], reason="not_confirmed")
            self._decide("not_confirmed", call.id, f"no clear answer to {ASKS} questions: {asked}", asked_at=self.now())
        else:
            self._decide("hold", call.id, f"not begun before the caller agrees: {asked}")
        self.backend.reject(call.id, result)
        return result

    async def _answer_to(self, call: Call, asked: str, number: int) -> Verdict:
        if self._over:
            return self._give_up(call, self._over)
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
        self._over = why
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


def _is_in_time(asked: Question, began: float) -> bool:
    return -OVERLAP_SECONDS <= began - asked.ended <= HOLD_SECONDS
