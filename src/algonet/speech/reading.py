"""English text to phonemes: a list of words that follow no rule, and rules from letters to sounds (`english.txt`)."""

from __future__ import annotations

import re
from importlib import resources
from typing import NamedTuple

from algonet.core.cache import cached


class Word(NamedTuple):
    """`text`, a word, and the `phonemes` that it is read as, names with spaces between them."""

    text: str
    phonemes: str


def read_text(text: str) -> list[Word]:
    """How `text` is read: words by rules, numbers digit by digit, phonemes between slashes as they are.

    Punctuation is a pause. The rules know common English; for other words and languages write phonemes.

    >>> for word in read_text("We sell fish, /o l e/!"):
    ...     print(*word, sep=" -> ")
    We -> w i
    sell -> s E l
    fish -> f i S
    , -> _
    /o l e/ -> o l e
    ! -> _
    """
    if not isinstance(text, str):
        raise TypeError(f"read_text: wanted text as one string such as 'hello', got {text!r}.")
    found = []
    for part in re.findall(r"/[^/]*/|[^\W\d_]+(?:['’][^\W\d_]+)*|\d|[^\w\s]|_", text):
        if part[0] == "/" and len(part) > 1:
            spoken = part[1:-1].strip()
        elif part.isalnum() or len(part) > 1:
            spoken = _spoken(part.lower().replace("’", "'"))
        elif part in ".,;:!?-–—()\"'_…":
            spoken = "_"
        else:
            raise ValueError(f"read_text: cannot read {part!r}; write it as a word, or as phonemes between slashes.")
        found.append(Word(part, spoken))
    if not any(word.phonemes.strip("_ ") for word in found):
        raise ValueError("read_text: nothing to say; give words, or phonemes between slashes such as '/a i u/'.")
    return found


def _spoken(word: str) -> str:
    words, rules = _english()
    if word in words:
        return words[word]
    place, sounds = 0, []
    while place < len(word):
        for pattern, sound in rules:
            match = pattern.match(word, place)
            if match is not None and match.end() > place:
                sounds += [sound] if sound else []
                place = match.end()
                break
        else:
            raise ValueError(
                f"read_text: no rule reads {word[place]!r} in {word!r}, since rules are for English; write phonemes between "
                "slashes."
            )
    return " ".join(sounds)


@cached
def _english() -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    text = resources.files("algonet.speech").joinpath("english.txt").read_text(encoding="utf-8")
    listed, ruled = re.sub(r"^#.*\n", "", text, flags=re.M).split("[words]")[1].split("[rules]")
    words, rules = ([line.partition(" ") for line in part.split("\n") if line] for part in (listed, ruled))
    return {word: sound for word, _, sound in words}, [(re.compile(pattern), sound) for pattern, _, sound in rules]
