"""Which words of a transcript belong to which samples: estimated from the order in which the two arrive.

Providers send no word times. They send pieces of transcript between pieces of audio, either before or after the audio
a piece belongs to; within a piece the letters are taken to be spoken evenly.
"""

from __future__ import annotations

import re

import numpy as np


class Alignment:
    """The transcript of one item. `generated` below is always the number of samples that have arrived by now.

    A transcript that starts before any audio is taken to lead: each piece belongs to the audio that follows it.
    Otherwise each belongs to the audio since the piece before. What has no audio (yet) has not been heard.
    """

    def __init__(self) -> None:
        self.text = ""
        self._groups: list[tuple[int, int]] = []  # (samples there when the piece came, letters up to its end)

    def add(self, text: str, generated: int) -> None:
        """Take in a piece that came when `generated` samples were there."""
        self.text += text
        same_audio = self._groups and self._groups[-1][0] == generated
        only_marks = self._groups and not any(letter.isalnum() for letter in text)  # "." has no sound of its own
        if same_audio or only_marks:
            self._groups[-1] = (self._groups[-1][0], len(self.text))
        else:
            self._groups.append((generated, len(self.text)))

    def _knots(self, generated: int) -> tuple[list[int], list[int]]:
        """Points at which both are known, strictly rising: letters, samples."""
        if not self._groups:
            return [0], [0]
        marks, letters = [mark for mark, _ in self._groups], [end for _, end in self._groups]
        if marks[0] > 0:
            return [0, *letters], [0, *marks]
        if marks[-1] < generated:
            return [0, *letters], [*marks, generated]
        return [0, *letters[:-1]], marks

    def heard(self, samples: int, generated: int) -> str:
        """The beginning of the text whose words have ended within the first `samples`."""
        letters, at = self._knots(generated)
        end = int(np.interp(samples, at, letters) + 1e-6)
        if end < len(self.text) and not self.text[end].isspace():
            while end and not self.text[end - 1].isspace():
                end -= 1
        return self.text[:end]

    def words(self, text: str, generated: int) -> list[tuple[int, str]]:
        """The words of `text`, a beginning of the transcript, each with the sample at which it starts."""
        letters, at = self._knots(generated)
        found = list(re.finditer(r"\S+", text))
        starts = np.interp([word.start() for word in found], letters, at).tolist() if found else []
        return [(int(start), word.group()) for start, word in zip(starts, found, strict=True)]

    def ends_of(self, wanted: str, generated: int) -> list[int]:
        """The sample at which each occurrence of `wanted` (lower case) ends, those without audio left out."""
        letters, at = self._knots(generated)
        ends = [match.end() for match in re.finditer(re.escape(wanted), self.text.lower())]
        return [int(np.ceil(np.interp(end, letters, at) - 1e-6)) for end in ends if end <= letters[-1]]
