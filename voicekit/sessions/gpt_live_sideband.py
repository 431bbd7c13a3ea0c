"""The sideband of a GPT-Live session: what a supervisor sees and hears who listens along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self, cast

import openai
from openai.resources.live.sideband import AsyncSidebandConnection
from websockets.exceptions import ConnectionClosed

from voicekit.frame_json import parsed
from voicekit.sessions._openai_client import client_for
from voicekit.sessions._wiretap import connect_options, elide, hidden
from voicekit.sessions.base import Endpoint


class Sideband:
    """Listens along to a session as a supervisor would, on a socket of its own.

        async with Sideband(endpoint, session.session_id) as supervisor:
            async for frame in supervisor: ...

    A frame is the event as a dict, its audio replaced by its length. The iteration ends with the session.
    `connection` is the SDK's; over it the supervisor may append, mute, update or close.
    """

    def __init__(self, endpoint: Endpoint, session_id: str) -> None:
        self._endpoint, self._session_id = endpoint, session_id
        self.connection: AsyncSidebandConnection | None = None
        self._client: openai.AsyncOpenAI | None = None

    async def __aenter__(self) -> Self:
        self._client = client_for(self._endpoint)
        options = connect_options(self._endpoint, str(self._client.base_url), None)
        manager = self._client.live.sideband.connect(
            session_id=self._session_id, websocket_connection_options=cast(Any, options)
        )
        self.connection = await manager.enter()
        return self

    async def __aexit__(self, *error: object) -> None:
        if self.connection is not None:
            await self.connection.close()
        if self._client is not None:
            await self._client.close()
        await asyncio.sleep(0)  # lets the connection's keepalive task see that it was cancelled

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        while self.connection is not None:
            try:
                frame = parsed(await self.connection.recv_bytes())
            except ConnectionClosed:
                return
            if isinstance(frame, dict):
                elide(frame)
                yield hidden(frame, self._endpoint.api_key)
