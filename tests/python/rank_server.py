"""Ranks that are processes and import nothing again: they are forked by a server that has. rank_server.py MODULE...

torchrun starts an interpreter for each rank and one for itself, and each spends 2 to 4 seconds of a core on its imports. Here a rank begins
where the server stands, and runs its program as `__main__`. torchrun.py asks: a line of JSON, for which it gets the status; or, where it
starts a process that is no rank, the number of that process, and later how it ended.

A rank ends as an interpreter does, except that it takes down neither its modules nor torch's tables of operators, which takes 0.4 seconds of
a core. A request for a whole end gets that, too.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import threading
import time

GRACE = 10.0  # seconds that ranks have to end themselves when another one has failed
TIMED_OUT = 124


def serve(imported):
    """Answers requests. In a rank it returns if the interpreter is to end itself."""
    for module in imported:
        importlib.import_module(module)
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    answers = os.dup(1)
    alone = set()  # processes that are no ranks, and whose end nobody has asked for
    for line in sys.stdin:
        request = json.loads(line)
        if "end_of" in request:
            ended, waited = os.waitpid(request["end_of"], os.WNOHANG)
            alone.discard(ended)
            answer = os.waitstatus_to_exitcode(waited) if ended else None
        else:
            processes = []
            for rank in range(request["n_ranks"]) if request["n_ranks"] else (None,):
                process = os.fork()
                if process == 0:
                    os.close(answers)
                    run = functools.partial(run_program, rank, **request)
                    return run() if request["whole_end"] else end_after(run)
                processes.append(process)
            if request["n_ranks"]:
                answer = status_of(processes, request["errors"], time.monotonic() + request["timeout"])
            else:
                (answer,) = processes
                alone.add(answer)
        os.write(answers, json.dumps(answer).encode() + b"\n")
    end(alone, signal.SIGKILL)


def run_program(rank, *, n_ranks, command, environment, folder, output, errors, **_):
    """The program, as torchrun would run it in this rank's own interpreter. `rank`: None for a process that is no rank."""
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
    if rank is not None:
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
    elif command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        sys.path[0] = folder
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    elif not command[0].endswith(".py"):
        os.execv(command[0], command)
    else:
        sys.argv = command
        sys.path[0] = os.path.dirname(os.path.join(folder, command[0]))
        runpy.run_path(command[0], run_name="__main__")


def end_after(run):
    """Runs a program, and then what an interpreter runs before it takes its modules down."""
    status = 0
    try:
        run()
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def status_of(ranks, errors, deadline):
    """0 where all ranks end well, else 1, or TIMED_OUT. The first that fails ends the others, and is named in the file `errors` if a signal
    ended it."""
    status, killing, asking = 0, False, os.getppid()
    running = dict(enumerate(ranks))
    while running:
        time.sleep(0.005)
        for rank, process in list(running.items()):
            ended, waited = os.waitpid(process, os.WNOHANG)
            if not ended:
                continue
            del running[rank]
            if waited != 0 and status == 0:
                status, deadline = 1, time.monotonic() + GRACE
                if os.WIFSIGNALED(waited):
                    with open(errors, "a") as file:
                        print(f"{signal.Signals(os.WTERMSIG(waited)).name} ended rank {rank}", file=file)
                end(running.values(), signal.SIGTERM)
        if not killing and (time.monotonic() > deadline or os.getppid() != asking):
            status, killing = status or TIMED_OUT, True
            end(running.values(), signal.SIGKILL)
    return status


def end(processes, number):
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


if __name__ == "__main__":
    serve(sys.argv[1:])
