"""Checks the form of a snapshot before the page shows it."""

import math
from collections.abc import Callable
from typing import Any

__all__ = ["FORM", "check"]

MOST_RANKS = 1 << 16
LARGEST = 1e300  # the largest number that the page adds up

# `float` means any number, a list has values of one form, and a tuple (None, form) a value that may be None.
MESH = {"shape": [int], "names": [str], "ranks": [int]}
LAYOUT = {"shape": [int], "dtype": str, "placements": [str], "mesh": [int]}
FORM: dict[str, Any] = {
    "job": str,
    "rank": int,
    "n_ranks": int,
    "host": str,
    "pid": int,
    "time": float,
    "began": float,
    "memory": float,
    "groups": [{"ranks": [int], "calls": float, "sent": float, "received": float, "seconds": float}],
    "waits": [{"name": str, "op": str, "seconds": float, "ranks": (None, [int])}],
    "error": (None, {"text": str, "line": str, "time": float}),
    "meshes": [MESH],
    "tensors": [{"name": str, **LAYOUT, "bytes": float, "local_bytes": float}],
    "n_tensors": int,
    "local_bytes": float,
}
KINDS: dict[type, tuple[Callable[[Any], bool], str]] = {
    str: (lambda value: isinstance(value, str), "a text"),
    int: (lambda value: type(value) is int and value >= 0, "a whole number from 0 on"),
    float: (lambda value: type(value) in (int, float) and abs(value) < LARGEST, "a finite number"),
}


def check(snapshot: Any) -> None:
    """Raises ValueError, which names the part that is wrong, for a snapshot that the page cannot show."""
    _check(snapshot, FORM, "the snapshot")
    if snapshot["rank"] >= MOST_RANKS:
        raise ValueError(f"rank {snapshot['rank']} is more than {MOST_RANKS - 1}")
    for i, mesh in enumerate(snapshot["meshes"]):
        if min(mesh["shape"], default=1) < 1 or math.prod(mesh["shape"]) != len(mesh["ranks"]):
            raise ValueError(f"meshes[{i}] of shape {mesh['shape'][:9]} has {len(mesh['ranks'])} ranks")


def _check(value: Any, form: Any, path: str) -> None:
    if isinstance(form, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{path} is no object")
        for key, inner in form.items():
            inside = key if form is FORM else f"{path}.{key}"
            if key not in value:
                raise ValueError(f"{inside} is missing")
            _check(value[key], inner, inside)
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise ValueError(f"{path} is no list")
        for i, each in enumerate(value):
            if form[0] is not int or type(each) is not int or each < 0:  # lists of ranks are long
                _check(each, form[0], f"{path}[{i}]")
    elif isinstance(form, tuple):
        if value is not None:
            _check(value, form[1], path)
    elif not KINDS[form][0](value):
        raise ValueError(f"{path} is not {KINDS[form][1]}")
