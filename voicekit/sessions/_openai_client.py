"""The client of OpenAI's SDK, as all three of its sockets are opened: Realtime, GPT-Live and GPT-Live's sideband."""

from __future__ import annotations

import ssl

import openai

from voicekit.sessions._wiretap import is_loopback
from voicekit.sessions.base import Endpoint


def client_for(endpoint: Endpoint) -> openai.AsyncOpenAI:
    """The SDK's client. On loopback its HTTP half is never used; an empty trust store spares 50 ms of certificates."""
    verify = endpoint.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    local = is_loopback(endpoint.base_url)
    return openai.AsyncOpenAI(
        api_key=endpoint.api_key,
        base_url=endpoint.base_url,
        http_client=openai.DefaultAsyncHttpxClient(trust_env=False, verify=verify) if local else None,
    )
