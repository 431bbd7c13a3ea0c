"""`voicekit simulator`: the simulated providers for any stock client, with the lines that point it here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from voicekit.clock import run_blocking
from voicekit.models import facts, models
from voicekit.simulator import Settings, Simulator

KEY = "simulated-key"


def environment(port: int, certificate: Path, tls_port: int | None = None) -> dict[str, str]:
    """The variables a stock client needs, Python or JavaScript, to find the simulator on `port`."""
    return {
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
        "OPENAI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": f"https://127.0.0.1:{tls_port or port}",
        "GEMINI_API_KEY": KEY,
        "SSL_CERT_FILE": str(certificate),
        "NODE_EXTRA_CA_CERTS": str(certificate),
        "NO_PROXY": "127.0.0.1,localhost",
    }


def forever(
    port: int,
    tls_port: int | None = None,
    *,
    seed: int = 0,
    language: str = "en",
    claims: Mapping[str, str] | None = None,
    faults: Mapping[str, Any] | None = None,
) -> int:
    """Serve until interrupted or terminated. Raises ValueError for a port that is taken and for unknown settings."""
    if language not in ("en", "de"):
        raise ValueError(f'language is "en" or "de", not {language!r}')
    for name, value in (("claims", claims), ("faults", faults)):
        if not isinstance(value or {}, Mapping):
            raise ValueError(f"{name} are set one by one: --set {name}.NAME=VALUE")
    _check_claims(claims or {})
    settings = Settings(seed=seed, claims=claims or {}, faults=faults or {}, language=language)

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = _open(settings, port, "--port")
            await stack.enter_async_context(first)
            if tls_port is not None:
                await stack.enter_async_context(_open(settings, tls_port, "--tls-port", first))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="voicekit-")))
            certificate = folder / "simulator.pem"
            certificate.write_bytes(first.certificate)
            print("Simulated OpenAI Realtime, GPT-Live and Gemini Live on 127.0.0.1; each port answers plain and TLS.")
            print("Set these for the client, then start it (Ctrl-C here ends the simulator):\n")
            for name, value in environment(first.port, certificate, tls_port).items():
                print(f"set {name}={value}" if os.name == "nt" else f"export {name}={shlex.quote(value)}")
            print(
                f"\nA client that reads no variable for the address gets it itself: ws://127.0.0.1:{first.port}/v1/realtime",
                flush=True,
            )
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt), _terminable():
        run_blocking(serve, "real")
    return 0


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """A supervisor's or a shell's kill ends the simulator as Ctrl-C does, with sockets and certificate removed."""
    if threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_claims(claims: Mapping[str, str]) -> None:
    """A claim must be made of one model at least: which one the client will ask for is not known yet."""
    for name, value in claims.items():
        refusal: ValueError | None = None
        for model in models():
            try:
                facts(model, {name: value})
            except ValueError as error:
                refusal = error
            else:
                break
        else:
            raise ValueError(f"claims.{name}: {refusal}")


def _open(settings: Settings, port: int, option: str, like: Simulator | None = None) -> Simulator:
    if not 0 <= port <= 65535:
        raise ValueError(f"port {port} does not exist; {option} is a number from 0 (any free one) to 65535")
    try:
        return Simulator(settings, port=port, like=like)
    except OSError as error:
        raise ValueError(f"port {port} cannot be opened ({error.strerror}); choose another with {option}") from None
