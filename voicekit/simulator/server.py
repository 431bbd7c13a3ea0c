"""The simulator's sockets: one port on 127.0.0.1 that answers plain and TLS WebSocket clients alike.

Frames are handled by websockets' sans-I/O `ServerProtocol`, so that no task or queue stands between the socket and the
model: what one side writes, the other side's callback reads in the same turn of the loop. Some clients dial TLS
whatever the address says, so the first byte of a connection decides (0x16 opens a TLS handshake).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from voicekit.frame_json import encoded, parsed

MAX_FRAME = 24 * 2**20  # an append may carry 15 MiB of audio in base64


class Endpoint(Protocol):
    """What answers one connection: a simulated session."""

    def opened(self) -> None: ...
    def received(self, frame: Any) -> None:
        """A JSON message from the client, parsed; `None` stands for text that is not JSON."""

    def closed(self) -> None: ...


class Connection(asyncio.Protocol):
    """One client socket. `send` writes a JSON text frame, `close` a close frame with the vendor's code and reason."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.path = ""
        self.query: dict[str, list[str]] = {}
        self.headers: dict[str, str] = {}
        self._protocol = ServerProtocol(max_size=MAX_FRAME)
        self._transport: asyncio.Transport | None = None
        self._endpoint: Endpoint | None = None
        self._fragments = b""

    def send(self, frame: dict[str, Any]) -> None:
        self._send_bytes(encoded(frame))

    def send_text(self, text: str) -> None:
        """Write a text frame as it is: for an injected fault, which need not be JSON."""
        self._send_bytes(text.encode())

    def _send_bytes(self, message: bytes) -> None:
        if self.is_open:
            self._protocol.send_text(message)
            self._flush()

    def close(self, code: int, reason: str = "") -> None:
        """Close with a reason of at most 123 bytes, the limit of the WebSocket protocol."""
        if self.is_open:
            self._protocol.send_close(code, reason.encode()[:123].decode(errors="ignore"))
            self._flush()

    @property
    def is_open(self) -> bool:
        return self._endpoint is not None and self._protocol.state.name == "OPEN" and self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._handle_events()
        self._flush()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._flush()

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self.server.connections.discard(self)
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.closed()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _handle_events(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._handshake(event)
            elif isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                self._fragments += event.data
                if event.fin:
                    message, self._fragments = self._fragments, b""
                    if self._endpoint is not None:
                        self._endpoint.received(parsed(message))

    def _handshake(self, request: Request) -> None:
        url = urlsplit(request.path)
        self.path, self.query = url.path, parse_qs(url.query)
        self.headers = {name.lower(): value for name, value in request.headers.raw_items()}
        make = self.server.route(self)
        if make is None:
            body = f"voicekit simulator: nothing is served at {self.path}; see `voicekit simulator`\n"
            self._protocol.send_response(self._protocol.reject(404, body))
            return
        response = self._protocol.accept(request)
        self._protocol.send_response(response)
        if response.status_code == 101:
            self._flush()
            self._endpoint = make(self)
            self._endpoint.opened()

    def _flush(self) -> None:
        transport = self._transport
        if transport is None:
            return
        for data in self._protocol.data_to_send():
            if data:
                transport.write(data)
            else:
                transport.close()  # the protocol's sign that nothing more will follow
                return
        if self._protocol.state.name == "CLOSED" or (self._protocol.close_expected() and self._endpoint is None):
            transport.close()


class Server:
    """Listens on 127.0.0.1 until left: `async with Server(route) as server: server.port`.

    `route(connection)` looks at path, query and headers and returns what makes the endpoint, or None for a 404.
    `tls()` gives the context for clients that dial TLS; without it they are hung up on.
    Raises OSError when the port is taken.
    """

    def __init__(
        self,
        route: Callable[[Connection], Callable[[Connection], Endpoint] | None],
        *,
        port: int = 0,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self.route = route
        self.connections: set[Connection] = set()
        self._tls = tls
        self._waiting: set[socket.socket] = set()
        self._greeting: set[asyncio.Task[Any]] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]

    async def __aenter__(self) -> Server:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._accept)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for sock in list(self._waiting):
            self._forget(sock)
            sock.close()
        for task in self._greeting:
            task.cancel()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # lets the transports report the loss before the loop goes away

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock, _address = self._socket.accept()
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._waiting.add(sock)
            self._loop.add_reader(sock, self._first_byte, sock)

    def _first_byte(self, sock: socket.socket) -> None:
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        self._forget(sock)
        is_tls = first == b"\x16"
        if not first or (is_tls and self._tls is None):
            sock.close()
            return
        coroutine = self._loop.connect_accepted_socket(
            lambda: Connection(self), sock, ssl=self._tls() if is_tls and self._tls else None
        )
        task = self._loop.create_task(self._greet(coroutine))
        self._greeting.add(task)
        task.add_done_callback(self._greeting.discard)

    async def _greet(self, coroutine: Any) -> None:
        with contextlib.suppress(OSError):  # a client that gives up during the TLS handshake is its own affair
            await coroutine

    def _forget(self, sock: socket.socket) -> None:
        self._waiting.discard(sock)
        self._loop.remove_reader(sock)
