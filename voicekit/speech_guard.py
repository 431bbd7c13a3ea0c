"""Rules on what the agent says, applied while it says it; what was heard before the verdict is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from voicekit.conversation import PATIENCE_SECONDS, Conversation
from voicekit.guardrails import Ruling, SpeechRule, judge_speech
from voicekit.journal import Journal
from voicekit.replies import Replies
from voicekit.sessions.base import DelegatingSession, NotSupported, Said, SessionError


class SpeechGuard:
    """Applies speech rules in one session; feed it the session's events with `on`.

    Each verdict belongs to the reply it was about: one that comes late cuts nothing that was begun since.
    """

    def __init__(
        self, rules: Sequence[SpeechRule], conversation: Conversation, replies: Replies, journal: Journal
    ) -> None:
        self.conversation, self.replies, self.journal = conversation, replies, journal
        self.aborted = ""
        """Why the conversation is to end, "" while it is not."""
        self._rules = tuple(rules)
        self._texts: dict[str, str] = {}  # by item
        self._condemned: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        """Whether a verdict is under way, or its consequences."""
        return bool(self._tasks)

    def on(self, said: Said) -> None:
        """Take in a piece of the agent's transcript, which may come before its sound or after it."""
        if not self._rules or said.item in self._condemned:
            return
        text = said.text if said.final else self._texts.get(said.item, "") + said.text
        self._texts[said.item] = text
        for rule in self._rules:
            ruling = judge_speech(rule, text)
            if ruling.action != "allow":
                self._condemned.add(said.item)
                task = asyncio.get_running_loop().create_task(self._carry_out(said, rule, ruling), name="guardrail")
                self._tasks.add(task)
                task.add_done_callback(self._done)
                return

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.conversation.wake()

    async def _carry_out(self, said: Said, rule: SpeechRule, ruling: Ruling) -> None:
        await asyncio.sleep(rule.seconds)
        talk, speaker = self.conversation, self.conversation.speaker
        leaked = speaker.heard_ms(said.item)
        cut = speaker.flush(turn=said.turn) if said.turn else speaker.flush(item=said.item)
        about: dict[str, Any] = {"leak_ms": leaked, "action": ruling.action, "seconds": rule.seconds}
        self.journal.add("decision", "guardrail", item=said.item, text=ruling.why or str(ruling.instead), **about)
        try:
            await talk.stop_turn(said.turn, cut)
            if ruling.action == "abort":
                self.aborted = ruling.why
            elif ruling.action == "replace":
                await self._say_instead(said.turn, str(ruling.instead))
        except (SessionError, NotSupported, TimeoutError) as error:
            self.journal.add("decision", "unspoken", item=said.item, text=str(error))

    async def _say_instead(self, turn: str, text: str) -> None:
        """Have `text` said once the turn that was cut off is over; before that it would collide."""
        talk, session = self.conversation, self.conversation.session
        if session.capabilities.delegates:  # no turns to wait for
            await cast(DelegatingSession, session).append("commentary", text)
            return
        if session.capabilities.can_cancel:  # where nothing can, what it is told now is what stops it
            await talk.until(lambda: talk.turn != turn, PATIENCE_SECONDS, "the end of the turn that was cut off")
        await session.tell(f'Do not go on with that. Tell the caller: "{text}"')
        if not session.capabilities.implied_reply:
            await self.replies.ask("to say something else", None)
