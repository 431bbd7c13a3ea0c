// The same question through Google's Gen AI SDK for JavaScript, unmodified:
// node google_genai_call.mjs <folder with node_modules> question.pcm (16-bit mono, 16 kHz). Prints one JSON object.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const { GoogleGenAI, Modality } = await import(pathToFileURL(createRequire(folder + "/").resolve("@google/genai")).href);

const calls = [], errors = [];
let audioBytes = 0, loudest = 0, said = "", heard = "", end;
const ended = new Promise((resolve) => (end = resolve));

async function answer(session, toolCall) {
  const functionResponses = [];
  for (const { id, name, args } of toolCall.functionCalls) {
    calls.push(args);
    await new Promise((resolve) => setTimeout(resolve, 300));
    functionResponses.push({ id, name, response: { status: "ok", summary: `The ${args.item} is in stock.` } });
  }
  session.sendToolResponse({ functionResponses });
}

const session = await new GoogleGenAI({}).live.connect({
  model: "gemini-2.5-flash-native-audio-preview-12-2025",
  config: {
    responseModalities: [Modality.AUDIO],
    inputAudioTranscription: {},
    outputAudioTranscription: {},
    systemInstruction: "You answer calls for a small shop.",
    tools: [{ functionDeclarations: [{
      name: "check_stock",
      description: "Look up how many pieces of an item are in stock. Does not reserve anything.",
      parametersJsonSchema: { type: "object", properties: { item: { type: "string" } }, required: ["item"] },
    }] }],
  },
  callbacks: {
    onerror: (error) => errors.push(String(error.message ?? error)),
    onclose: ({ code, reason }) => code !== 1000 && code !== 1005 && errors.push(`closed: ${code} ${reason}`),
    onmessage: (message) => {
      if (message.toolCall) void answer(session, message.toolCall);
      const content = message.serverContent;
      if (!content) return;
      said += content.outputTranscription?.text ?? "";
      heard += content.inputTranscription?.text ?? "";
      for (const { inlineData } of content.modelTurn?.parts ?? []) {
        if (!inlineData?.mimeType?.startsWith("audio/")) continue;
        const pcm = Buffer.from(inlineData.data, "base64");
        audioBytes += pcm.length;
        for (let at = 0; at + 1 < pcm.length; at += 2) loudest = Math.max(loudest, Math.abs(pcm.readInt16LE(at)));
      }
      if (content.turnComplete && calls.length && audioBytes) end();
    },
  },
});

const FRAME = 3200; // bytes in 100 ms, in real time, with silence after the question as from a microphone
const question = readFileSync(file);
let position = 0;
const microphone = setInterval(() => {
  const frame = Buffer.alloc(FRAME);
  question.subarray(position, position + FRAME).copy(frame);
  position += FRAME;
  session.sendRealtimeInput({ audio: { data: frame.toString("base64"), mimeType: "audio/pcm;rate=16000" } });
}, 100);
const tooLate = setTimeout(() => { console.error("no spoken answer within 25 s", calls, audioBytes, errors); process.exit(1); }, 25_000);
await ended;
clearInterval(microphone);
clearTimeout(tooLate);
session.close();
console.log(JSON.stringify({ calls, audio_bytes: audioBytes, loudest, said, heard, errors }));
process.exit(0);
