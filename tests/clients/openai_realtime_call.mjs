// The same question through OpenAI's Agents SDK for JavaScript, unmodified:
// node openai_realtime_call.mjs <folder with node_modules> question.pcm (16-bit mono, 24 kHz). Prints one JSON object.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(createRequire(folder + "/").resolve(name)).href);
const { RealtimeAgent, RealtimeSession, tool } = await load("@openai/agents-realtime");
const { z } = await load("zod");

const calls = [], errors = [];
let audioBytes = 0, loudest = 0, said = "";
const checkStock = tool({
  name: "check_stock",
  description: "Look up how many pieces of an item are in stock. Does not reserve anything.",
  parameters: z.object({ item: z.string() }),
  execute: async ({ item }) => {
    calls.push({ item });
    await new Promise((resolve) => setTimeout(resolve, 300));
    return JSON.stringify({ status: "ok", summary: `The ${item} is in stock.` });
  },
});
const agent = new RealtimeAgent({ name: "shop", instructions: "You answer calls for a small shop.", tools: [checkStock] });
const session = new RealtimeSession(agent, { transport: "websocket", model: "gpt-realtime", tracingDisabled: true });
session.on("error", ({ error }) => errors.push(JSON.stringify(error)));
session.on("audio", ({ data }) => {
  audioBytes += data.byteLength;
  const samples = new Int16Array(data.slice(0, data.byteLength - (data.byteLength % 2)));
  for (const sample of samples) loudest = Math.max(loudest, Math.abs(sample));
});
session.on("transport_event", (event) => {
  if (event.type === "response.output_audio_transcript.delta") said += event.delta;
});
const ended = new Promise((resolve) => session.on("agent_end", () => calls.length && audioBytes && resolve()));
const url = process.env.OPENAI_BASE_URL.replace(/^http/, "ws") + "/realtime?model=gpt-realtime";
await session.connect({ apiKey: process.env.OPENAI_API_KEY, url });

const FRAME = 4800; // bytes in 100 ms, in real time, with silence after the question as from a microphone
const question = readFileSync(file);
let position = 0;
const microphone = setInterval(() => {
  const frame = Buffer.alloc(FRAME);
  question.subarray(position, position + FRAME).copy(frame);
  position += FRAME;
  session.sendAudio(frame.buffer.slice(frame.byteOffset, frame.byteOffset + FRAME));
}, 100);
const tooLate = setTimeout(() => { console.error("no spoken answer within 25 s", calls, audioBytes, errors); process.exit(1); }, 25_000);
await ended;
clearInterval(microphone);
clearTimeout(tooLate);
session.close();
console.log(JSON.stringify({ calls, audio_bytes: audioBytes, loudest, said, errors }));
process.exit(0);
