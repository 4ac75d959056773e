"""The model of ids that a dry run plans for: which rows of tables they name, and which experts tokens choose."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

UNIFORM = "uniform"


@dataclass(frozen=True)
class IdModel:
    """A model as the program gave it, and its numbers: an exponent of Zipf's law, a histogram, or None for equal shares."""

    text: str
    numbers: float | list[float] | None

    @classmethod
    def of(cls, text: str) -> IdModel:
        """The model that is called "uniform" or "zipf:1.05", or that a file of numbers gives. Raises ValueError and OSError."""
        kind, colon, exponent = text.partition(":")
        if text == UNIFORM:
            return EQUAL_SHARES
        if kind != "zipf" or not colon:
            return cls(text, _histogram(text))
        number = _number(exponent)
        if number is None:
            raise ValueError(
                f"[dry_run] ids is {text!r}, but {exponent!r} is no number of 0 or more. Write the exponent as in zipf:1.05."
            )
        return cls(text, number)


EQUAL_SHARES = IdModel(UNIFORM, None)


def _number(word: str) -> float | None:
    """The number that `word` spells; None unless it is finite and not negative."""
    try:
        found = float(word)
    except ValueError:
        return None
    return found if 0 <= found < math.inf else None


def _histogram(file: str) -> list[float]:
    if not Path(file).is_file():
        raise FileNotFoundError(
            f"[dry_run] ids is {file!r}, and there is no such file. Give {UNIFORM}, zipf:EXPONENT, or a file of numbers."
        )
    words = re.findall(r"[^\s,]+", Path(file).read_text(encoding="utf-8", errors="replace"))
    weights = []
    for word in words:
        weight = _number(word)
        if weight is None:
            raise ValueError(f"[dry_run] the histogram {file!r} has {word[:40]!r}. Give finite numbers of 0 or more.")
        weights.append(weight)
    if not any(weights):
        raise ValueError(
            f"[dry_run] the histogram {file!r} has {'only zeros' if weights else 'no numbers'}. Give a number for each row or for each of "
            "some equal ranges of rows."
        )
    return weights
