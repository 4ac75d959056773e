"""The examples in docstrings of public names: sessions with ">>>", run on four ranks.

Under torchrun this file is the program that runs those of NEED_PROCESSES: torchrun --nproc-per-node 4 docstring_examples.py.
"""

import doctest
import importlib
import inspect
import sys
import textwrap
import traceback
from collections.abc import Iterator
from io import StringIO
from typing import Any

import torch
import torch.nn.functional as F

import shardwise as sw

MODULES = [
    *(
        "shardwise.fsdp",
        "shardwise",
        "shardwise.parallel",
        "shardwise.experimental",
        "shardwise.debug",
        "shardwise.device_mesh",
    ),
    *(
        "shardwise.placement_types",
        "shardwise.optim",
        "shardwise.id_transform",
        "shardwise.checkpoint",
        "shardwise.interop",
    ),
    *("shardwise.sharded_tensor", "shardwise.testing", "shardwise.compat", "shardwise.distributed_embedding"),
]
# Their examples want a process group, which ranks that are threads do not have.
NEED_PROCESSES = {
    *("shardwise.from_torch", "shardwise.to_torch", "shardwise.checkpoint.FileSystemReader"),
    *(
        "shardwise.broadcast_parameters",
        "shardwise.checkpoint.FileSystemWriter",
        "shardwise.interop.copy_to_torchrec",
        "shardwise.interop.from_torchrec",
    ),
    *("shardwise.interop.to_torchrec", "shardwise.sharded_tensor.from_sharded_tensor"),
    *("shardwise.sharded_tensor.to_sharded_tensor", "shardwise.compat.install", "shardwise.compat.uninstall"),
}
METHODS = ("from_local", "to_local", "redistribute", "full_tensor")  # of DTensor, which are documented as functions are

PARSER = doctest.DocTestParser()
CHECKER = doctest.OutputChecker()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public_names() -> dict[str, Any]:
    """Every public name, once: where it stands first in MODULES."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for each in module.__all__:
            value = getattr(module, each)
            if not inspect.ismodule(value) and id(value) not in seen:
                seen.add(id(value))
                found[f"{name}.{each}"] = value
    for method in METHODS:
        found[f"shardwise.DTensor.{method}"] = getattr(sw.DTensor, method)
    return found


def examples_of(value: Any) -> list[doctest.Example]:
    return PARSER.get_examples(inspect.getdoc(value) or "")


def run_examples(examples: list[doctest.Example]) -> Iterator[tuple[doctest.Example, str]]:
    """Each example, and what it prints on this rank; sys.stdout is a stream of this rank."""
    mesh = sw.init_device_mesh("cpu", (4,))
    names = {"torch": torch, "F": F, "sw": sw, "mesh": mesh, "rank": mesh.get_rank()}
    for example in examples:
        begin = sys.stdout.tell()
        try:
            exec(compile(example.source, "<docstring>", "single"), names)
        except Exception as error:
            if example.exc_msg is None:
                raise
            sys.stdout.write("".join(traceback.format_exception_only(error)))
        sys.stdout.seek(begin)
        printed = sys.stdout.read()
        yield example, printed


def complaint(name: str, example: doctest.Example, printed: str) -> str | None:
    wanted = example.exc_msg if example.exc_msg is not None else example.want
    if CHECKER.check_output(wanted, printed, FLAGS):
        return None
    return f"{name}:\n{textwrap.indent(example.source, '    ')}  printed\n{textwrap.indent(printed, '    ')}  and not\n{textwrap.indent(wanted, '    ')}"


def main() -> None:
    import os
    import tempfile

    import torch.distributed as dist

    dist.init_process_group("gloo")
    names = public_names()
    usual = sys.stdout
    for name in sorted(NEED_PROCESSES, key=lambda name: ("compat" in name, name)):
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(folder)
        os.chdir(folder[0] or ".")
        sys.stdout = StringIO()
        complaints = [complaint(name, *pair) for pair in run_examples(examples_of(names[name]))]
        sys.stdout = usual
        if dist.get_rank() == 0:
            print(*filter(None, complaints), sep="\n", end="", flush=True)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
