"""A progress line for long transfers, by tqdm if it is installed, and notes of what a long command is doing."""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection

Add = Callable[[int], object]  # is told the number of bytes that were transferred


def check_progress(is_shown: bool | None) -> None:
    """Raises ModuleNotFoundError on all ranks if a line is asked for and tqdm is not installed."""
    if is_shown and importlib.util.find_spec("tqdm") is None:
        raise ModuleNotFoundError(
            "[progress] progress=True needs tqdm, which is not installed. pip install shardwise[progress]"
        )


@contextlib.contextmanager
def progress_line(label: str, n_bytes: int, is_shown: bool | None, prints: bool) -> Iterator[Add]:
    """A line on stderr of the rank that prints: with progress_line("saving", n_bytes, None, rank == 0) as add: add(n).

    `is_shown`: None shows the line if stderr is a terminal and tqdm is installed.
    """
    if not prints or is_shown is False or importlib.util.find_spec("tqdm") is None:
        yield lambda n_bytes: None
        return
    from tqdm import tqdm  # type: ignore[import-untyped]  # only a shown line needs it

    is_off = False if is_shown else None  # None: off unless stderr is a terminal
    with tqdm(desc=label, total=n_bytes, unit="B", unit_scale=True, unit_divisor=1024, disable=is_off) as line:
        yield line.update


class Notes:
    """Lines on stderr, one every `SECONDS`, of a command that waits for its processes: "dry-run: 12 of 4,096 ranks are done after 40 s; rank 4095 runs"."""

    SECONDS = 20.0

    def __init__(self, command: str, things: str, total: int) -> None:
        self.n_done = 0
        self._command, self._things, self._total = command, things, total
        self._begin = self._last = time.monotonic()

    def wait_for(self, connection: Connection, doing: str) -> None:
        """Waits until there is something to receive."""
        while not connection.poll(max(self._last + self.SECONDS - time.monotonic(), 0)):
            self._last = time.monotonic()
            print(
                f"{self._command}: {self.n_done:,} of {self._total:,} {self._things} are done after {self._last - self._begin:.0f} s; {doing}",
                file=sys.stderr,
                flush=True,
            )
