"""A progress line for long transfers, by tqdm if it is installed."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator

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
