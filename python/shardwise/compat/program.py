"""Runs a program that was written for torch.distributed.tensor."""

import os
import runpy
import sys
from collections.abc import Callable
from multiprocessing import spawn
from typing import Any

from shardwise.compat.installation import install

_CHILD = "shardwise.compat.child"
_OF_CHILDREN = "SHARDWISE_COMPAT_MAIN"  # "path:script.py" or "name:module", for processes that the program spawns


def run_program(arguments: list[str], *, is_module: bool) -> None:
    """Runs the script or module `arguments[0]` with the other arguments, as python does, on Shardwise."""
    install()
    _have_children_install()
    sys.argv = arguments
    if is_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        if not sys.flags.safe_path:
            sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
        runpy.run_path(arguments[0], run_name="__main__")


def run_as_main() -> dict[str, Any]:
    """Imports the program's main module in a process that the program spawned, and returns its names."""
    install()
    _have_children_install()
    kind, _, main = os.environ[_OF_CHILDREN].partition(":")
    if kind == "name" and main.endswith(".__main__"):  # multiprocessing does not run the main module of a package again
        return {}
    run: Callable[..., dict[str, Any]] = runpy.run_module if kind == "name" else runpy.run_path
    return run(main, run_name="__mp_main__")


def _have_children_install() -> None:
    """Makes processes that multiprocessing spawns import shardwise.compat.child instead of the program's main module."""
    prepare = spawn.get_preparation_data

    def prepare_with_names(name: str) -> dict[str, Any]:
        data = prepare(name)
        for kind in ("name", "path"):
            main = data.pop(f"init_main_from_{kind}", None)
            if main is not None:
                if main != _CHILD:  # in a child, whose own children have the same main module
                    os.environ[_OF_CHILDREN] = f"{kind}:{main}"
                data["init_main_from_name"] = _CHILD
        return data

    spawn.get_preparation_data = prepare_with_names
