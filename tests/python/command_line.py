"""Commands of `python -m shardwise` within the test's own process, which has imported torch already."""

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout

from shardwise.__main__ import main


def is_error_in_a_line(result: subprocess.CompletedProcess[str], command: str) -> bool:
    """Whether the command ended as one does that was called wrongly: nothing printed but a line that names it."""
    lines = result.stderr.splitlines()
    head = f"python -m shardwise {command}: error: "
    return result.returncode == 2 and not result.stdout and len(lines) == 1 and lines[0].startswith(head)


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
