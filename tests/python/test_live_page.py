"""The live page: what a program of two processes feeds it, what the server refuses, and that nothing runs where it is off."""

import contextlib
import gc
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from browser import needs_browser, new_page, started_browser
from command_line import finished_command, is_error_in_a_line
from torchrun import LAUNCHER, TORCHS, ForkedProcess, forked_python

import shardwise as sw
from shardwise import _torch_groups
from shardwise.live import feed as live_feed
from shardwise.live.feed import Feed
from shardwise.testing import run_ranks

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from shardwise.live.board import Board, slowest
from shardwise.live.server import MOST_BYTES, PAGE
from shardwise.live.snapshot import LastError, Surveyor

PROGRAM = Path(__file__).with_name("live_program.py")
WEIGHT = "Sequential.0.weight"


@pytest.fixture
def server():
    """A page's own process, and its port. It must not complain."""
    started = ForkedProcess("-m", "shardwise", "watch", "--port", "0")
    try:
        while not (line := started.stdout.readline()):
            assert started.poll() is None, started.stderr.read()
            time.sleep(0.01)
        yield started, int(line.split(":")[2].split("/")[0])
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(60)
    assert started.stderr.read() == ""


@pytest.fixture
def port(server):
    return server[1]


def ask(port, method, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def state_when(port, is_so):
    """The page's state once `is_so(state)`."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        state = json.loads(ask(port, "GET", "/state")[1])
        if is_so(state):
            return state
        time.sleep(0.1)
    raise AssertionError(state)


def test_a_program_feeds_the_page(port, tmp_path):
    command = [*LAUNCHER, "--nproc-per-node", "2", str(PROGRAM)]
    environment = {**os.environ, "SHARDWISE_WATCH": f"{port}"}
    with subprocess.Popen([*command, str(tmp_path)], env=environment, stderr=subprocess.PIPE) as program:
        try:
            state = state_when(
                port,
                lambda state: (
                    len(state["ranks"]) == 2
                    and all(any(rate["received"] for rate in rank["rates"]) for rank in state["ranks"])
                    and all(any(each["name"] == WEIGHT for each in rank["tensors"]) for rank in state["ranks"])
                ),
            )
            assert state["ranks"][0]["n_ranks"] == 2
            for rank, n_rows in zip(state["ranks"], (5, 2), strict=True):
                assert rank["meshes"] == [{"shape": [2], "names": ["tp"], "ranks": [0, 1]}]
                (weight,) = (tensor for tensor in rank["tensors"] if tensor["name"] == WEIGHT)
                assert weight["placements"] == ["Shard(0, sizes=[5, 2])"] and weight["shape"] == [7, 30]
                assert (weight["bytes"], weight["local_bytes"]) == (4 * 7 * 30, 4 * n_rows * 30)
                assert rank["local_bytes"] >= sum(tensor["local_bytes"] for tensor in rank["tensors"])
                (rate,) = (rate for rate in rank["rates"] if rate["ranks"] == [0, 1])
                assert rate["calls"] > 0 and rate["seconds"] >= 0
                assert rank["error"] is None
            (tmp_path / "fail").touch()
            state = state_when(port, lambda state: any(rank["error"] for rank in state["ranks"]))
            (failed,) = (rank for rank in state["ranks"] if rank["error"])
            assert failed["rank"] == 1 and failed["error"]["text"] == "ValueError: rank 1 has had enough <b>"
            assert "live_program.py" in failed["error"]["line"]
            program.communicate(timeout=60)
        finally:
            program.terminate()


@needs_browser
def test_a_browser_shows_what_the_program_does(port, tmp_path):
    address = f"http://127.0.0.1:{port}/"
    environment = {**os.environ, "SHARDWISE_WATCH": f"{port}"}
    complaints = []
    with started_browser() as browser:
        page = new_page(browser, complaints, (address,))
        page.goto(address)
        page.get_by_text("No program has said anything yet").wait_for()
        command = [*LAUNCHER, "--nproc-per-node", "2", str(PROGRAM), str(tmp_path)]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as program:
            try:
                page.locator("#ranks .rank.work").nth(1).wait_for()
                page.locator("#links td", has_text="tp").wait_for()
                page.locator("#tensors td", has_text=WEIGHT).first.wait_for()
                assert "2 of 2 ranks" in page.locator("#summary").inner_text()
                assert page.locator("#meshes td").all_inner_texts() == ["0", "1"]
                assert page.locator("#errors").is_hidden()
                (tmp_path / "fail").touch()
                page.locator("#errors pre").wait_for()
                assert page.locator("#errors pre").all_inner_texts() == ["ValueError: rank 1 has had enough <b>"]
                assert page.locator("#ranks .rank.fail b").all_inner_texts() == ["rank 1"]
                program.communicate(timeout=60)
            finally:
                program.terminate()
    assert complaints == []


def snapshot_of(rank, time, seconds, pid=1):
    group = {"ranks": [0, 1], "calls": 10 * time, "sent": 0, "received": 100 * time, "seconds": seconds}
    mesh = {"shape": [2], "names": ["tp"], "ranks": [0, 1]}
    tensor = {"name": "w", "shape": [4], "dtype": "float32", "placements": ["Shard(0)"], "mesh": [2]}
    return {
        "job": "a",
        "rank": rank,
        "n_ranks": 2,
        "host": "here",
        "pid": pid,
        "time": time,
        "began": 0.5,
        "memory": 1000,
        "groups": [group],
        "waits": [{"name": "all_reduce", "op": "aten::mm", "seconds": 0.5, "ranks": None}],
        "error": {"text": "ValueError", "line": "a.py:1", "time": 1.0},
        "meshes": [mesh],
        "tensors": [{**tensor, "bytes": 16, "local_bytes": 8}],
        "n_tensors": 1,
        "local_bytes": 8,
    }


WHOLE = json.dumps(snapshot_of(0, 1.0, 0))
# what stands in it, what stands there instead
DAMAGES = [
    (WHOLE, "{}"),
    (WHOLE, "[1"),
    ('"rank": 0', '"rank": -1'),
    ('"rank": 0', '"rank": 1e999'),
    ('"pid": 1, ', ""),
    ('"time": 1.0', '"time": NaN'),  # the page's JSON has none
    ('"time": 1.0', '"time": 1e999'),
    ('"calls": 10.0, ', ""),
    ('"calls": 10.0', '"calls": "10"'),
    ('"shape": [2]', '"shape": [3]'),  # of a mesh
    ('"shape": [2]', '"shape": [-1, -2]'),
    ('"a"', '"\\ud800"'),  # no text
    ('"a"', "[" * 100_000 + "]" * 100_000),
]


def test_what_is_no_snapshot_is_refused(port):
    as_json = {"Content_Type": "application/json"}
    for whole, damaged in DAMAGES:
        assert ask(port, "POST", "/feed", WHOLE.replace(whole, damaged), **as_json)[0] == 400, damaged[:20]
        status, state = ask(port, "GET", "/state")
        assert status == 200 and json.loads(state)["jobs"] == [], damaged[:20]
    assert ask(port, "POST", "/feed", WHOLE, Content_Type="text/plain")[0] == 415  # what another page may send
    assert ask(port, "POST", "/feed", " " * MOST_BYTES + WHOLE, **as_json)[0] == 413
    assert ask(port, "GET", "/state", Host="example.com")[0] == 400
    assert json.loads(ask(port, "GET", "/state")[1])["ranks"] == []
    assert ask(port, "POST", "/feed", WHOLE, **as_json)[0] == 200
    assert json.loads(ask(port, "GET", "/state")[1])["jobs"] == ["a"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda whole: whole.pop("waits"), "waits is missing"),
        (lambda whole: whole.update(meshes=None), "meshes is no list"),
        (lambda whole: whole.update(tensors=[1]), "tensors[0] is no object"),
        (lambda whole: whole["waits"][0].pop("seconds"), "waits[0].seconds is missing"),
        (lambda whole: whole["waits"][0].update(ranks=["0"]), "waits[0].ranks[0] is not a whole number from 0 on"),
        (lambda whole: whole["waits"][0].update(seconds=True), "waits[0].seconds is not a finite number"),
        (lambda whole: whole["meshes"][0].update(ranks=[0, -1]), "meshes[0].ranks[1] is not a whole number from 0 on"),
        (lambda whole: whole["meshes"][0].update(shape=[3]), "meshes[0] of shape [3] has 2 ranks"),
        (lambda whole: whole["tensors"][0].update(placements=[0]), "tensors[0].placements[0] is not a text"),
        (lambda whole: whole.update(error="ValueError"), "error is no object"),
        (lambda whole: whole.update(rank=1 << 16), "rank 65536 is more than 65535"),
    ],
)
def test_the_part_of_a_snapshot_that_is_wrong_is_named(damage, words):
    damaged = snapshot_of(0, 1.0, 0)
    damage(damaged)
    board = Board()
    with pytest.raises(ValueError, match=re.escape(words)):
        board.take(damaged)
    assert board.state()["jobs"] == []


def test_the_answer_to_a_wrong_snapshot_names_the_part(port):
    damaged = WHOLE.replace('"waits"', '"weights"')
    status, answer = ask(port, "POST", "/feed", damaged, Content_Type="application/json")
    assert (status, json.loads(answer)) == (400, {"error": "no snapshot: waits is missing"})


def test_parts_that_nobody_shows_are_not_kept():
    board = Board()
    board.take({**snapshot_of(0, 1.0, 0), "more": "x"})
    assert "more" not in board.state()["ranks"][0]


def test_a_client_that_hangs_up_is_no_complaint(port):
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"POST /feed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        client.sendall(b"Content-Length: 100\r\n\r\n{")
    assert ask(port, "GET", "/state")[0] == 200


def test_an_interrupt_ends_the_page_without_a_complaint(server):
    started, port = server
    assert ask(port, "GET", "/state")[0] == 200
    started.send_signal(signal.SIGINT)
    assert started.wait(60) == 0


def test_the_page_stands_alone(port):
    status, page = ask(port, "GET", "/")
    assert status == 200 and "<title>shardwise watch</title>" in page
    assert "//" not in page.replace("http://www.w3.org/2000/svg", "").split("<script>")[0]


def test_a_taken_port_is_an_error(port):
    result = forked_python("-m", "shardwise", "watch", "--port", port, imported=TORCHS, timeout=60)
    assert result.returncode == 2 and "Address already in use" in result.stderr
    assert f"[watch] port {port} of 127.0.0.1 cannot be opened" in result.stderr and "--port 0" in result.stderr


def test_an_output_that_cannot_be_written_is_no_error_of_the_port():
    command = [sys.executable, "-m", "shardwise", "watch", "--port", "0"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.endswith("error: standard output cannot be written: No space left on device. Send it elsewhere.")


@pytest.mark.parametrize("text", ["x", "-1", "65536", "\u00b2", "9" * 5000])
def test_what_is_no_port_is_an_error_of_usage(text):
    result = finished_command("watch", "--port", text)
    assert is_error_in_a_line(result, "watch") and " is no port. Give a number from 0 to 65535." in result.stderr


def test_a_buffer_that_is_computed_is_surveyed_without_a_warning():
    module = torch.nn.Module()
    module.register_buffer("scaled", torch.ones(3, requires_grad=True) * 2)
    with warnings.catch_warnings(action="error"):
        assert Surveyor().seen(0)["n_tensors"] >= 0
    assert module.scaled is not None


def test_a_module_that_is_half_made_is_no_error():
    half = torch.nn.Module.__new__(torch.nn.Module)
    assert Surveyor().seen(0)["n_tensors"] >= 0
    assert isinstance(half, torch.nn.Module)


class Odd(torch.nn.Module):
    def named_buffers(self, *of, **how):
        raise RuntimeError("not yet")


class Forgetful(torch.nn.Module):
    def __init__(self):
        self.x = 1  # and no super().__init__()


def test_a_module_that_cannot_be_walked_hides_nothing_else(monkeypatch):
    def names():
        return {row["name"] for row in Surveyor().seen(0)["tensors"]}

    def body(rank):
        gc.collect()  # the page shows the largest tensors, and other tests may have left some
        mesh = sw.init_device_mesh("cpu", (1,))
        inner = Odd()
        inner.weight = torch.nn.Parameter(sw.ones(1 << 16, device_mesh=mesh))
        model = torch.nn.Sequential(inner, Forgetful.__new__(Forgetful), torch.nn.Linear(2, 2, bias=False))
        model = model.append(sw.distribute_module(torch.nn.Linear(256, 256, bias=False), mesh))
        forgetful = Forgetful()
        assert {"Sequential.0.weight", "Sequential.3.weight"} <= names() and forgetful.x == 1
        row = Surveyor._row
        broken = id(inner.weight)

        def fails(self, tensor, name, rank):
            assert id(tensor) != broken
            return row(self, tensor, name, rank)

        monkeypatch.setattr(Surveyor, "_row", fails)
        seen = Surveyor().seen(0)
        assert "Sequential.3.weight" in names() and "Sequential.0.weight" not in names() and seen["meshes"]

    run_ranks(1, body)


@contextlib.contextmanager
def open_feed(port):
    """One that sends when it is told to."""
    feed = Feed(port, every=1000)
    try:
        yield feed
    finally:
        feed.close()


def test_a_port_of_another_program_is_no_error():
    def answer():
        with contextlib.closing(listener.accept()[0]) as client:
            client.recv(1 << 16)
            client.sendall(b"who is there?\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=answer).start()
        with open_feed(listener.getsockname()[1]) as feed:
            assert not feed.send()
            listener.close()


def test_large_meshes_are_shown(port, monkeypatch):
    ranks = list(range(1 << 16))
    group = {"ranks": ranks, "calls": 0, "sent": 0, "received": 0, "seconds": 0.0}
    meshes = [{"shape": [256, 256], "names": [], "ranks": ranks}, {"shape": [1 << 16], "names": [], "ranks": ranks}]
    large = {**snapshot_of(0, 1.0, 0), "groups": [group], "meshes": meshes}
    monkeypatch.setattr(live_feed, "PATIENCE", 60)
    monkeypatch.setattr(live_feed, "snapshot", lambda *of: large)
    with open_feed(port) as feed:
        assert feed.send()
    assert json.loads(ask(port, "GET", "/state")[1])["ranks"][0]["meshes"] == meshes


def test_a_snapshot_that_the_page_does_not_take_is_told_once(port, monkeypatch):
    monkeypatch.setattr(live_feed, "PATIENCE", 60)
    monkeypatch.setattr(live_feed, "snapshot", lambda *of: {"text": "x" * MOST_BYTES})
    with open_feed(port) as feed:
        with pytest.warns(RuntimeWarning, match=r"\[watch\] this rank is not shown: .* bytes"):
            assert not feed.send()
        with warnings.catch_warnings(action="error"):
            assert not feed.send()


def test_the_programs_own_hook_runs_whatever_the_feed_does(monkeypatch):
    hooked = []
    monkeypatch.setattr(sys, "excepthook", lambda *of: hooked.append(of))
    error = LastError()
    error.on_error = lambda: 1 / 0
    sys.excepthook(ValueError, ValueError("enough"), None)
    error.close()
    assert len(hooked) == 1 and error.last["text"] == "ValueError: enough"


@pytest.mark.parametrize("call", ["torch.nn.Linear(2, 2)(torch.zeros(3))", "sw.debug.watch(70_000)"])
def test_the_line_of_an_error_is_the_programs(call, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *of: None)
    error = LastError()
    try:
        exec(compile(f"\n{call}", "/x/shardwise-demo/train.py", "exec"), {"torch": torch, "sw": sw})
    except (RuntimeError, ValueError) as raised:
        sys.excepthook(type(raised), raised, raised.__traceback__)
    error.close()
    assert error.last["line"] == "/x/shardwise-demo/train.py:2"


def test_rates_are_those_between_two_snapshots():
    board = Board()
    board.take(snapshot_of(0, 10.0, 0.0))
    assert board.state()["ranks"][0]["rates"][0]["received"] == 0
    board.take(snapshot_of(0, 12.0, 1.0))
    (rate,) = board.state()["ranks"][0]["rates"]
    assert (rate["received"], rate["calls"], rate["seconds"]) == (100, 10, 0.5)
    board.take(snapshot_of(0, 14.0, 0.5, pid=2))  # started again
    assert board.state()["ranks"][0]["rates"][0]["received"] == 0


def test_the_slowest_rank_is_the_one_whose_communications_take_least():
    def ranks(*groups):
        """Each is a share of the time by rank; or with it the calls of late, and those in all."""
        known = {
            rank: {"rank": rank, "rates": [], "silent": False, "error": None} for group in groups for rank in group
        }
        for group in groups:
            for rank, values in group.items():
                busy, n_new, n_calls = values if isinstance(values, tuple) else (values, 5, 5)
                rate = {"ranks": list(group), "busy": busy, "new_calls": n_new, "total_calls": n_calls}
                known[rank]["rates"] += [rate] if values is not None else []
        return list(known.values())

    assert slowest(ranks({0: 0.5, 1: 0.05, 2: 0.4})) == 1
    assert slowest(ranks({0: 0.05, 1: 0.06})) is None
    assert slowest(ranks({0: 0.5})) is None and slowest([]) is None
    # The first call of a group: rank 1 has not come to it.
    assert slowest(ranks({0: (0.5, 1, 1), 1: None})) == 1
    # Rank 2 communicates with nobody, or has stayed away from calls that ended: nobody waits for it.
    assert slowest(ranks({0: 0.9, 1: 0.1}, {0: (0.0, 0, 3), 1: (0.0, 0, 3), 2: (0.0, 0, 3)})) == 1
    assert slowest(ranks({0: (0.9, 40, 43), 1: (0.1, 40, 43), 2: (0.0, 0, 3)})) == 1
    # Rank 2 has come, and had nothing to wait for.
    assert slowest(ranks({0: (1.0, 0, 8), 1: (0.0, 0, 7), 2: (0.01, 0, 8)})) == 1
    # Rank 2 waits for rank 1, which waits for rank 0.
    assert slowest(ranks({1: 0.0, 2: 1.0}, {0: 0.0, 1: 1.0})) == 0
    for gone in ({"silent": True}, {"error": {"text": ""}}):
        first, second = ranks({0: 0.9, 1: 0.1})
        assert slowest([first, second | gone]) is None


def test_the_rank_that_others_wait_for_is_known_while_they_wait():
    """No communication ends meanwhile."""

    def state_of(ranks_of_wait):
        board = Board()
        for moment in (10.0, 11.0, 12.0, 13.0):
            for rank in range(3):
                waits = [{"name": "all_reduce", "op": "", "seconds": moment - 10.5, "ranks": ranks_of_wait}]
                snapshot = snapshot_of(rank, moment, 2.0) | {"n_ranks": 3, "error": None}
                groups = [
                    {
                        "ranks": group,
                        "calls": calls + (moment > 10 and calls == 7 and rank != 2),
                        "sent": 0,
                        "received": 0,
                        "seconds": 2.0,
                    }
                    for group, calls in (([0, 1], 4), ([0, 1, 2], 7))
                    if rank in group
                ]
                board.take(snapshot | {"groups": groups, "waits": waits if moment > 10.5 and rank != 2 else []})
        return board.state()

    for ranks_of_wait in (None, [0, 1, 2]):
        state = state_of(ranks_of_wait)
        assert [[rate["busy"] for rate in rank["rates"]] for rank in state["ranks"]] == [[0, 1], [0, 1], [0]]
        assert state["slowest"] == 2


def test_ranks_of_an_earlier_run_do_not_stay():
    def take(rank, n_ranks, pid, began, **values):
        board.take(snapshot_of(rank, began + 1, 0, pid) | {"n_ranks": n_ranks, "began": began} | values)

    def shown():
        return [(rank["rank"], rank["pid"]) for rank in board.state()["ranks"]]

    board = Board()
    for rank in range(4):
        take(rank, 4, 100 + rank, 10.0 + rank)
    take(1, 2, 201, 20.0)
    take(0, 2, 200, 21.0)
    assert shown() == [(0, 200), (1, 201)]
    take(3, 4, 103, 13.0)  # its last words
    take(0, 4, 100, 10.0)
    assert shown() == [(0, 200), (1, 201)]
    take(1, 2, 301, 30.0)  # started again
    assert shown() == [(0, 200), (1, 301)]
    take(1, 2, 302, 31.0, groups=[])  # a process that the rank started
    assert shown() == [(0, 200), (1, 301)]
    board._jobs["a"][1]["heard"] -= 100
    take(1, 2, 302, 31.0, groups=[])
    assert shown() == [(0, 200), (1, 302)]


def test_the_program_that_began_last_is_shown_unless_it_is_over():
    board = Board()
    for job, began in (("old", 10.0), ("new", 20.0), ("old", 10.0)):
        board.take(snapshot_of(0, 30.0, 0) | {"job": job, "began": began})
    assert (board.state()["jobs"], board.state()["job"], board.state("old")["job"]) == (["new", "old"], "new", "old")
    board._jobs["new"][0]["heard"] -= 6
    assert board.state()["job"] == "old" and board.state("new")["ranks"][0]["silent"]


def test_a_rank_that_speaks_seldom_is_not_silent():
    board = Board()
    for moment in (10.0, 30.0):
        board.take(snapshot_of(0, moment, 0))
    board._jobs["a"][0]["heard"] -= 40
    assert not board.state()["ranks"][0]["silent"]
    board._jobs["a"][0]["heard"] -= 40
    assert board.state()["ranks"][0]["silent"]


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"\[watch\] port 70000 is none"):
        sw.debug.watch(70000)
    for every in (0, float("nan"), float("inf"), 1e300):
        with pytest.raises(ValueError, match=rf"\[watch\] every is {re.escape(str(every))} seconds"):
            sw.debug.watch(every=every)
    for port in ("x", 8765.5, True):
        with pytest.raises(TypeError, match=rf"\[watch\] port is {port!r}, which is no whole number\. Give one from 1"):
            sw.debug.watch(port)
    for every in ("x", None, True):
        with pytest.raises(TypeError, match=rf"\[watch\] every is {every!r}, which is no number\. Give the seconds"):
            sw.debug.watch(every=every)


def test_nothing_runs_where_it_is_off():
    assert "SHARDWISE_WATCH" not in os.environ
    assert all(thread.name != "shardwise watch" for thread in threading.enumerate())


@pytest.mark.parametrize(("value", "port"), [("", None), ("0", None), ("1", 8765), ("9000", 9000)])
def test_what_the_environment_says(monkeypatch, value, port):
    monkeypatch.setenv("SHARDWISE_WATCH", value)
    assert live_feed.port_from_environment() == port


@pytest.mark.parametrize("value", ["yes", "²", "٣", "-1", "1" * 5000])
def test_an_environment_that_says_nothing_of_sense(monkeypatch, value):
    monkeypatch.setenv("SHARDWISE_WATCH", value)
    with pytest.raises(ValueError, match=rf'\[watch\] SHARDWISE_WATCH is "{value}"'):
        live_feed.port_from_environment()


def test_what_imports_shardwise_is_watched_where_it_is_a_rank(monkeypatch):
    watched = []
    monkeypatch.setattr(live_feed, "watch", lambda: watched.append(1))
    monkeypatch.setattr(live_feed, "_is_asked", False)
    monkeypatch.setenv("SHARDWISE_WATCH", "1")
    monkeypatch.delenv("RANK", raising=False)
    live_feed.watch_if_asked()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setattr(live_feed.multiprocessing, "parent_process", lambda: "one")
    live_feed.watch_if_asked()
    assert watched == []
    _torch_groups.on_world()
    _torch_groups.on_world()  # after close(), say
    assert watched == [1]
    monkeypatch.setattr(live_feed, "_is_asked", False)
    monkeypatch.setattr(live_feed.multiprocessing, "parent_process", lambda: None)
    live_feed.watch_if_asked()
    assert watched == [1, 1]


def test_processes_that_a_rank_starts_are_not_shown_and_ranks_that_are_started_so_are(port, tmp_path):
    """A worker of a DataLoader has the rank's environment; torch.multiprocessing starts ranks."""
    environment = {**os.environ, "SHARDWISE_WATCH": f"{port}", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    program = ForkedProcess(PROGRAM.with_name("live_children.py"), tmp_path, env=environment)
    try:
        state_when(port, lambda state: len(state["ranks"]) == 2 and len(list(tmp_path.glob("*-*"))) == 3)
        time.sleep(1.5)  # a snapshot more of each
        pids = {int(path.name.removeprefix("rank-")) for path in tmp_path.glob("rank-*")}
        state = json.loads(ask(port, "GET", "/state")[1])
        assert {each["pid"] for each in state["ranks"]} == pids and len(state["jobs"]) == 1
        assert [each["n_ranks"] for each in state["ranks"]] == [2, 2]
        assert (tmp_path / "worker-False").exists()
    finally:
        (tmp_path / "over").touch()
        program.wait(60)


LINKS = """
const [page, states] = process.argv.slice(1);
const script = require("fs").readFileSync(page, "utf8").split("<script>")[1].split("</script>")[0];
const nothing = {getElementById: () => ({}), createElement: () => ({})};
const there = require("vm").createContext({document: nothing, fetch: () => new Promise(() => {}), shown: []});
require("vm").runInContext(script, there);
there.sparkline = values => [...values];
there.table = (place, heads, rows) => there.shown.push(rows.map(row => [row[1], row[2], row[3], row[6]]));
for (const state of JSON.parse(states)) there.showLinks(state);
console.log(JSON.stringify(there.shown));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_links_are_those_of_programs_that_run():
    def state(job, now, *received):
        rates = [
            {"ranks": [0, 1], "calls": 1, "busy": 0.1, "received": each, "total_received": 500} for each in received
        ]
        mesh = {"shape": [2], "names": ["tp"], "ranks": [0, 1]}
        ranks = [{"rank": 0, "silent": now > 1000, "rates": [rate], "meshes": [mesh]} for rate in rates]
        return {"job": job, "now": now, "ranks": ranks}

    states = [state("a", 101, 30, 10), state("b", 101, 7), state("a", 3000, 30, 10)]
    command = ["node", "-e", LINKS, "--", str(PAGE), json.dumps(states)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(shown) == [
        # link, now, last minute, in all
        [["tp", "40 B/s", [40], "1 kB"]],
        [["tp", "7 B/s", [7], "500 B"]],
        [["tp", "0 B/s", [40, 0], "1 kB"]],
    ]


JOBS = """
const [page] = process.argv.slice(1);
const script = require("fs").readFileSync(page, "utf8").split("<script>")[1].split("</script>")[0];
const anything = new Proxy(function () {}, {
  get: (_, key) => key === Symbol.toPrimitive ? () => "" : anything, set: () => true, apply: () => anything});
const select = {options: [], value: "", hidden: true, replaceChildren(...options) { this.options = options; this.value = options[0].value; }};
const summary = {textContent: ""};
const document = {getElementById: id => ({jobs: select, summary}[id] ?? anything), createElement: () => anything, createElementNS: () => anything};
class Option { constructor(text, value) { this.value = value; } }
class Element {}
const shown = [], server = {jobs: []};
const rank = {rank: 0, n_ranks: 1, pid: 1, host: "h", heard: 0, began: 0, rates: [], meshes: [], tensors: [], waits: [], error: null};
async function fetch(address) {
  const asked = decodeURIComponent(address.split("job=")[1] ?? "");
  const job = server.jobs.includes(asked) ? asked : server.jobs[0] ?? null;
  return {json: async () => ({jobs: server.jobs, job, now: 1, slowest: null, ranks: job ? [rank] : []})};
}
const there = require("vm").createContext({document, Element, Option, fetch, setTimeout: () => {}, console});
(async () => {
  require("vm").runInContext(script, there);
  const refresh = async jobs => {
    server.jobs = jobs;
    await there.refresh();
    shown.push([summary.textContent.split(":")[0], select.value]);
  };
  await refresh(["one"]);
  await refresh(["two", "one"]);  // the next one has begun
  select.value = "one";
  select.onchange();
  await refresh(["two", "one"]);
  await refresh(["three", "two", "one"]);
  await refresh(["three", "two"]);
  await refresh(["four", "three"]);
  console.log(JSON.stringify(shown));
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_page_stays_on_a_program_only_if_somebody_chose_it():
    command = ["node", "-e", JOBS, "--", str(PAGE)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(shown) == [[job, job] for job in ("one", "two", "one", "one", "three", "four")]


# Elements that can do everything, and show nothing.
PARTS = """
const [page, states] = process.argv.slice(1);
const script = require("fs").readFileSync(page, "utf8").split("<script>")[1].split("</script>")[0];
const element = new Proxy(function () {}, {
  get: (_, key) => key === Symbol.toPrimitive ? () => "" : element, set: () => true, apply: () => element});
const document = {getElementById: () => element, createElement: () => element, createElementNS: () => element};
class Element {}
class Option {}
const failed = [];
const there = require("vm").createContext({
  document, Element, Option, fetch: () => new Promise(() => {}), console: {error: error => failed.push(String(error))}});
require("vm").runInContext(script, there);
for (const state of JSON.parse(states)) there.showAll(state);
console.log(JSON.stringify(failed));
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_page_shows_ranks_of_which_parts_are_missing():
    board = Board()
    for rank in range(2):
        board.take(snapshot_of(rank, 1.0, 0))
    whole = board.state()
    states = [whole]
    for part in whole["ranks"][0]:
        rank = {key: value for key, value in whole["ranks"][0].items() if key not in (part, "error")}
        states.append({**whole, "ranks": [rank, whole["ranks"][1]]})
    command = ["node", "-e", PARTS, "--", str(PAGE), json.dumps(states)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert json.loads(shown) == []
