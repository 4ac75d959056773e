"""The page's server: takes snapshots of ranks, gives them to the page."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import time
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

__all__ = ["Board", "application", "serve"]

Json = dict[str, Any]

PAGE = Path(__file__).parent / "page.html"
MOST_BYTES = 16 << 20  # of one snapshot: meshes and groups name their ranks, up to 0.4 MB each
MOST_RANKS = 1 << 16
LARGEST = 1e300  # number that the page adds up
FORGOTTEN_AFTER = 3600.0  # seconds without a word of a job


# What a snapshot has: "float" is any number, a list holds values of one form, and None is where the other form need not be.
_MESH = {"shape": [int], "names": [str], "ranks": [int]}
_FORM: Json = {
    "job": str,
    "rank": int,
    "n_ranks": int,
    "host": str,
    "pid": int,
    "time": float,
    "began": float,
    "memory": float,
    "groups": [{"ranks": [int], "calls": float, "sent": float, "received": float, "seconds": float}],
    "waits": [{"name": str, "op": str, "seconds": float}],
    "error": (None, {"text": str, "line": str, "time": float}),
    "meshes": [_MESH],
    "tensors": [
        {
            "name": str,
            "shape": [int],
            "dtype": str,
            "placements": [str],
            "mesh": [int],
            "bytes": float,
            "local_bytes": float,
        }
    ],
    "n_tensors": int,
    "local_bytes": float,
}
_NAMES: dict[type, str] = {str: "a text", int: "a whole number from 0 on", float: "a finite number"}


class Board:
    """The last snapshots of each rank of each job, and what they say of the time between two."""

    def __init__(self) -> None:
        self._jobs: dict[str, dict[int, Json]] = {}

    def take(self, snapshot: Json) -> None:
        """Raises ValueError for what is no snapshot, which leaves no trace."""
        check(snapshot)
        job, rank, pid, now = snapshot["job"], snapshot["rank"], snapshot["pid"], snapshot["time"]
        groups = {tuple(group["ranks"]): group for group in snapshot["groups"]}
        before = self._jobs.get(job, {}).get(rank)
        if before is not None and before["pid"] != pid:
            before = None
        per_group = [
            rates(group, before["by_group"].get(key) if before else None, now - before["time"] if before else 0.0)
            for key, group in groups.items()
        ]
        taken = {**{key: snapshot[key] for key in _FORM}, "rates": per_group, "heard": time.time()}
        json.dumps(taken, allow_nan=False, ensure_ascii=False).encode()  # as the page will be told of it
        self._jobs.setdefault(job, {})[rank] = {**taken, "by_group": groups}

    def state(self, job: str | None = None) -> Json:
        """What the page shows of a job, by default of the one that spoke last."""
        now = time.time()
        self._jobs = {
            name: ranks
            for name, ranks in self._jobs.items()
            if now - max(each["heard"] for each in ranks.values()) < FORGOTTEN_AFTER
        }
        last = {name: max(each["heard"] for each in ranks.values()) for name, ranks in self._jobs.items()}
        names = sorted(last, key=lambda name: -last[name])
        chosen = job if job in self._jobs else next(iter(names), None)
        ranks = sorted(self._jobs.get(chosen or "", {}).items())
        shown = [{key: value for key, value in each.items() if key != "by_group"} for _, each in ranks]
        return {"jobs": names, "job": chosen, "now": now, "ranks": shown, "slowest": slowest(shown)}


def check(snapshot: Any) -> None:
    """Raises ValueError, which names the part, for what the page cannot show."""
    _check(snapshot, _FORM, "the snapshot")
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
            inside = key if form is _FORM else f"{path}.{key}"
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
    elif not _is_a(value, form):
        raise ValueError(f"{path} is not {_NAMES[form]}")


def _is_a(value: Any, kind: type) -> bool:
    if kind is int:
        return type(value) is int and value >= 0
    if kind is float:
        return type(value) in (int, float) and abs(value) < LARGEST
    return isinstance(value, kind)


def rates(group: Json, before: Json | None, seconds: float) -> Json:
    """Per second, since the snapshot before."""
    per_second = 1 / seconds if before is not None and seconds > 0 else 0.0
    rate = {
        key: max(0.0, group[key] - (before or group)[key]) * per_second
        for key in ("calls", "sent", "received", "seconds")
    }
    return {"ranks": group["ranks"], **rate, "total_calls": group["calls"], "total_received": group["received"]}


def slowest(ranks: list[Json]) -> int | None:
    """The rank that the others wait for: its communications take least, by a tenth of the time less than those that take most."""
    taken = {each["rank"]: sum(rate["seconds"] for rate in each["rates"]) for each in ranks if each["rates"]}
    if len(taken) < 2:
        return None
    least = min(taken, key=lambda rank: (taken[rank], rank))
    return least if max(taken.values()) - taken[least] > 0.1 else None


def application(board: Board) -> Starlette:
    async def page(request: Request) -> Response:
        return FileResponse(PAGE, media_type="text/html", headers={"Cache-Control": "no-store"})

    async def state(request: Request) -> Response:
        return JSONResponse(board.state(request.query_params.get("job")), headers={"Cache-Control": "no-store"})

    async def feed(request: Request) -> Response:
        # Other pages in a browser cannot send this type without asking first.
        if request.headers.get("content-type") != "application/json":
            return JSONResponse({"error": "send application/json"}, status_code=415)
        body = bytearray()
        try:
            async for part in request.stream():  # all of it: who is still sending does not read the answer
                if len(body) <= MOST_BYTES:
                    body += part
        except ClientDisconnect:
            return Response(status_code=400)
        if len(body) > MOST_BYTES:
            return JSONResponse({"error": f"more than {MOST_BYTES} bytes"}, status_code=413)
        try:
            board.take(json.loads(body))
        except (ValueError, RecursionError) as error:
            return JSONResponse({"error": f"no snapshot: {error}"}, status_code=400)
        return JSONResponse({})

    return Starlette(
        routes=[Route("/", page), Route("/state", state), Route("/feed", feed, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])],
    )


def serve(port: int) -> None:
    """Says where, and serves until it is interrupted. Port 0 is one that is free. Raises OSError where the port is taken."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()  # who reads the line below may come at once
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/ (Ctrl+C ends it)", flush=True)
        config = uvicorn.Config(application(Board()), log_level="warning", access_log=False)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
