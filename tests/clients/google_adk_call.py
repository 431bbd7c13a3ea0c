"""A caller's question through the live runner of `google-adk`, as its documentation shows it.

Run by test_clients.py with an interpreter that has that package: `google_adk_call.py question.pcm MODEL` (16-bit mono,
16 kHz). Prints one JSON object: the tool calls, the audio and the transcript that came back.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from google.adk.agents import Agent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.run_config import RunConfig
from google.adk.runners import InMemoryRunner
from google.genai import types

FRAME = 3200  # bytes in 100 ms
calls: list[dict[str, Any]] = []


async def check_stock(item: str) -> dict[str, str]:
    """Look up how many pieces of an item are in stock. Does not reserve anything."""
    calls.append({"item": item})
    await asyncio.sleep(0.3)
    return {"status": "ok", "summary": f"The {item} is in stock."}


async def main(question: bytes, model: str) -> dict[str, Any]:
    agent = Agent(name="shop", model=model, instruction="You answer calls for a small shop.", tools=[check_stock])
    runner = InMemoryRunner(agent=agent, app_name="shop")
    session = await runner.session_service.create_session(app_name="shop", user_id="caller")
    queue = LiveRequestQueue()
    config = RunConfig(
        response_modalities=["AUDIO"],
        input_audio_transcription=types.AudioTranscriptionConfig(),
        output_audio_transcription=types.AudioTranscriptionConfig(),
    )
    audio, heard, said, errors = bytearray(), "", "", []
    speaking = asyncio.create_task(speak(queue, question))
    events = runner.run_live(user_id="caller", session_id=session.id, live_request_queue=queue, run_config=config)
    async for event in events:
        for part in event.content.parts or [] if event.content else []:
            if part.inline_data and (part.inline_data.mime_type or "").startswith("audio/"):
                audio += part.inline_data.data or b""
        if event.error_message:
            errors.append(event.error_message)
        if event.input_transcription:  # piece by piece, or whole
            heard = (heard if event.partial else "") + (event.input_transcription.text or "")
        if event.output_transcription:
            said = (said if event.partial else "") + (event.output_transcription.text or "")
        if event.turn_complete and calls and audio:
            break
    speaking.cancel()
    queue.close()
    await events.aclose()
    loudest = max((abs(sample) for sample in memoryview(bytes(audio)).cast("h")), default=0)
    spoken = {"audio_bytes": len(audio), "loudest": loudest, "said": said}
    return {"calls": calls, "heard": heard, **spoken, "errors": errors}


async def speak(queue: LiveRequestQueue, question: bytes) -> None:
    """Stream the question in real time, and silence after it, as a microphone does."""
    start = asyncio.get_running_loop().time()
    position = 0
    while True:
        frame = question[position : position + FRAME].ljust(FRAME, b"\0")
        position += FRAME
        await asyncio.sleep(max(0.0, start + position / 32000 - asyncio.get_running_loop().time()))
        queue.send_realtime(types.Blob(data=frame, mime_type="audio/pcm;rate=16000"))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(Path(sys.argv[1]).read_bytes(), sys.argv[2]), 25))))
