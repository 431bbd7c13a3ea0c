"""`voicekit simulator`: the simulated providers for any stock client, with the lines that point it here."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voicekit.clock import run_blocking
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
    claims: Mapping[str, str] | None = None,
    faults: Mapping[str, Any] | None = None,
) -> int:
    """Serve until interrupted. Raises ValueError for a port that is taken."""
    settings = Settings(seed=seed, claims=claims or {}, faults=faults or {})

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            first = _open(settings, port)
            await stack.enter_async_context(first)
            if tls_port is not None:
                await stack.enter_async_context(_open(settings, tls_port, first))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="voicekit-")))
            certificate = folder / "simulator.pem"
            certificate.write_bytes(first.certificate)
            print("Simulated OpenAI Realtime and Gemini Live on 127.0.0.1; every port answers plain and TLS clients.")
            print("Set these for the client, then start it (Ctrl-C here ends the simulator):\n")
            for name, value in environment(first.port, certificate, tls_port).items():
                print(f"{'set' if sys.platform == 'win32' else 'export'} {name}={value}")
            sys.stdout.flush()
            await asyncio.Event().wait()

    with contextlib.suppress(KeyboardInterrupt):
        run_blocking(serve, "real")
    return 0


def _open(settings: Settings, port: int, like: Simulator | None = None) -> Simulator:
    try:
        return Simulator(settings, port=port, like=like)
    except OSError as error:
        raise ValueError(f"port {port} cannot be opened ({error.strerror}); choose another with --port") from None
