"""A caller's question through the realtime runner of `openai-agents`, as its documentation shows it.

Run by test_clients.py with an interpreter that has that package: `openai_agents_call.py question.pcm` (16-bit mono,
24 kHz). Prints one JSON object: the tool calls, the audio and the transcript that came back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner

FRAME = 4800  # bytes in 100 ms
calls: list[dict[str, Any]] = []


@function_tool
async def check_stock(item: str) -> str:
    """Look up how many pieces of an item are in stock. Does not reserve anything."""
    calls.append({"item": item})
    await asyncio.sleep(0.3)
    return json.dumps({"status": "ok", "summary": f"The {item} is in stock."})


async def main(question: bytes) -> dict[str, Any]:
    agent = RealtimeAgent(name="shop", instructions="You answer calls for a small shop.", tools=[check_stock])
    settings = {
        "model_name": "gpt-realtime",
        "audio": {"input": {"format": "pcm16", "transcription": {"model": "gpt-4o-mini-transcribe"}}},
    }
    runner = RealtimeRunner(starting_agent=agent, config={"model_settings": settings, "tracing_disabled": True})
    url = os.environ["OPENAI_BASE_URL"].replace("http", "ws", 1) + "/realtime?model=gpt-realtime"
    audio, errors, said = bytearray(), [], ""
    async with await runner.run(model_config={"url": url}) as session:
        speaking = asyncio.create_task(speak(session, question))
        async for event in session:
            if event.type == "audio":
                audio += event.audio.data
            elif event.type == "raw_model_event" and event.data.type == "transcript_delta":
                said += event.data.delta
            elif event.type == "error":
                errors.append(str(event.error))
            elif event.type == "agent_end" and calls and audio:
                break
        speaking.cancel()
    loudest = max((abs(sample) for sample in memoryview(bytes(audio)).cast("h")), default=0)
    return {"calls": calls, "audio_bytes": len(audio), "loudest": loudest, "said": said, "errors": errors}


async def speak(session: Any, question: bytes) -> None:
    """Stream the question in real time, and silence after it, as a microphone does."""
    start = asyncio.get_running_loop().time()
    position = 0
    while True:
        frame = question[position : position + FRAME].ljust(FRAME, b"\0")
        position += FRAME
        await asyncio.sleep(max(0.0, start + position / 48000 - asyncio.get_running_loop().time()))
        await session.send_audio(frame)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(asyncio.wait_for(main(Path(sys.argv[1]).read_bytes()), 25))))
