"""Ranks that are processes and import nothing again: they are forked by a server that has. rank_server.py MODULE...

torchrun starts an interpreter for each rank and one for itself, and each spends 2 to 4 seconds of a core on its imports. Here a rank begins
where the server stands, runs its program as `__main__`, and ends as an interpreter does. torchrun.py asks: a line of JSON, for which it
gets the status.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time

GRACE = 10.0  # seconds that ranks have to end themselves when another one has failed
TIMED_OUT = 124


def serve(imported):
    """Answers requests with the status of their ranks. In a rank it returns: the program has ended, and the interpreter is to end."""
    for module in imported:
        importlib.import_module(module)
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    answers = os.dup(1)
    for line in sys.stdin:
        request = json.loads(line)
        ranks = set()
        for rank in range(request["n_ranks"]):
            process = os.fork()
            if process == 0:
                os.close(answers)
                run_program(rank, **request)
                return
            ranks.add(process)
        os.write(answers, b"%d\n" % status_of(ranks, time.monotonic() + request["timeout"]))


def run_program(rank, *, n_ranks, command, environment, folder, output, errors, **_):
    """The program, as torchrun would run it in this rank's own interpreter."""
    for number, path, flags in [
        (0, os.devnull, os.O_RDONLY),
        (1, output, os.O_WRONLY | os.O_APPEND),
        (2, errors, os.O_WRONLY | os.O_APPEND),
    ]:
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdout.reconfigure(write_through=True)  # torchrun's ranks are `python -u`
    os.environ.clear()
    os.environ.update(environment)
    os.environ |= {
        **{name: str(rank) for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")},
        **{name: str(n_ranks) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE")},
        "GROUP_RANK": "0",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    os.chdir(folder)
    wanted = environment.get("PYTHONPATH", "").split(os.pathsep)  # it may name more folders than the server's own did
    sys.path[1:1] = [path for path in wanted if path and path not in sys.path]
    if command[0] == "-m":
        sys.argv = command[1:]
        sys.path[0] = folder
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        sys.path[0] = os.path.dirname(os.path.join(folder, command[0]))
        runpy.run_path(command[0], run_name="__main__")


def status_of(running, deadline):
    """0 where all ranks end well, else 1, or TIMED_OUT. The first that fails ends the others."""
    status, killing, asking = 0, False, os.getppid()
    while running:
        process, waited = os.waitpid(-1, os.WNOHANG)
        if process in running:
            running.remove(process)
            if waited != 0 and status == 0:
                status, deadline = 1, time.monotonic() + GRACE
                end(running, signal.SIGTERM)
        elif not killing and (time.monotonic() > deadline or os.getppid() != asking):
            status, killing = status or TIMED_OUT, True
            end(running, signal.SIGKILL)
        else:
            time.sleep(0.005)
    return status


def end(processes, number):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    serve(sys.argv[1:])
