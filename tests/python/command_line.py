"""Commands of `python -m shardwise` within the test's own process, which has imported torch already."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

from shardwise.__main__ import main


def finished_command(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What `python -m shardwise arguments` prints, and its exit status. Errors that are no error of usage are raised."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    status = 0
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            main([*map(str, arguments)])
        except SystemExit as end:
            status = int(end.code or 0)
    printed = []
    for stream in (out, errors):
        stream.seek(0)
        printed.append(stream.read())
    return subprocess.CompletedProcess(["shardwise", *arguments], status, *printed)
