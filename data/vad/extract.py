"""Take the weights of the voice-activity network out of Silero's package; run once, its output is committed.

    pip install onnx numpy
    pip download --no-deps silero-vad==6.2.3 && unzip silero_vad-6.2.3-py3-none-any.whl -d silero
    python data/vad/extract.py silero/silero_vad/data/silero_vad_16k_op15.onnx

The file written beside this one holds half-precision copies (the probabilities move by less than 0.01). The Fourier
basis of the network is left out: it is a Hann window times sines and cosines, which voicekit/vad.py computes.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

SHA256 = "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49"
NAMES = {
    **{f"conv{i}_weight": f"model.encoder.{i - 1}.reparam_conv.weight" for i in (1, 2, 3, 4)},
    **{f"conv{i}_bias": f"model.encoder.{i - 1}.reparam_conv.bias" for i in (1, 2, 3, 4)},
    **{f"lstm_{part}": f"model.decoder.rnn.{part}" for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")},
    **{f"out_{part}": f"model.decoder.decoder.2.{part}" for part in ("weight", "bias")},
}


def main(source: Path) -> None:
    found = hashlib.sha256(source.read_bytes()).hexdigest()
    if found != SHA256:
        raise SystemExit(f"{source.name} is not the file these weights come from (sha256 {found})")
    stored = {item.name: numpy_helper.to_array(item) for item in onnx.load(source).graph.initializer}
    weights = {short: stored[name].astype(np.float16) for short, name in NAMES.items()}
    np.savez_compressed(Path(__file__).with_name("silero_vad_16k.npz"), **weights)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
