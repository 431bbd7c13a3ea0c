"""The client of OpenAI's SDK, as all three of its sockets are opened, and how its events are read from two of them."""

from __future__ import annotations

import functools
import ssl
from typing import TYPE_CHECKING, Annotated, Any

import openai
from pydantic import Field, TypeAdapter, ValidationError

from voicekit.sessions._wiretap import is_loopback
from voicekit.sessions.base import Endpoint

if TYPE_CHECKING:  # each takes long to load, and a session needs one
    from openai.resources.live.live import AsyncLiveConnection
    from openai.resources.realtime.realtime import AsyncRealtimeConnection


def client_for(endpoint: Endpoint) -> openai.AsyncOpenAI:
    """The SDK's client. On loopback its HTTP half is never used; an empty trust store spares 50 ms of certificates."""
    verify = endpoint.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    local = is_loopback(endpoint.base_url)
    return openai.AsyncOpenAI(
        api_key=endpoint.api_key,
        base_url=endpoint.base_url,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False, verify=verify) if local else None,
    )


async def receive(connection: AsyncRealtimeConnection | AsyncLiveConnection, events: Any) -> Any:
    """The next of the SDK's `events` (a union of classes): what `connection.recv()` returns, twenty times as fast.

    The SDK tries some 45 classes on each frame. Here the frame's "type" picks one; what that class does not fit, or
    none is there for, is the SDK's again. Raises ValueError for a frame that is not JSON,
    RecursionError for one that is nested absurdly deep, as the SDK does.
    """
    data = await connection.recv_bytes()
    try:
        return _by_type(events).validate_json(data)
    except ValidationError:
        return connection.parse_event(data)


@functools.cache
def _by_type(events: Any) -> TypeAdapter[Any]:
    return TypeAdapter(Annotated[events, Field(discriminator="type")])
