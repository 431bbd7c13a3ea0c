"""The local stand-in for the providers: their wire protocols, on a loopback port.

    async with Simulator(Settings(seed=1)) as simulator:
        simulator.url          # "http://127.0.0.1:40123"; TLS clients use https/wss on the same port
        simulator.client_tls   # an ssl.SSLContext that trusts its certificate
"""

from __future__ import annotations

import ssl
from functools import cached_property
from typing import Self

import trustme

from voicekit.simulator import gemini_live, gpt_live, openai_realtime
from voicekit.simulator.recogniser import Recogniser
from voicekit.simulator.server import Connection, Server
from voicekit.simulator.settings import Settings

__all__ = ["Settings", "Simulator"]


class Simulator:
    """One server for all providers; port 0 takes a free one.

    Raises OSError when `port` is taken, ValueError when a clip it is to recognise is missing or damaged.

    like   another simulator, whose certificate this one shows too
    """

    def __init__(self, settings: Settings | None = None, *, port: int = 0, like: Simulator | None = None) -> None:
        self.settings = settings or Settings()
        Recogniser(self.settings.clips).check()  # now, where it can be said in one line; the ears need all of them
        self._like = like
        self._server = Server(self._route, port=port, tls=lambda: self._server_tls)

    @cached_property
    def _authority(self) -> trustme.CA:
        return self._like._authority if self._like else trustme.CA()

    @cached_property
    def _server_tls(self) -> ssl.SSLContext:
        """Made when the first client dials TLS: many runs never need a certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("127.0.0.1", "localhost").configure_cert(context)
        return context

    @property
    def client_tls(self) -> ssl.SSLContext:
        """A client context that trusts this simulator and nothing else."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._authority.configure_trust(context)
        return context

    @property
    def certificate(self) -> bytes:
        """The certificate a stock client has to trust, as PEM."""
        return self._authority.cert_pem.bytes()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.__aexit__(*exc)

    def _route(self, connection: Connection):  # type: ignore[no-untyped-def]
        for provider in (openai_realtime, gpt_live, gemini_live):
            if provider.serves(connection.path):
                return lambda each: provider.Endpoint(each, self.settings)
        return None
