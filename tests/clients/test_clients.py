"""Stock clients, unmodified, in a spoken conversation with `voicekit simulator`, in real time.

Their pins differ from the kit's (google-adk wants google-genai 2 and websockets 15), so each is run with an interpreter
of its own, which `.ci/run` makes; without it the test is skipped.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soxr

from voicekit import audio

HERE = Path(__file__).parent
SECONDS = 40  # until a client is given up


@pytest.fixture(scope="module")
def simulator() -> Iterator[dict[str, str]]:
    """The environment that a running `voicekit simulator` prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])}
    # fmt: off
    process = subprocess.Popen(
        [sys.executable, "-m", "voicekit.cli", "simulator", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )
    # fmt: on
    killer = threading.Timer(180, process.kill)  # nothing outlives the tests, whatever happens to them
    killer.start()
    printed: dict[str, str] = {}
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.fullmatch(r"(?:export|set) ([A-Z_]+)=(.*)\n", line):
                printed[match[1]] = match[2]
            if "NO_PROXY" in printed:
                break
        assert "NO_PROXY" in printed, process.communicate()[1]
        yield printed
    finally:
        process.terminate()
        _, complaints = process.communicate(timeout=10)
        killer.cancel()
    if os.name != "nt":
        assert (process.returncode, complaints) == (0, "")
        assert not Path(printed["SSL_CERT_FILE"]).exists()


def interpreter(variable: str) -> str:
    path = os.environ.get(variable)
    if not path:
        pytest.skip(f"{variable} names no interpreter with this client; .ci/run makes one")
    return path


def question(rate: int, folder: Path) -> Path:
    """The caller's question as raw PCM."""
    samples = audio.clips()["stock"].samples
    path = folder / f"question-{rate}.pcm"
    path.write_bytes(audio.to_pcm(samples if rate == audio.RATE else soxr.resample(samples, audio.RATE, rate)))
    return path


def hold(command: list[str], simulator: dict[str, str]) -> dict[str, Any]:
    """Run a client; it prints what it has heard."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "GOOGLE_API_KEY")}
    result = subprocess.run(
        command, env=variables | simulator, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    assert found["errors"] == []
    assert found["calls"] == [{"item": "blue kettle"}]
    assert found["said"].strip() == "The blue kettle is in stock."
    assert 1.0 < found["audio_bytes"] / 2 / 24_000 < 3.0  # seconds of that sentence
    assert found["loudest"] > 1000
    if "heard" in found:
        assert found["heard"] == audio.clips()["stock"].transcript


def test_the_realtime_runner_of_openai_agents(simulator: dict[str, str], tmp_path: Path) -> None:
    python = interpreter("VOICEKIT_OPENAI_AGENTS_PYTHON")
    check(hold([python, str(HERE / "openai_agents_call.py"), str(question(24_000, tmp_path))], simulator))


@pytest.mark.parametrize("model", ["gemini-2.5-flash-native-audio-preview-12-2025", "gemini-3.1-flash-live-preview"])
def test_the_live_runner_of_google_adk(model: str, simulator: dict[str, str], tmp_path: Path) -> None:
    python = interpreter("VOICEKIT_GOOGLE_ADK_PYTHON")
    check(hold([python, str(HERE / "google_adk_call.py"), str(question(16_000, tmp_path)), model], simulator))


@pytest.mark.parametrize(("script", "rate"), [("openai_realtime_call.mjs", 24_000), ("google_genai_call.mjs", 16_000)])
def test_clients_in_javascript(script: str, rate: int, simulator: dict[str, str], tmp_path: Path) -> None:
    folder, node = interpreter("VOICEKIT_NODE_CLIENTS"), shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    check(hold([node, str(HERE / script), folder, str(question(rate, tmp_path))], simulator))
