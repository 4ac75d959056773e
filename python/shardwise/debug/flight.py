"""What the ranks of this process did last, as files."""

import os

from shardwise import _C

__all__ = ["dump"]


def dump(folder: str | os.PathLike[str] | None = None) -> list[str]:
    """Writes the last 1,000 communications of each rank of this process to FOLDER/shardwise-rank<rank>-pid<pid>.json, and where the
    rank's Python is; ranks that are threads have `-thread` in the name. Returns the paths. Sends nothing; `folder`, made where it is
    missing, is by default the environment's SHARDWISE_DUMP_FOLDER, else the current one.

    Each communication is recorded as it runs, with nothing to switch on. The files of all ranks tell who waits for whom:

    >>> [path[:21] for path in sw.debug.dump("dumps")][:1]
    ['dumps/shardwise-rank0']

    `python -m shardwise hang dumps/*` says it.

    They are also written where a wait takes longer than SHARDWISE_WAIT_WARNING (30 s), where a communication of a rank that is a
    process ends with an error, and on SIGUSR1, with which a program that hangs can be asked: `kill -USR1 PID`.

    Raises TypeError and ValueError for what is no path, RuntimeError for a folder that cannot be written to.
    """
    if folder is not None and not isinstance(folder, str | os.PathLike):
        raise TypeError(
            f"[dump] folder is {type(folder).__name__}: files are written to a path. Give a name such as 'dumps', or leave it out."
        )
    if folder is not None and "\0" in os.fsdecode(folder):
        raise ValueError(
            f"[dump] folder {os.fsdecode(folder)!r} has a null character: no path has one. Give another name."
        )
    return _C.dump_flights(None if folder is None else os.fspath(folder))
