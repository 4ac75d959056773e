"""Ranks that are processes: starting the programs of this folder, and what such a program does.

Most are forked by rank_server.py, which saves them their imports. SHARDWISE_TEST_TORCHRUN=1 has torchrun start them all.
"""

import atexit
import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from rank_server import TIMED_OUT

HERE = Path(__file__).parent
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
ON_SHARDWISE = ["-m", "shardwise.compat"]
IMPORTED = ("torch.distributed.optim", "torch.distributed.checkpoint", "shardwise")  # what most programs here import


def torchrun(program, n_ranks, *arguments, timeout=300, on_shardwise=False, env=None):
    """The finished process of `torchrun program arguments`, or of `torchrun -m shardwise.compat program arguments`."""
    launcher = [*LAUNCHER, "--nproc-per-node", str(n_ranks), *(ON_SHARDWISE if on_shardwise else [])]
    command = [*launcher, str(HERE / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=env)


def run_command(command, *, imported=IMPORTED, timeout=300):
    """`torchrun words`, as documents show it: of forked ranks where the words say no more than how many, and name a program of Python."""
    launcher, *words = shlex.split(command)
    assert launcher == "torchrun", command
    option, n_ranks, *of_program = words
    on_shardwise = of_program[:2] == ON_SHARDWISE
    program, *arguments = of_program[2 * on_shardwise :]
    if option == "--nproc-per-node" and not program.startswith("-"):
        program = Path.cwd() / program
        return forked_ranks(
            program, int(n_ranks), *arguments, timeout=timeout, imported=imported, on_shardwise=on_shardwise
        )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*LAUNCHER, *words], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def forked_ranks(program, n_ranks, *arguments, timeout=300, imported=IMPORTED, on_shardwise=False):
    """The same as torchrun(), of ranks that begin where the modules `imported` are."""
    if os.environ.get("SHARDWISE_TEST_TORCHRUN"):
        return torchrun(program, n_ranks, *arguments, timeout=timeout, on_shardwise=on_shardwise)
    command = [*(ON_SHARDWISE if on_shardwise else []), str(HERE / program), *map(str, arguments)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a port that is free
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_RUN_ID": "tests"}
    server = rank_server(imported)
    with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
        request = {
            "n_ranks": n_ranks,
            "command": command,
            "environment": {**os.environ, **meeting},
            "folder": os.getcwd(),
            "output": output.name,
            "errors": errors.name,
            "timeout": timeout,
        }
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        if not answer:
            rank_server.cache_clear()
            raise RuntimeError(f"rank_server.py ended, and with it the ranks: status {server.wait()}")
        status = int(answer)
        if status == TIMED_OUT:
            raise subprocess.TimeoutExpired(command, timeout, output.read(), errors.read())
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


@functools.cache
def rank_server(imported):
    """One for this process, until its end."""
    server = subprocess.Popen(
        [sys.executable, str(HERE / "rank_server.py"), *imported],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    atexit.register(server.communicate)
    return server


def expect_all_well(program, n_ranks, parts, folder, **options):
    result = forked_ranks(program, n_ranks, parts, folder, **options)
    assert result.returncode == 0, result.stderr
    for rank in range(n_ranks):
        assert f"{parts}-{rank}" in result.stdout, result.stdout


def run_parts(functions):
    """The program's side: calls the functions named by the first argument ("one,two") with the folder, and prints PARTS-RANK."""
    parts, folder = sys.argv[1:]
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for part in parts.split(","):
        functions[part](folder)
        dist.barrier()
    dist.destroy_process_group()
    sys.stdout.write(f"{parts}-{os.environ['RANK']}\n")
