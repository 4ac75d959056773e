"""Sends snapshots of this rank to a page, from a separate thread."""

from __future__ import annotations

import atexit
import http.client
import itertools
import json
import multiprocessing
import os
import re
import threading
import time
import urllib.error
import urllib.request
import warnings

from shardwise import _torch_groups
from shardwise._C import TrafficMeter
from shardwise.live.snapshot import LastError, Surveyor, snapshot

DEFAULT_PORT = 8765
PATIENCE = 0.5  # seconds that the page has to answer
READINGS = 5  # readings of the meter per snapshot: more of them make it estimate less

_open: Feed | None = None
_opening = threading.Lock()


class Feed:
    """A thread that sends a snapshot each `every` seconds to the page on `port` of this machine, until close().

    It is no error if no page is served there; a page that starts later gets the following snapshots. An uncaught exception is sent at once.
    """

    def __init__(self, port: int = DEFAULT_PORT, every: float = 1.0) -> None:
        check_settings(port, every)
        self.port, self.every = port, every
        self._began = time.time()
        self._surveyor = Surveyor()
        self._meter = TrafficMeter()
        self._has_warned = False  # that the page does not take its snapshots
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._error = LastError()
        self._error.on_error = self.send
        self._thread = threading.Thread(target=self._run, name="shardwise watch", daemon=True)
        self._thread.start()

    def send(self) -> bool:
        """Sends a snapshot now. Returns True if a page received it."""
        with self._lock:
            now = snapshot(self._surveyor, self._meter, self._error, self._began)
            body = json.dumps(now, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.port}/feed", data=body, headers={"Content-Type": "application/json"}
            )
            try:
                with _direct.open(request, timeout=PATIENCE):
                    return True
            except (OSError, http.client.HTTPException) as error:  # the port may be another program's
                is_too_large = isinstance(error, urllib.error.HTTPError) and error.code == 413
        if is_too_large and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"[watch] this rank is not shown: its snapshot has {len(body)} bytes, more than the page takes. Keep "
                "fewer meshes and groups of many ranks.",
                RuntimeWarning,
                stacklevel=2,
            )
        return False

    @property
    def is_closed(self) -> bool:
        """True after close()."""
        return self._stop.is_set()

    def close(self) -> None:
        """Sends a last snapshot, and stops. A second call does nothing."""
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
        self._thread.join()
        self._error.close()
        self.send()

    def _run(self) -> None:
        for reading in itertools.count(1):
            if self._stop.wait(self.every / READINGS):
                return
            if reading % READINGS == 0:
                self.send()
            else:
                with self._lock:
                    self._meter.read()


# Without the proxies of the environment: the page is on this machine.
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def watch(port: int | None = None, *, every: float = 1.0) -> Feed:
    """Sends the state of this rank to the page of `python -m shardwise watch`, each `every` seconds, until the program ends.

    >>> feed = sw.debug.watch(every=2.0)
    >>> feed.close()

    Call it once on every rank of the machine. Or set SHARDWISE_WATCH=1 (or =<port>) in the environment of torchrun, which needs no change of
    the program. `port`: the port of the page; default: SHARDWISE_WATCH, or 8765. The page shows meshes, the largest tensors, bytes per second
    by group, what each rank waits for, and its last error. Sends nothing to other ranks. Cost: a thread, which spends at most 1 % of the time
    on a search of the program's objects. Returns the feed; its close() stops it. A second call returns the same feed. Raises TypeError or
    ValueError for an invalid port or time; warns if a snapshot is larger than the page accepts.
    """
    global _open
    chosen = port if port is not None else port_from_environment() or DEFAULT_PORT
    check_settings(chosen, every)
    with _opening:
        if _open is None or _open.is_closed:
            _open = Feed(chosen, every)
            atexit.register(_open.close)
        return _open


def watch_if_asked() -> None:
    """Calls watch() if SHARDWISE_WATCH asks for it: at once in a rank that torchrun started, in other programs when they have a world.

    Processes that a rank starts, such as workers of a DataLoader, inherit its environment but are no ranks.
    """
    _torch_groups.on_world = _watch_once
    # A process that multiprocessing spawns imports the program before it has a parent_process(); `_inheriting` is set until then.
    is_worker = multiprocessing.parent_process() or hasattr(multiprocessing.current_process(), "_inheriting")
    if "RANK" in os.environ and not is_worker:
        _watch_once()


_is_asked = False


def _watch_once() -> None:
    global _is_asked
    if not _is_asked and port_from_environment() is not None:
        _is_asked = True
        watch()


def check_settings(port: object, every: object) -> None:
    """Raises TypeError or ValueError for an invalid port or time."""
    if not isinstance(port, int) or isinstance(port, bool):
        raise TypeError(f"[watch] port is {port!r}, which is no whole number. Give one from 1 to 65535.")
    if not 0 < port < 1 << 16:
        raise ValueError(f"[watch] port {port} is none. Give one from 1 to 65535.")
    if not isinstance(every, int | float) or isinstance(every, bool):
        raise TypeError(
            f"[watch] every is {every!r}, which is no number. Give the seconds between two snapshots, such as 1.0."
        )
    if not 0 < every <= threading.TIMEOUT_MAX:
        raise ValueError(f"[watch] every is {every} seconds. Give more than 0, at most {threading.TIMEOUT_MAX:.0f}.")


def port_from_environment() -> int | None:
    """The port in SHARDWISE_WATCH: None if it is empty or 0, the default port if it is 1. Raises ValueError if it is no number."""
    value = os.environ.get("SHARDWISE_WATCH", "").strip()
    if value in ("", "0"):
        return None
    if not re.fullmatch("[0-9]{1,9}", value):
        raise ValueError(f'[watch] SHARDWISE_WATCH is "{value}". Set it to 1, or to the port of the page.')
    return DEFAULT_PORT if value == "1" else int(value)
