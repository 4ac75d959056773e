"""Writes the last communications of the ranks of this process to files."""

import os

from shardwise import _C


def dump(folder: str | os.PathLike[str] | None = None) -> list[str]:
    """Writes the last 1,000 communications and the Python stack of each rank of this process to FOLDER/shardwise-rank<rank>-pid<pid>.json.
    For ranks that are threads the name contains `-thread`. Returns the paths. Sends nothing. `folder` is made if it is missing; default: the
    environment variable SHARDWISE_DUMP_FOLDER, or shardwise-dumps-<user id> in the folder of temporary files.

    Communications are always recorded. The files of all ranks show who waits for whom:

    >>> [path[:21] for path in sw.debug.dump("dumps")][:1]
    ['dumps/shardwise-rank0']

    `python -m shardwise hang dumps/*` reads them.

    They are also written when a wait takes longer than SHARDWISE_WAIT_WARNING (30 s), when a communication of a rank that is a process
    ends with an error, and, in a program that was started with SHARDWISE_DUMP_SIGNAL=1, on SIGUSR1: `kill -USR1 PID` while it hangs.

    Raises TypeError or ValueError if `folder` is not a path, and RuntimeError if it cannot be written to.
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
