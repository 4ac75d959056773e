"""Measures how fast messages between two ranks are: pings and large messages over Gloo, in a few hundred milliseconds."""

import json
import multiprocessing
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

LARGE = 4 << 20  # bytes: far above what a socket's buffers hold
SECONDS = 0.12  # the longest that each of the two measurements takes
TRIPS = 400


@dataclass(frozen=True)
class LinkSpeed:
    """The one-way speed of a link, by half the median round trip."""

    latency: float  # seconds, of 8 bytes
    bandwidth: float  # bytes per second, of messages of 4 MiB
    is_between_hosts: bool = False


def measured(other: int, *, is_first: bool) -> LinkSpeed:
    """Measures the link between this rank and `other`, which makes the same call. Exactly one of the two is first; it decides when to stop."""
    small = _round_trip(torch.zeros(1, dtype=torch.int64), other, is_first)
    large = _round_trip(torch.zeros(LARGE // 8, dtype=torch.int64), other, is_first)
    return LinkSpeed(latency=small / 2, bandwidth=LARGE / (large / 2))


def _round_trip(message: torch.Tensor, other: int, is_first: bool) -> float:
    """The median round trip in seconds. The first number of a message tells the other rank whether it is the last one."""
    trips: list[float] = []
    if not is_first:
        message[0] = 0
        while not message[0]:
            dist.recv(message, other)
            dist.send(message, other)
        return 1.0  # unused: only the first rank measures
    end = time.perf_counter() + SECONDS
    while not message[0]:
        began = time.perf_counter()
        message[0] = int(began >= end or len(trips) == TRIPS)
        dist.send(message, other)
        dist.recv(message, other)
        trips.append(time.perf_counter() - began)
    return statistics.median(trips[1:] or trips)  # the first one connects


def slowest(file: Path) -> list[tuple[float, float]]:
    """The slowest link within a host and the slowest between hosts, in us and GB/s, that `doctor --json` measured. Raises ValueError if the file has
    none, or is none."""
    if not file.is_file():
        raise ValueError(
            f"[dry_run] there is no file {str(file)!r}. Give what `torchrun ... -m shardwise doctor --json` printed."
        )
    try:
        speeds = [LinkSpeed(**each["speed"]) for each in json.loads(file.read_text(encoding="utf-8")) if each["speed"]]
    except (ValueError, TypeError, KeyError):
        speeds = []
    found = []
    for is_between_hosts in (False, True):
        if links := [each for each in speeds if each.is_between_hosts == is_between_hosts]:
            found.append((max(each.latency for each in links) * 1e6, min(each.bandwidth for each in links) / 1e9))
    if not found:
        raise ValueError(
            f"[dry_run] {str(file)!r} has no links. Give what `torchrun ... -m shardwise doctor --json` printed for the job's hosts."
        )
    return found


def _local_rank(rank: int, file: str, answer: Connection, seconds: float) -> None:
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=timedelta(seconds=seconds)
        )
        speed = measured(1 - rank, is_first=rank == 0)
        if rank == 0:
            answer.send(speed)
        dist.barrier()  # neither process ends while the other still reads
    except (RuntimeError, OSError, ValueError) as error:
        answer.send(str(error).split("\n")[0])
    answer.close()
    os._exit(0)  # without torch's and the parent's exit handlers


def between_local_processes(seconds: float = 20.0) -> LinkSpeed | str:
    """Measures the link between two processes of this machine. Returns a text instead if something went wrong, such as no answer in `seconds`.

    The two processes are forked, so that torch is not loaded again: call this before the process has threads or CUDA.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="shardwise-doctor-") as folder:
        ours, theirs = context.Pipe(duplex=False)
        ranks = [
            context.Process(target=_local_rank, args=(rank, f"{folder}/store", theirs, seconds), daemon=True)
            for rank in range(2)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks of processes with threads
            for process in ranks:
                process.start()
        theirs.close()
        try:
            if not ours.poll(seconds):
                return f"no answer in {seconds:.0f} s"
            answer: LinkSpeed | str = ours.recv()
            return answer
        except EOFError:
            return "the processes ended without an answer"
        finally:
            for process in ranks:
                process.join(timeout=1)
                process.kill()


def between_ranks(seconds: float = 60.0) -> Sequence[tuple[str, LinkSpeed]]:
    """Measures the link between each rank and the next, one pair after the other, under torchrun. The result is the same on all ranks.

    Joins the world by torchrun's variables, and leaves it. Raises RuntimeError if a rank does not answer within `seconds`.
    """
    dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    mine: tuple[str, LinkSpeed] | None = None
    hosts: list[Any] = [None] * n_ranks
    dist.all_gather_object(hosts, os.uname().nodename)
    for first in range(n_ranks - 1):
        if rank in (first, first + 1):
            speed = measured(2 * first + 1 - rank, is_first=rank == first)
            if rank == first:
                speed = replace(speed, is_between_hosts=hosts[first] != hosts[first + 1])
                mine = (f"rank {first} ({hosts[first]}) - rank {first + 1} ({hosts[first + 1]})", speed)
        dist.barrier()
    speeds: list[Any] = [None] * n_ranks
    dist.all_gather_object(speeds, mine)
    dist.destroy_process_group()
    return [each for each in speeds if each is not None]
