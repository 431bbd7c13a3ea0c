"""The socket under an SDK: options both SDKs hand on to websockets, and a record of what really crossed it.

websockets lets its caller choose the connection class (`create_connection=`), and both SDKs pass that option through.
The recording class below is therefore all that is needed to see the true frames of an unmodified SDK.
"""

from __future__ import annotations

import functools
import ipaddress
from typing import Any, Literal
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from voicekit.frame_json import parsed
from voicekit.sessions.base import Endpoint, WireTap

OPEN_SECONDS = 8.0  # below the limit of the whole set-up, so that the message can say which of the two took too long
CLOSE_SECONDS = 0.5  # how long the closing handshake may take
PING_SECONDS = 20.0
# Pongs that took 8 to 30 s were seen on busy services; websockets' own limit of 20 s cut healthy calls.
PONG_SECONDS = 60.0

AUDIO_FIELDS = {
    "input_audio_buffer.append": "audio",
    "response.output_audio.delta": "delta",
    "session.input_audio.append": "audio",
    "session.output_audio.delta": "delta",
    "input_audio": "audio",
    "output_audio": "audio",
    "audio": "audio",  # a part of an item
}


def is_loopback(url: str | None) -> bool:
    """True when `url` leads to this machine."""
    host = urlsplit(url or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def connect_options(endpoint: Endpoint, address: str | None, tap: WireTap | None) -> dict[str, Any]:
    """Keyword arguments for `websockets.connect`. A loopback `address` is never reached through a proxy."""
    options: dict[str, Any] = {
        "open_timeout": OPEN_SECONDS,
        "close_timeout": CLOSE_SECONDS,
        "ping_interval": PING_SECONDS,
        "ping_timeout": PONG_SECONDS,
        "max_size": None,  # a provider may send a whole answer in one frame
    }
    if is_loopback(address):
        options["proxy"] = None
    if endpoint.tls is not None:
        options["ssl"] = endpoint.tls
    if tap is not None:
        options["create_connection"] = functools.partial(RecordedConnection, tap=tap, secret=endpoint.api_key)
    return options


class RecordedConnection(ClientConnection):
    """Tells `tap` of every message and close frame; audio is replaced by its length, the API key never shown."""

    def __init__(self, *args: Any, tap: WireTap, secret: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tap = tap
        self.secret = secret
        self.end_recorded = False

    async def send(self, message: Any, **options: Any) -> None:
        # Before sending: with a loopback server the answer may be there before `send` returns.
        if self.state is State.OPEN:
            self.record("sent", message)
        await super().send(message, **options)

    async def recv(self, decode: bool | None = None) -> Any:
        try:
            message = await super().recv(decode)
        except ConnectionClosed as closed:
            if closed.rcvd is not None and not self.end_recorded:
                self.end_recorded = True
                reason = hidden(closed.rcvd.reason, self.secret)
                self.tap("received", "close", {"code": closed.rcvd.code, "reason": reason})
            raise
        self.record("received", message)
        return message

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self.state is State.OPEN:
            self.tap("sent", "close", {"code": code, "reason": reason})
        await super().close(code, reason)

    def record(self, direction: Literal["sent", "received"], message: str | bytes) -> None:
        frame = parsed(message)
        if not isinstance(frame, dict):
            text = message if isinstance(message, str) else message.decode(errors="replace")
            self.tap(direction, "not_json", {"text": hidden(text, self.secret)[:200]})
            return
        elide(frame)
        frame = hidden(frame, self.secret)  # now: before, an escaped letter would have been enough to show it
        type_ = frame.get("type")
        self.tap(direction, type_ if isinstance(type_, str) else next(iter(frame), ""), frame)


def hidden(value: Any, secret: str) -> Any:
    """`value` with "<key>" for the API key in any text of it; services quote keys in their messages.

    A key of less than 16 characters is a dummy, and may be an ordinary word.
    """
    if len(secret) < 16:
        return value
    try:
        match value:
            case str():
                return value.replace(secret, "<key>")
            case list() | tuple():
                return type(value)(hidden(each, secret) for each in value)
            case dict():
                return {hidden(key, secret): hidden(each, secret) for key, each in value.items()}
    except RecursionError:
        return "<nested too deep>"
    return value


def elide(value: Any) -> None:
    """Replace base64 audio anywhere in a parsed frame by "<n bytes of audio>", in place."""
    if isinstance(value, list):
        for each in value:
            elide(each)
    elif isinstance(value, dict):
        type_, mime = value.get("type"), value.get("mimeType") or value.get("mime_type")
        field = AUDIO_FIELDS.get(type_) if isinstance(type_, str) else None
        if isinstance(mime, str) and mime.lower().startswith("audio/"):
            field = "data"
        if field is not None and isinstance(value.get(field), str):
            base64 = value[field].rstrip("=")
            value[field] = f"<{len(base64) * 3 // 4} bytes of audio>"
        for each in value.values():
            if isinstance(each, (dict, list)):  # most are not, and this is done for every frame of a call
                elide(each)
