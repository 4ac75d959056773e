"""python -m shardwise doctor: checks this machine and this installation, and measures the speed of messages."""

import argparse
import json
import os
import platform
import resource
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from shardwise import _C, _build_facts
from shardwise._commands import link_speed
from shardwise._torch_groups import TORCHRUN_VARIABLES
from shardwise.debug.picture import printable, shows_colors
from shardwise.debug.text_tables import WIDTH, aligned, in_units

State = Literal["ok", "note", "wrong"]
STYLES = {"ok": "32", "note": "33", "wrong": "1;31"}  # green, yellow, bold red of ANSI

# Our variables, each with its effect. The variables of other libraries are shown without their effects.
SHARDWISE_VARIABLES = {
    "SHARDWISE_CHECK": "1: the ranks compare each communication before they make it",
    "SHARDWISE_CHECK_SECONDS": "how long a rank waits for the others when calls are compared",
    "SHARDWISE_DUMP_FOLDER": "the folder to which ranks that hang or fail write their last communications",
    "SHARDWISE_DUMP_SIGNAL": "1: a rank that gets SIGUSR1 writes its last communications",
    "SHARDWISE_THREADS": "strict: ranks that are threads communicate as over NCCL",
    "SHARDWISE_WAIT_WARNING": "seconds after which a waiting rank names the call in which it waits",
    "SHARDWISE_WATCH": "1, or a port: feeds the page of python -m shardwise watch",
}
OTHER_PREFIXES = (
    "GLOO_", "NCCL_", "TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_CPP_LOG", "OMP_", "MKL_", "CUDA_VISIBLE",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """One line of the report. "note": it may slow a program down, or stop a larger program. "wrong": it stops programs. `mend`: how to fix it."""

    name: str
    value: str
    state: State = "ok"
    mend: str = ""
    speed: link_speed.LinkSpeed | None = None  # of a link


def judged(name: str, value: str, mend: str, state: State = "note") -> Finding:
    """A finding whose state is `state` if there is something to fix, else ok."""
    return Finding(name, value, state if mend else "ok", mend)


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "doctor",
        help="checks versions, backends, devices, memory and limits, and measures links",
        description="Checks this installation and this machine, measures the speed of messages between two processes, and says "
        "how to fix problems. Exits with 1 if something is wrong.",
        epilog='Examples: "python -m shardwise doctor"; "torchrun --nproc-per-node 4 -m shardwise doctor" measures between the '
        'ranks of a job, also on several machines; "python -m shardwise doctor --json" for a bug report.',
        formatter_class=argparse.HelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="prints the findings as a JSON list")
    command.add_argument("--no-links", action="store_true", help="skips the measurement of links")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> list[str]:
    under_torchrun = all(name in os.environ for name in TORCHRUN_VARIABLES)
    links: list[Finding] = []
    if not options.no_links:
        links += job_links() if under_torchrun else [link("two processes here", link_speed.between_local_processes())]
    if os.environ.get("RANK", "0") != "0" and under_torchrun:
        raise SystemExit(0)  # rank 0 reports
    found = {check.__name__: list(check()) for check in (versions, backends, devices, memory, limits, network)}
    found |= {"links": links, "environment": list(environment(os.environ))}
    every = [finding for findings in found.values() for finding in findings]
    if options.json:
        sections = [{"section": section, **asdict(finding)} for section in found for finding in found[section]]
        print(json.dumps(sections, indent=2))
    else:
        show(found, {state: sum(finding.state == state for finding in every) for state in STYLES})
    raise SystemExit(int(any(finding.state == "wrong" for finding in every)))


def versions() -> Iterator[Finding]:
    yield Finding("shardwise", f"{_build_facts.VERSION}, {Path(_C.__file__).parent}")
    yield Finding("torch", f"{torch.__version__}, {Path(torch.__file__).parent}")
    yield Finding("compiled against", f"torch {_build_facts.TORCH}")
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    yield compiler(_build_facts.COMPILER, _build_facts.BUILD_TYPE)
    yield Finding("C++ ABI", "new (CXX11)" if torch.compiled_with_cxx11_abi() else "old")
    yield Finding("system", f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}")


