"""A snapshot of one rank as JSON: its meshes, largest tensors, traffic by group, waits and last error."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from shardwise import _C
from shardwise.debug.places import peak_of_process
from shardwise.dtensor import DTensor

Json = dict[str, Any]

# A search of all objects stops the program, so it may take this share of the time.
SHARE_OF_TIME = 0.01
N_TENSORS = 40
# The facts of a group, by their names in the snapshot.
GROUP = {"ranks": "ranks", "calls": "n_calls", "sent": "bytes_sent", "received": "bytes_received", "seconds": "seconds"}


def rank_and_size() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def job_name() -> str:
    """A name that is equal in all processes that torchrun starts together."""
    program = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    place = f"{os.environ.get('MASTER_ADDR', 'localhost')}:{os.environ.get('MASTER_PORT', os.getpid())}"
    return f"{program} ({place if run == 'none' else run})"


def snapshot(surveyor: Surveyor, meter: _C.TrafficMeter, error: LastError, began: float) -> Json:
    """The snapshot of this moment. Sends nothing to other ranks, and waits for none."""
    rank, n_ranks = rank_and_size()
    return {
        "job": job_name(),
        "rank": rank,
        "n_ranks": n_ranks,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "time": time.time(),
        "began": began,
        "memory": peak_of_process(),
        "groups": [{key: getattr(group, name) for key, name in GROUP.items()} for group in meter.read()],
        "waits": [{name: getattr(wait, name) for name in ("name", "op", "seconds", "ranks")} for wait in meter.waits()],
        "error": error.last,
        **surveyor.seen(rank),
    }


class LastError:
    """The last uncaught exception in any thread of this process, until close()."""

    def __init__(self) -> None:
        self.last: Json | None = None
        self.on_error: Callable[[], object] = lambda: None
        self._of_program, self._of_threads = sys.excepthook, threading.excepthook
        sys.excepthook, threading.excepthook = self._program_hook, self._thread_hook

    def close(self) -> None:
        if sys.excepthook == self._program_hook:
            sys.excepthook = self._of_program
        if threading.excepthook == self._thread_hook:
            threading.excepthook = self._of_threads

    def _program_hook(self, kind: type[BaseException], value: BaseException, trace: Any) -> None:
        self._note(kind, value, trace)
        self._of_program(kind, value, trace)

    def _thread_hook(self, arguments: threading.ExceptHookArgs) -> None:
        self._note(arguments.exc_type, arguments.exc_value, arguments.exc_traceback)
        self._of_threads(arguments)

    def _note(self, kind: type[BaseException], value: BaseException | None, trace: Any) -> None:
        where = traceback.extract_tb(trace)
        libraries = ("site-packages", os.path.dirname(_C.__file__) + os.sep)
        own = [frame for frame in where if not any(folder in frame.filename for folder in libraries)]
        place = next(reversed(own or where), None)
        self.last = {
            "text": "".join(traceback.format_exception_only(kind, value)).strip()[:4000],
            "line": f"{place.filename}:{place.lineno}" if place else "",
            "time": time.time(),
        }
        with contextlib.suppress(Exception):  # the program's own hook must still run
            self.on_error()


class Surveyor:
    """Finds the program's DTensors, and names those that belong to modules. Searches as often as SHARE_OF_TIME allows."""

    def __init__(self) -> None:
        self._next = 0.0
        self._found: Json = {"meshes": [], "tensors": [], "n_tensors": 0, "local_bytes": 0}
        self._layouts: dict[object, int] = {}

    def seen(self, rank: int) -> Json:
        """The meshes, and the tensors with the most bytes on this rank."""
        if time.monotonic() >= self._next:
            began = time.thread_time()
            with contextlib.suppress(Exception):  # a module changed meanwhile: the next search finds it
                self._found = self._survey(rank)
            self._next = time.monotonic() + (time.thread_time() - began) / SHARE_OF_TIME
        return self._found

    def _survey(self, rank: int) -> Json:
        tensors: dict[int, DTensor] = {}
        modules: list[nn.Module] = []
        for each in gc.get_objects():
            kind = type(each)  # isinstance() would call into proxy objects
            if issubclass(kind, DTensor):
                tensors[id(each)] = each
            elif issubclass(kind, nn.Module):
                modules.append(each)
        names = dict(reversed(list(_names(modules))))  # a tensor with several names gets the first
        rows = []
        meshes: dict[int, Json] = {}
        for key, tensor in tensors.items():
            with contextlib.suppress(Exception):  # a tensor that cannot be described is left out
                mesh = tensor.device_mesh
                if id(mesh) not in meshes:
                    ranks, dim_names = mesh.mesh.flatten().tolist(), list(mesh.mesh_dim_names or ())
                    meshes[id(mesh)] = {"shape": list(mesh.shape), "names": dim_names, "ranks": ranks}
                rows.append(self._row(tensor, names.get(key, ""), rank))
        rows.sort(key=lambda row: (-row["local_bytes"], -row["bytes"], row["name"]))
        return {
            "meshes": list(meshes.values()),
            "tensors": rows[:N_TENSORS],
            "n_tensors": len(rows),
            "local_bytes": sum(row["local_bytes"] for row in rows),
        }

    def _row(self, tensor: DTensor, name: str, rank: int) -> Json:
        n_bytes = tensor.element_size()
        return {
            "name": name,
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "placements": [str(placement) for placement in tensor.placements],
            "mesh": list(tensor.device_mesh.shape),
            "bytes": tensor.numel() * n_bytes,
            "local_bytes": self._n_local(tensor, rank) * n_bytes,
        }

    def _n_local(self, tensor: DTensor, rank: int) -> int:
        key = (tensor.shape, tensor.device_mesh, tensor.placements)
        if key not in self._layouts:
            if len(self._layouts) > 10_000:
                self._layouts.clear()
            boxes = _C.Layout(tensor.shape, tensor.device_mesh, tensor.placements).boxes(rank)
            self._layouts[key] = sum(torch.Size(sizes).numel() for _, sizes in boxes)
        return self._layouts[key]


def _names(modules: list[nn.Module]) -> Iterator[tuple[int, str]]:
    """The ids of parameters, buffers and their gradients, with their paths below the outermost module."""
    inner = {id(child) for module in modules for child in _children(module).values()}
    for root in modules:
        seen: set[int] = set()
        below = [] if id(root) in inner else [(type(root).__name__, root)]
        while below:
            prefix, module = below.pop()
            if id(module) in seen:
                continue
            seen.add(id(module))
            below += [(f"{prefix}.{name}", child) for name, child in reversed(_children(module).items())]
            for name, tensor in _tensors(module):
                yield id(tensor), f"{prefix}.{name}"
                if tensor.is_leaf and tensor.grad is not None:  # other tensors have none, and torch warns
                    yield id(tensor.grad), f"{prefix}.{name}.grad"


def _children(module: nn.Module) -> dict[str, nn.Module]:
    """The children of a module; {} if it is under construction or its class forgot super().__init__()."""
    return {name: child for name, child in vars(module).get("_modules", {}).items() if child is not None}


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The module's own parameters and buffers. If the program's class raises an error, only its own are missing."""
    found: list[tuple[str, torch.Tensor]] = []
    with contextlib.suppress(Exception):
        found += module.named_parameters(recurse=False)
    with contextlib.suppress(Exception):
        found += module.named_buffers(recurse=False)
    return found
