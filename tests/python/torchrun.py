"""Ranks that are processes: starting the programs of this folder, and what such a program does.

Most are forked by rank_server.py, which saves them their imports. SHARDWISE_TEST_TORCHRUN=1 has torchrun start them all.
"""

import atexit
import functools
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from rank_server import TIMED_OUT

HERE = Path(__file__).parent
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
ON_SHARDWISE = ["-m", "shardwise.compat"]
# Imported by most programs here: optimizers import torch._dynamo, and compiled programs what inductor consists of.
TORCHS = ("torch.distributed.optim", "torch.distributed.checkpoint", "torch._dynamo", "torch._inductor.compile_fx")
IMPORTED = (*TORCHS, "shardwise")


def torchrun(program, n_ranks, *arguments, timeout=300, on_shardwise=False, env=None):
    """The finished process of `torchrun program arguments`, or of `torchrun -m shardwise.compat program arguments`."""
    launcher = [*LAUNCHER, "--nproc-per-node", str(n_ranks), *(ON_SHARDWISE if on_shardwise else [])]
    if Path(program).suffix != ".py":
        launcher.append("--no-python")
    command = [*launcher, str(HERE / program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, env=env)


def run_command(command, *, imported=IMPORTED, timeout=300):
    """`torchrun words`, as documents show it: of forked ranks where the words say no more than how many, and name a program."""
    launcher, *words = shlex.split(command)
    assert launcher == "torchrun", command
    option, n_ranks, *of_program = (word for word in words if word != "--no-python")
    on_shardwise = of_program[:2] == ON_SHARDWISE
    program, *arguments = of_program[2 * on_shardwise :]
    if option == "--nproc-per-node" and not program.startswith("-"):
        return forked_ranks(
            Path.cwd() / program,
            int(n_ranks),
            *arguments,
            timeout=timeout,
            imported=imported,
            on_shardwise=on_shardwise,
        )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*LAUNCHER, *words], env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def forked_ranks(
    program, n_ranks, *arguments, timeout=300, imported=IMPORTED, on_shardwise=False, env=None, whole_end=False
):
    """The same as torchrun(), of ranks that begin where the modules `imported` are. `whole_end`: they end as interpreters do."""
    if os.environ.get("SHARDWISE_TEST_TORCHRUN"):
        return torchrun(program, n_ranks, *arguments, timeout=timeout, on_shardwise=on_shardwise, env=env)
    command = [*(ON_SHARDWISE if on_shardwise else []), str(HERE / program), *map(str, arguments)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a port that is free
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_RUN_ID": "tests"}
    meeting["OMP_NUM_THREADS"] = "1"  # for programs of C++: the server has it
    with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
        environment = {**(os.environ if env is None else env), **meeting}
        status = answer_to(
            imported,
            n_ranks=n_ranks,
            command=command,
            environment=environment,
            output=output.name,
            errors=errors.name,
            timeout=timeout,
            whole_end=whole_end,
        )
        if status == TIMED_OUT:
            raise subprocess.TimeoutExpired(command, timeout, output.read(), errors.read())
        return subprocess.CompletedProcess(command, status, output.read(), errors.read())


def forked_python(*words, imported=IMPORTED, timeout=300, env=None):
    """The finished process of `python words`, where words begin with a file, "-m" or "-c": no rank, and forked all the same."""
    process = ForkedProcess(*words, imported=imported, env=env)
    try:
        status = process.wait(timeout)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, status, process.stdout.read(), process.stderr.read())


class ForkedProcess:
    """`python words` that runs, with the names of subprocess.Popen. Its outputs are files: what it has written so far is read."""

    def __init__(self, *words, imported=TORCHS, env=None):
        self.imported, self.returncode = imported, None
        self.stdout, self.stderr = (tempfile.NamedTemporaryFile("r") for _ in range(2))  # noqa: SIM115
        self.pid = answer_to(
            imported,
            n_ranks=0,
            command=[*map(str, words)],
            environment={**(os.environ if env is None else env)},
            output=self.stdout.name,
            errors=self.stderr.name,
            whole_end=False,
        )

    def poll(self):
        if self.returncode is None:
            self.returncode = answer_to(self.imported, end_of=self.pid)
        return self.returncode

    def wait(self, timeout):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def answer_to(imported, **request):
    """Of the server that has imported these modules."""
    server = rank_server(imported)
    server.stdin.write(json.dumps({**request, "folder": os.getcwd()}) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        rank_server.cache_clear()
        raise RuntimeError(f"rank_server.py ended, and with it the ranks: status {server.wait()}")
    return json.loads(answer)


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
