"""The end of a process, of its children and of its threads, whatever is alive: no abort, and nothing hangs."""

import pytest
from torchrun import forked_ranks


@pytest.mark.parametrize(
    "part",
    [
        "globals_and_atexit",
        "forked_children",
        "workers",
        "spawned",
    ],
)
def test_two_processes_end_well(part, tmp_path):
    result = forked_ranks("ends_program.py", 2, part, tmp_path, timeout=200, whole_end=True)
    assert result.returncode == 0, result.stderr
    assert all(f"{part}-{rank}" in result.stdout for rank in range(2)), result.stdout
    assert result.stdout.count("at exit 12.0") == 2 * (part == "globals_and_atexit"), result.stdout
    for words in ("terminate called", "Fatal Python error", "core dumped", "SIGABRT", "SIGSEGV"):
        assert words not in result.stderr, result.stderr
