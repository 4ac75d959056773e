"""A progress line for long transfers, by tqdm if it is installed."""

from __future__ import annotations

import importlib.util
from typing import Any


def check_progress(is_shown: bool | None) -> None:
    """Raises ModuleNotFoundError on all ranks if a line is asked for and tqdm is not installed."""
    if is_shown and importlib.util.find_spec("tqdm") is None:
        raise ModuleNotFoundError(
            "[progress] progress=True needs tqdm, which is not installed. pip install shardwise[progress]"
        )


class Progress:
    """A line on stderr of the rank that prints: with Progress("saving", n_bytes, None, rank == 0) as progress: progress.add(n).

    `is_shown`: None shows the line if stderr is a terminal and tqdm is installed.
    """

    def __init__(self, label: str, n_bytes: int, is_shown: bool | None, prints: bool) -> None:
        self._bar: Any = None
        if prints and is_shown is not False and importlib.util.find_spec("tqdm") is not None:
            from tqdm import tqdm  # type: ignore[import-untyped]  # only a shown line needs it

            is_off = False if is_shown else None  # None: off unless stderr is a terminal
            self._bar = tqdm(desc=label, total=n_bytes, unit="B", unit_scale=True, unit_divisor=1024, disable=is_off)

    def add(self, n_bytes: int) -> None:
        if self._bar is not None:
            self._bar.update(n_bytes)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