def compiler(name: str, build_type: str) -> Finding:
    mend = "It is not optimised: build with -DCMAKE_BUILD_TYPE=Release." if build_type == "Debug" else ""
    return judged("compiler", f"{name}, {build_type}", mend)


def backends() -> Iterator[Finding]:
    yield backend("gloo", is_there=dist.is_gloo_available(), needed_for="CPU")
    yield backend("nccl", is_there=dist.is_nccl_available(), needed_for="GPU" if torch.cuda.is_available() else None)
    yield backend("mpi", is_there=dist.is_mpi_available(), needed_for=None)


def backend(name: str, *, is_there: bool, needed_for: str | None) -> Finding:
    is_missed = not is_there and needed_for is not None
    mend = f"Tensors on {needed_for}s cannot be sent: install a wheel of torch that has it." if is_missed else ""
    return judged(name, "there" if is_there else "not in this torch", mend, "wrong")


def devices() -> Iterator[Finding]:
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores for this process"
    yield Finding("CPU", f"{cores}, {torch.get_num_threads()} threads of torch")
    for index in range(torch.cuda.device_count()):
        of = torch.cuda.get_device_properties(index)
        yield Finding(f"cuda:{index}", f"{of.name}, {in_units(of.total_memory)}, {of.major}.{of.minor}")
    if torch.cuda.is_available() and not _build_facts.CUDA:
        mend = (
            "Lookups in tables use torch's kernels. For Shardwise's kernels, compile shardwise with nvcc on the PATH."
        )
        yield judged("kernels for GPUs", "none", mend)


def memory() -> Iterator[Finding]:
    page = os.sysconf("SC_PAGE_SIZE")
    free, total = os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    yield Finding("memory", f"{in_units(total)}, of which {in_units(free)} unused")
    yield shared_memory(Path("/dev/shm"))


def shared_memory(folder: Path) -> Finding:
    """NCCL and the workers of a DataLoader pass data through shared memory. Containers have 64 MiB of it by default."""
    name = str(folder)
    try:
        of = os.statvfs(folder)
    except OSError as error:
        return judged(name, error.strerror or "missing", "DataLoader's workers need it: mount a tmpfs there.")
    size, free = of.f_blocks * of.f_frsize, of.f_bavail * of.f_frsize
    mend = "NCCL and DataLoader's workers need more: docker run --shm-size=1g (or --ipc=host), or remove files there."
    value = f"{in_units(size)}, of which {in_units(free)} free"
    return judged(name, value, mend if free < 256 << 20 else "")


def limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield open_files(soft, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    has_rdma = any(Path("/sys/class/infiniband").glob("*"))
    yield locked_memory(soft, has_rdma=has_rdma)


def open_files(soft: int, hard: int) -> Finding:
    """A rank has a connection to every other rank in each process group."""
    few = soft != resource.RLIM_INFINITY and soft < 1024
    mend = f"A rank opens a file per other rank and mesh dim: ulimit -n {_limit(hard)}." if few else ""
    value = f"{_limit(soft)}, at most {_limit(hard)}"
    return judged("open files (ulimit -n)", value, mend, "wrong" if soft < 64 else "note")


def locked_memory(soft: int, *, has_rdma: bool) -> Finding:
    few = has_rdma and soft != resource.RLIM_INFINITY
    value = _limit(soft) if soft == resource.RLIM_INFINITY else in_units(soft)
    mend = "InfiniBand needs locked memory: ulimit -l unlimited (docker run --ulimit memlock=-1)." if few else ""
    return judged("locked memory (ulimit -l)", value, mend)


def network() -> Iterator[Finding]:
    names = [name for _, name in socket.if_nameindex()]
    yield Finding("interfaces", ", ".join(names) or "none")
    chosen = os.environ.get("GLOO_SOCKET_IFNAME")
    if chosen:
        yield interface(chosen, names)
        return
    host = socket.gethostname()
    try:
        address = str(socket.getaddrinfo(host, None)[0][4][0])
    except OSError:
        mend = "Gloo uses the name's address: set GLOO_SOCKET_IFNAME to an interface, or put the name into /etc/hosts."
        yield judged(f"host {host}", "has no address", mend)
        return
    mend = "This works on one machine. For several machines, set GLOO_SOCKET_IFNAME to the interface between them."
    yield judged(f"host {host}", address, mend if address.startswith("127.") or address == "::1" else "")


def interface(chosen: str, names: Sequence[str]) -> Finding:
    """GLOO_SOCKET_IFNAME may name several interfaces, separated by commas."""
    missing = [name for name in chosen.split(",") if name not in names]
    mend = f"{', '.join(missing)} does not exist: Gloo fails. Set one of {', '.join(names)}." if missing else ""
    return judged("GLOO_SOCKET_IFNAME", chosen, mend, "wrong")


def job_links() -> Iterator[Finding]:
    try:
        for name, speed in link_speed.between_ranks():
            yield link(name, speed)
    except (RuntimeError, ValueError) as error:
        yield link("the job's ranks", str(error).split("\n")[0])


def link(name: str, speed: link_speed.LinkSpeed | str) -> Finding:
    if isinstance(speed, str):
        mend = "Processes cannot communicate: check GLOO_SOCKET_IFNAME, the host's name in /etc/hosts, and firewalls."
        return judged(f"{name}, gloo", speed, mend, "wrong")
    value = f"{speed.latency * 1e6:,.0f} us per small message, {speed.bandwidth / 1e9:.2f} GB/s"
    mend = "Over 1 ms: the cores are busy, or the network is slow." if speed.latency > 1e-3 else ""
    return replace(judged(f"{name}, gloo", value, mend), speed=speed)


def environment(variables: Mapping[str, str]) -> Iterator[Finding]:
    for name in sorted(variables):
        if name.startswith("SHARDWISE_"):
            yield own_variable(name, variables[name])
        elif name == "GLOO_SOCKET_IFNAME":
            continue  # network() reports it
        elif name.startswith(OTHER_PREFIXES) or name in TORCHRUN_VARIABLES:
            yield Finding(name, variables[name])
    missing = [name for name in TORCHRUN_VARIABLES if name not in variables]
    if missing and len(missing) < len(TORCHRUN_VARIABLES):
        mend = f"Without {', '.join(missing)} no process group starts. Start with torchrun, which sets all of them, or unset the others."
        yield judged("torchrun's variables", f"{', '.join(missing)} not set", mend, "wrong")
    if "OMP_NUM_THREADS" not in variables:
        mend = "torchrun sets it to 1. A rank that is started in another way uses all cores."
        yield Finding("OMP_NUM_THREADS", "not set", "note" if not missing else "ok", mend)


def own_variable(name: str, value: str) -> Finding:
    if name in SHARDWISE_VARIABLES:
        return Finding(name, value, "ok", SHARDWISE_VARIABLES[name])
    return judged(name, value, f"Shardwise does not read it. It reads {', '.join(SHARDWISE_VARIABLES)}.")


def show(found: Mapping[str, Sequence[Finding]], counts: Mapping[str, int]) -> None:
    in_color = shows_colors()

    def styled(text: str, style: str) -> str:
        return f"\x1b[{style}m{text}\x1b[0m" if in_color else text

    rows = []
    for section, findings in found.items():
        rows += [(styled(section, "1"), "", "", "")] if findings else []
        rows += [(f"  {each.name}", styled(each.state, STYLES[each.state]), each.value, each.mend) for each in findings]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    for line in chain.from_iterable(aligned(rows, width)):
        print(printable(line.rstrip()))
    wrong = f"{counts['wrong']} wrong" if counts["wrong"] else "Nothing is wrong"
    worst = next((state for state in ("wrong", "note") if counts[state]), "ok")
    print("\n" + styled(f"{wrong}, {counts['note']} to note.", STYLES[worst]))


def _limit(count: int) -> str:
    return "unlimited" if count == resource.RLIM_INFINITY else f"{count}"
