"""Programs that hang: what their ranks write, and what `python -m shardwise hang` makes of it."""

import copy
import gc
import json
import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import finished_command, is_error_in_a_line
from torchrun import TORCHS, ForkedProcess, forked_python

import shardwise as sw
from shardwise import Shard
from shardwise.__main__ import main
from shardwise.debug.flight_files import Call, Flight, read_flights
from shardwise.debug.hang import describe_hang, hang_rows
from shardwise.testing import run_ranks

PROGRAM = Path(__file__).with_name("hang_program.py")
PATIENCE = 120
MOST_RANKS = 16  # of any test's threads


@pytest.fixture(autouse=True)
def no_worlds_of_other_tests():
    """A rank of a world that another test left alive has a file. Caches of autograd's threads may keep such a world, so each rank gets a new one."""
    gc.collect()
    run_ranks(
        MOST_RANKS,
        lambda rank: (
            sw.ones(2, device_mesh=sw.init_device_mesh("cpu", (MOST_RANKS,)), placements=[Shard(0)]).placements
        ),
    )
    gc.collect()


@contextmanager
def processes(part, n_ranks, folder, **variables):
    """The ranks of a program, which are killed at the end."""
    environment = {
        **os.environ,
        "SHARDWISE_DUMP_FOLDER": str(folder),
        "SHARDWISE_DUMP_SIGNAL": "1",
        "SHARDWISE_WAIT_WARNING": "1",
        **variables,
    }
    started = [ForkedProcess(PROGRAM, part, folder, rank, n_ranks, env=environment) for rank in range(n_ranks)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait(PATIENCE)


def wait_for(condition, started):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        for process in started:
            assert process.poll() in (None, 0), process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def files(folder):
    return sorted(folder.glob("shardwise-rank*.json"))


def of_threads(paths):
    """Those of the ranks that are threads. A world that another test left open has one, too."""
    return [path for path in map(Path, paths) if "-thread-" in path.name]


def line_of(words):
    """The number of the program's line that holds these words."""
    lines = PROGRAM.read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if words in line)


def hang(capsys, paths):
    main(["hang", *map(str, paths)])
    return capsys.readouterr().out


def test_a_rank_that_stays_away_is_named_with_its_place(tmp_path, capsys):
    began = time.time()
    with processes("stays_away", 3, tmp_path) as started:
        wait_for(lambda: len(files(tmp_path)) == 2 and (tmp_path / "away-2").exists(), started)
        without = hang(capsys, files(tmp_path))
        assert re.search(r"Ranks 0-1 have waited \d+\.\d s, since [\d:]{8}, for rank 2 in ", without), without
        assert (
            "rank 2 left no file: it is gone, or nobody asked it (kill -USR1 PID, if it was started with SHARDWISE_DUMP_SIGNAL=1)"
            in without
        )
        started[2].send_signal(signal.SIGUSR1)  # its Python sleeps
        wait_for(lambda: len(files(tmp_path)) == 3, started)
        text = hang(capsys, files(tmp_path))
    sentence = text.splitlines()[0]
    assert re.match(
        r"Ranks 0-1 have waited \d+\.\d s, since [\d:]{8}, for rank 2 in all_reduce for aten::\S+ \(Float\), "
        rf"call \d+ of the ranks 0-2 at \S*hang_program\.py:{line_of('# the sum')} in stays_away; rank 2 has made \d+ of these "
        rf"calls, the last communication .* at [\d:]{{8}}, and is at \S*hang_program\.py:{line_of('time.sleep(600)')} in reads_a_file\.$",
        sentence,
    ), sentence
    assert "SIGUSR1" in text and "a wait takes long" in text
    flights = read_flights(files(tmp_path))
    assert [flight.current() is None for flight in flights.values()] == [False, False, True]
    assert any("in stays_away" in line for line in flights[2].stack)
    assert all(began - 1 < flight.began < flight.calls[0].begin for flight in flights.values())  # its process


def test_a_rank_that_hangs_in_gloo_answers_the_signal(tmp_path):
    with processes("stays_away", 3, tmp_path, SHARDWISE_WAIT_WARNING="0") as started:
        wait_for(lambda: (tmp_path / "away-2").exists(), started)
        assert not files(tmp_path)

        def rank_0_waits():
            started[0].send_signal(signal.SIGUSR1)
            time.sleep(0.3)
            return files(tmp_path) and read_flights(files(tmp_path))[0].current() is not None

        wait_for(rank_0_waits, started)
        (path,) = files(tmp_path)
        flight = read_flights([path])[0]
        assert path.name == f"shardwise-rank0-pid{started[0].pid}.json" and flight.pid == started[0].pid
        assert flight.reason == "SIGUSR1" and flight.n_ranks == 3
        assert started[0].poll() is None, "the signal ended the program"
        assert re.search(r"hang_program\.py:\d+ in stays_away", flight.line)


def test_ranks_that_call_different_collectives_are_named(tmp_path, capsys):
    with processes("parts", 3, tmp_path, SHARDWISE_WAIT_WARNING="0") as started:

        def all_have_parted():
            for process in started:
                process.send_signal(signal.SIGUSR1)
            time.sleep(0.3)
            return len(files(tmp_path)) == 3 and describe_hang(read_flights(files(tmp_path))).startswith(
                "The ranks parted"
            )

        wait_for(lambda: all(handles_signal(process.pid) for process in started), started)
        wait_for(all_have_parted, started)
        sentence = hang(capsys, files(tmp_path)).splitlines()[0]
    assert re.match(
        r"The ranks parted at call \d+ of the ranks 0-2: ranks 0, 2 made it all_reduce for aten::\S+ \(Float\)( at \S+ in \w+)?, "
        r"rank 1 made it exchange for redistribute",
        sentence,
    ), sentence


def handles_signal(pid):
    """Whether the process has a handler for SIGUSR1."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
    return bool(caught & 1 << (signal.SIGUSR1 - 1))


def test_ranks_that_wait_for_each_other_in_a_circle_are_named(tmp_path, capsys):
    with processes("circle", 3, tmp_path) as started:
        wait_for(lambda: len(files(tmp_path)) == 3, started)
        sentence = hang(capsys, files(tmp_path)).splitlines()[0]
    assert sentence.startswith("Ranks wait for each other since "), sentence
    for waiting, other in ((0, 1), (1, 2), (2, 0)):
        pair = "-".join(map(str, sorted((waiting, other)))) if abs(waiting - other) == 1 else "0, 2"
        assert re.search(
            rf"rank {waiting} waits for rank {other} in all_reduce for \S+ \(Float\) of the ranks {pair} at ", sentence
        )


def test_a_killed_rank_left_no_file_and_the_others_wrote_theirs(tmp_path, capsys):
    with processes("killed", 3, tmp_path) as started:
        assert [process.wait(PATIENCE) for process in started] == [3, -signal.SIGKILL, 3]
    assert [json.loads(path.read_text())["rank"] for path in files(tmp_path)] == [0, 2]
    text = hang(capsys, files(tmp_path))
    assert re.match(
        r"Ranks? [\d,\s-]+ (has|have) failed in all_reduce for aten::\S+ \(Float\), call \d+ of the ranks 0-2 at \S+ in killed; "
        r"rank 1 left no file",
        text,
    ), text
    assert re.search(r"^1 +no file", text, re.MULTILINE)


def test_the_check_names_the_programs_lines(tmp_path):
    with processes("checked", 3, tmp_path, SHARDWISE_CHECK="1") as started:
        assert [process.wait(PATIENCE) for process in started] == [0, 0, 0]
    errors = {(tmp_path / f"error-{rank}").read_text() for rank in range(3)}
    (error,) = errors
    assert re.match(
        r"\[check\] rank 0 is about to all_reduce 1 element for aten::\S+ \(.*as \[Partial\(sum\)\].*\) at "
        rf"\S*hang_program\.py:{line_of('# the sum')} in checked, "
        r"rank 1 to exchange for redistribute \(.*Shard\(0\).*\) at "
        rf"\S*hang_program\.py:{line_of('# to all')} in checked\. Every rank must",
        error.replace("\n", " "),
    ) or re.search(
        r"hang_program\.py:\d+ in checked, rank 1 to exchange .* at \S*hang_program\.py:\d+ in checked", error
    ), error


def test_a_signal_that_nobody_asked_for_keeps_its_meaning(tmp_path):
    with processes("stays_away", 3, tmp_path, SHARDWISE_DUMP_SIGNAL="", SHARDWISE_WAIT_WARNING="0") as started:
        wait_for(lambda: (tmp_path / "away-2").exists(), started)
        assert not any(handles_signal(process.pid) for process in started)
        started[2].send_signal(signal.SIGUSR1)
        assert started[2].wait(PATIENCE) == -signal.SIGUSR1


def test_files_that_nobody_named_a_folder_for_are_found_again(tmp_path, monkeypatch):
    """In a folder of temporary files, wherever the program has gone meanwhile; a relative name counts from where it began."""
    program = "import os, shardwise as sw; os.chdir('/'); print(sw._C.dump_folder())"
    monkeypatch.chdir(tmp_path)
    for given, expected in (("", tmp_path / f"shardwise-dumps-{os.getuid()}"), ("here", tmp_path / "here")):
        environment = {**os.environ, "TMPDIR": str(tmp_path), "SHARDWISE_DUMP_FOLDER": given}
        result = forked_python("-c", program, imported=TORCHS, env=environment)
        assert result.stdout.strip() == str(expected)


def test_the_command_reads_that_folder_where_none_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("SHARDWISE_DUMP_FOLDER", raising=False)
    with pytest.raises(SystemExit):
        main(["hang"])
    assert "shardwise-dumps-" in capsys.readouterr().err
    written = run_ranks(1, lambda rank: sw.init_device_mesh("cpu", (1,)) and sw.debug.dump())[0]
    assert all(path.startswith(str(tmp_path)) for path in written)
    main(["hang"])
    assert "rank" in capsys.readouterr().out


def test_a_signal_before_the_first_mesh_does_not_end_the_process():
    program = "import os, signal, shardwise; os.kill(os.getpid(), signal.SIGUSR1); print('goes on')"
    environment = {**os.environ, "SHARDWISE_DUMP_SIGNAL": "1"}
    result = forked_python("-c", program, imported=TORCHS, env=environment)
    assert result.stdout.strip() == "goes on"


@pytest.mark.parametrize("part", ["own_handler", "early_signal"])
def test_signals(part, tmp_path):
    with processes(part, 2, tmp_path) as started:
        assert [process.wait(PATIENCE) for process in started] == [0, 0], [process.stderr.read() for process in started]
    names = [path.name for path in files(tmp_path)]
    assert len(names) == (0 if part == "own_handler" else 2), names
    assert (tmp_path / "own-1").exists() == (part == "own_handler")


def test_a_file_that_was_not_written_to_its_end_is_left_out(tmp_path):
    """As where a rank is killed meanwhile."""

    def body(rank):
        sw.init_device_mesh("cpu", (1,))
        return sw.debug.dump(tmp_path)

    (written,) = of_threads(run_ranks(1, body)[0])
    partial = Path(f"{written}.4711.partial")
    partial.write_text('{"version": 1, "comm')
    assert [flight.rank for flight in read_flights([partial, written]).values()] == [0]
    with pytest.raises(ValueError, match=r"\[hang\] got no files"):
        read_flights([partial])


def test_ranks_that_are_threads_have_a_file_each(tmp_path):
    written = []

    def body(rank):
        tensor = sw.ones(7, device_mesh=sw.init_device_mesh("cpu", (3,)), placements=[Shard(0)])
        tensor.sum().item()
        if rank == 2:
            watched = threading.Thread(target=ask)
            watched.start()
            watched.join()
        return tensor.sum().item()

    def ask():
        """While ranks 0 and 1 wait for rank 2."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            written[:] = of_threads(sw.debug.dump(tmp_path / "asked"))
            flights = read_flights(written)
            waits = flights[0].current(), flights[1].current()
            if all(wait and wait.call == flights[2].last.call + 1 for wait in waits):
                break
            time.sleep(0.05)

    assert run_ranks(3, body) == [7.0] * 3
    assert len(written) == 3
    flights = read_flights(written)
    assert [flight.rank for flight in flights.values()] == [0, 1, 2] and flights[0].n_ranks == 3
    sentence = describe_hang(flights)
    assert re.match(
        r"Ranks 0-1 have waited .* for rank 2 in all_reduce for .* at \S*test_hang\.py:\d+ in \S*body; ", sentence
    ), sentence
    assert re.search(
        r"rank 2 has made \d+ of these calls, .* and is at \S*(threading|test_hang)\.py:\d+ in ", sentence
    ), sentence


def test_nothing_that_hangs_is_said_to(tmp_path, capsys):
    all_done = threading.Barrier(2)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        sw.ones(4, device_mesh=mesh, placements=[Shard(0)]).sum().item()
        all_done.wait(PATIENCE)
        return sw.debug.dump(tmp_path) if rank == 0 else None

    paths = of_threads(run_ranks(2, body)[0])
    text = hang(capsys, paths)
    assert text.startswith("No rank of 2 waits for another; the last communication was all_reduce for ")
    assert re.search(r"^0 +runs +last all_reduce", text, re.MULTILINE)


# What the file of a rank says besides its communications and groups.
FACTS = {
    "version": 1,
    "rank": 0,
    "ranks": 2,
    "pid": 1,
    "host": "a",
    "reason": "",
    "time": 5.0,
    "line": "",
    "stack": [],
}


def test_files_that_are_none_are_refused(tmp_path, capsys):
    for name, text in (
        ("a.json", "nonsense"),
        ("b.json", "{}"),
        ("c.json", '{"version": 99, "communications": []}'),
        ("d.json", json.dumps(FACTS | {"communications": []})),
        ("e.json", json.dumps(FACTS | {"communications": [], "groups": "none"})),
        ("f.json", json.dumps(FACTS | {"communications": [{"group": 5}], "groups": []})),
        ("g.json", "[" * 100_000),
        ("h.json", json.dumps(FACTS | {"communications": [], "groups": [], "ranks": "two"})),
        ("i.json", json.dumps(FACTS | {"communications": [], "groups": [], "rank": -5})),
        ("j.json", json.dumps(FACTS | {"communications": [], "groups": [], "time": "late"})),
        ("k.json", json.dumps(FACTS | {"communications": [], "groups": [], "time": 1e300})),
        ("l.json", json.dumps(FACTS | {"communications": [], "groups": [], "ranks": 10**9})),
    ):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(SystemExit):
            main(["hang", str(path)])
        assert f"[hang] {path}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["hang", str(tmp_path / "missing.json")])
    assert "missing.json cannot be read: No such file or directory. Give files of" in capsys.readouterr().err
    result = finished_command("hang", tmp_path / "two\nlines.json")
    assert is_error_in_a_line(result, "hang") and r"two\nlines.json cannot be read: No such file" in result.stderr
    with pytest.raises(SystemExit):
        main(["hang", str(tmp_path)])
    assert f"[hang] {tmp_path} has no files of ranks" in capsys.readouterr().err


NAN = float("nan")
DAMAGE = [None, True, 1.5, -1, 10**30, 1e300, NAN, "x", [], {}, [1], [1.5], [None], [NAN], ["x"], [[]], [{}], {"x": 1}]
# Fields, and which of these values each may have.
FIELDS = {
    **{
        name: ["x"]
        for name in ("host", "run", "reason", "line", "name", "operator", "dtype", "state", "layouts", "source")
    },
    **{name: [] for name in ("rank", "pid", "calls", "call", "bytes_sent")},
    **{name: [1.5, -1] for name in ("time", "began", "begin")},
    **{name: [None, 1.5, -1] for name in ("waits_since", "end")},
    "group": [None],
    "stack": [[], ["x"]],
    "communications": [[]],
    "groups": [],  # of what is in it
}


@pytest.fixture(scope="module")
def dump_of_a_rank(tmp_path_factory):
    """One that a rank wrote, with whatever a communication may have."""

    def body(rank):
        sw.ones(4, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)]).sum().item()
        return sw.debug.dump(tmp_path_factory.mktemp("dumps")) if rank == 0 else None

    dump = json.loads(of_threads(run_ranks(2, body)[0])[0].read_text())
    last = dump["communications"][-1]
    assert last["group"] is not None and "end" in last, last
    dump.setdefault("run", "one")
    dump["communications"][-1] = {"waits_since": last["begin"], "layouts": "", "source": ""} | last
    return dump


def damaged_dumps(dump):
    """The name of a field, whether it may have the value, and the dump with it."""
    last = len(dump["communications"]) - 1
    for place in ((), ("groups", 0), ("communications", last)):
        whole = dump if not place else dump[place[0]][place[1]]
        for name, value in ((name, value) for name in whole for value in DAMAGE):
            other = copy.deepcopy(dump)
            (other if not place else other[place[0]][place[1]])[name] = value
            allowed = FIELDS.get(name, DAMAGE)  # the others are not read
            if name == "ranks":
                allowed = [[], [1]] if place else []
            if name != "version":
                yield (
                    name,
                    any(value is each or (type(value) is type(each) and value == each) for each in allowed),
                    other,
                )


def test_a_file_with_any_one_field_damaged_is_read_or_refused(dump_of_a_rank, tmp_path):
    path = tmp_path / "shardwise-rank0.json"
    n_refused = 0
    for name, is_allowed, dump in damaged_dumps(dump_of_a_rank):
        path.write_text(json.dumps(dump))
        result = finished_command("hang", path)
        if is_allowed:
            assert result.returncode == 0 and not result.stderr, (name, result.stderr)
            continue
        n_refused += 1
        assert is_error_in_a_line(result, "hang"), (name, result)
        found = re.search(rf'\[hang\] {path} is damaged: "(\w+)" is .*\. Leave it out, or let ', result.stderr)
        # In other groups and communications the first is missing of what is said of each.
        named = {"groups": ("groups", "ranks", "group"), "communications": ("communications", "group")}.get(
            name, (name,)
        )
        assert found and found[1] in named, (name, result.stderr)
    assert n_refused > 200
    for name in FIELDS:
        for entry in (dump_of_a_rank, dump_of_a_rank["groups"][0], dump_of_a_rank["communications"][-1]):
            optional = ("began", "run", "waits_since", "end", "layouts", "source", "bytes_sent", "communications")
            if name in entry and name not in optional:
                value = entry.pop(name)
                path.write_text(json.dumps(dump_of_a_rank))
                entry[name] = value
                with pytest.raises(ValueError, match=f'is damaged: "{name}" is missing'):
                    read_flights([path])


def test_a_file_counts_whatever_its_process_says_of_when_it_began(tmp_path):
    """As where a clock is set back meanwhile."""
    path = tmp_path / "shardwise-rank0.json"
    path.write_text(json.dumps(FACTS | {"time": 5.0, "began": 9.0, "groups": [], "communications": []}))
    assert list(read_flights([path])) == [0]


def test_the_newest_file_of_a_rank_counts(tmp_path):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        return sw.ones(4, device_mesh=mesh).sum().item()

    run_ranks(1, body)
    for name, moment in (("a", 5.0), ("b", 7.0), ("c", 6.0)):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({**FACTS, "time": moment, "groups": [], "communications": []})
        )
    flights = read_flights(sorted(tmp_path.glob("*.json")))
    assert flights[0].path.name == "b.json"
    assert describe_hang(flights) == "No rank of 1 waits for another; rank 1 left no file."
    assert [row[:2] for row in hang_rows(flights)] == [("rank", "state"), ("0", "runs"), ("1", "no file")]


def test_files_of_earlier_runs_are_left_out(tmp_path, capsys):
    """The rank that hangs has no file of this run, but one of the run before."""
    done = {
        "group": 0,
        "call": 3,
        "name": "all_reduce",
        "operator": "",
        "dtype": "Float",
        "state": "done",
        "begin": 1.0,
        "end": 2.0,
    }
    waits = done | {"call": 4, "state": "under way", "begin": 90.0, "waits_since": 90.0, "end": None}
    for name, rank, moment, began, last, calls in (
        ("old0", 0, 50.0, 10.0, done, 3),
        ("old1", 1, 50.0, 10.0, done, 3),
        ("new0", 0, 100.0, 80.0, waits, 4),
    ):
        facts = FACTS | {"rank": rank, "time": moment, "began": began}
        dump = facts | {"groups": [{"ranks": [0, 1], "calls": calls}], "communications": [last]}
        (tmp_path / f"shardwise-rank{name}.json").write_text(json.dumps(dump))
    text = hang(capsys, [tmp_path])
    assert text.startswith("Rank 0 has waited 10.0 s, ") and "rank 1 left no file" in text, text
    assert text.endswith("left out: 2 of 3 files, of other runs, older of their rank, or not whole\n")
    # A run of another number of ranks goes on beside it; and the process is a rank of its own, too.
    other = FACTS | {"rank": 1, "ranks": 3, "pid": 2, "time": 99.0, "groups": [], "communications": []}
    own = FACTS | {"ranks": 1, "time": 100.1, "began": 80.0, "groups": [], "communications": []}
    (tmp_path / "shardwise-rank0.json").write_text(json.dumps(own))
    (tmp_path / "shardwise-rank1.json").write_text(json.dumps(other))
    flights = read_flights(tmp_path.glob("*.json"))
    assert [(rank, flight.n_ranks) for rank, flight in flights.items()] == [(0, 2)]


def test_ranks_that_do_the_same_share_a_row_where_there_are_many():
    n_ranks = 1500
    everybody = tuple(range(n_ranks))
    flights = flights_of(
        *([waiting(rank, 2, group=everybody)] for rank in range(n_ranks - 2)),
        [call(n_ranks - 2, 1, group=everybody)],
        n_ranks=n_ranks,
    )
    began = time.thread_time()
    text, rows = describe_hang(flights), hang_rows(flights)
    assert time.thread_time() - began < 5  # it took minutes
    assert text.startswith("Ranks 0-1497 have waited 80.0 s") and "for ranks 1498-1499 in all_reduce" in text
    assert [row[:2] for row in rows[1:]] == [
        ("0-1497", "waits 80.0 s for 1498-1499"),
        ("1498", "runs"),
        ("1499", "no file"),
    ]


def call(rank, number, name="all_reduce", group=(0, 1, 2), **values):
    """A communication that ended, where nothing else is said."""
    known = {
        "source": "",
        "operator": "",
        "dtype": "Float",
        "state": "done",
        "begin": 10.0 * number,
        "waits_since": None,
        "end": 10.0 * number + 1,
    }
    return Call(rank=rank, group=group, call=number, name=name, layouts="", **{**known, **values})


def waiting(rank, number, name="all_reduce", **values):
    return call(rank, number, name, state="under way", end=None, waits_since=10.0 * number, **values)


def flights_of(*calls_of_ranks, n_ranks=3, line=""):
    flights = {}
    for rank, calls in enumerate(calls_of_ranks):
        counts = {}
        for each in calls or ():
            counts[each.group] = max(counts.get(each.group, 0), each.call)
        if calls is not None:
            flights[rank] = Flight(
                Path(f"{rank}"), rank, n_ranks, 1, "a", 100.0, "asked for", line, [], counts, list(calls)
            )
    return flights


def test_sentences_for_what_processes_rarely_do():
    # A rank that has made the call, and computes before it waits for it.
    text = describe_hang(flights_of([waiting(0, 2)], [waiting(1, 2)], [call(2, 2, state="under way", end=None)]))
    assert re.fullmatch(
        r"Ranks 0-1 have waited 80\.0 s, since [\d:]{8}, in all_reduce \(Float\), call 2 of the ranks 0-2; "
        r"all others have made this call: .*",
        text,
    ), text
    # Of those who wait, those whose missing ranks wait for nobody are the cause.
    pair = (0, 1)
    text = describe_hang(
        flights_of(
            [waiting(0, 3, group=pair)], [call(1, 2, group=pair), waiting(1, 5)], [call(2, 4)], line="a.py:1 in f"
        )
    )
    assert text.startswith("Rank 1 has waited 50.0 s") and "for ranks 0, 2 in all_reduce" in text, text
    assert "rank 0 has made 0 of these calls and waits in all_reduce (Float) with the ranks 0-1" in text, text
    assert "rank 2 has made 4 of these calls" in text and text.endswith(", and is at a.py:1 in f."), text
    # Many are missing.
    text = describe_hang(flights_of([waiting(0, 1, group=tuple(range(9)))], n_ranks=9))
    assert "for ranks 1-8 in" in text and text.endswith("; and 4 more.") and text.count("left no file") == 4, text
    # A call that some may stay away from has no number.
    text = describe_hang(flights_of([waiting(0, 0, "make a group")], [waiting(1, 0, "make a group")], [call(2, 1)]))
    assert "for rank 2 in make a group (Float), ranks 0-2; rank 2 has made 1" in text, text
    # Ranks that parted are told first, by the earliest call in which they did.
    text = describe_hang(
        flights_of(
            [call(0, 1), call(0, 2), call(0, 3, "broadcast"), waiting(0, 4)],
            [call(1, 1), call(1, 2, dtype="Long"), call(1, 3), call(1, 4)],
            [call(2, 1), call(2, 2), call(2, 3)],
        )
    )
    assert text.startswith(
        "The ranks parted at call 2 of the ranks 0-2: ranks 0, 2 made it all_reduce (Float), rank 1 made it all_reduce (Long). Rank 0 has waited"
    ), text


def test_a_wait_that_others_saw_end_is_no_present_one():
    """A rank writes a file where it waits long, and none where it then loops."""
    old = {"time": 22.0, "pid": 4711}
    gone_on = [[call(rank, 2, end=23.0), call(rank, 3, end=31.0), waiting(rank, 4)] for rank in range(2)]
    flights = flights_of(*gone_on, [waiting(2, 2)], line="a.py:1 in f")
    flights[2] = replace(flights[2], **old)
    text = describe_hang(flights)
    assert re.fullmatch(
        r"Ranks 0-1 have waited 60\.0 s, since [\d:]{8}, for rank 2 in all_reduce \(Float\), call 4 of the ranks 0-2 at a\.py:1 in f; "
        r"rank 2's file is of [\d:]{8}, from before this wait, when its last communication was all_reduce \(Float\), call 2 of the ranks "
        r"0-2: kill -USR1 4711 writes a new one, if it was started with SHARDWISE_DUMP_SIGNAL=1\.",
        text,
    ), text
    assert hang_rows(flights)[3][:6] == ("2", "older file", "last all_reduce (Float)", "0-2", "2", "")
    # The others have made no other call of the group since, but this one has ended.
    pair = (0, 1)
    flights = flights_of([call(0, 2, end=23.0), waiting(0, 9, group=pair)], [call(1, 2, end=23.0)], [waiting(2, 2)])
    flights[2] = replace(flights[2], **old)
    assert describe_hang(flights).startswith("Rank 0 has waited 10.0 s") and "rank 1 has made 0" in describe_hang(
        flights
    )
    # So it was when its file was written: a broadcast, or an exchange, may end on some ranks while others wait.
    for name, time_of_file in (("all_reduce", 24.0), ("exchange", 22.0), ("broadcast", 22.0)):
        flights = flights_of(
            [call(0, 2, name, end=23.0)], [call(1, 1), call(1, 2, name, end=23.0)], [call(2, 1), waiting(2, 2, name)]
        )
        flights[2] = replace(flights[2], **old | {"time": time_of_file})
        assert describe_hang(flights).startswith("Rank 2 has waited"), describe_hang(flights)
    # The clocks of two machines may differ.
    flights = flights_of([call(0, 2, end=23.0)], [call(1, 2, end=23.0)], [waiting(2, 2)])
    flights[2] = replace(flights[2], **old, host="b")
    assert describe_hang(flights).startswith("Rank 2 has waited")


def test_a_file_from_before_a_wait_is_no_news_of_the_rank():
    flights = flights_of([call(0, 1), waiting(0, 2)], [call(1, 1), waiting(1, 2)], [call(2, 1)], line="a.py:1 in f")
    assert "rank 2 has made 1 of these calls" in describe_hang(flights)
    flights[2] = replace(flights[2], time=15.0)
    text = describe_hang(flights)
    assert "for rank 2 in" in text and "rank 2 has made" not in text and text.count("a.py:1 in f") == 1, text
    assert "rank 2's file is of " in text and "its last communication was all_reduce (Float), call 1 of" in text, text
    # One that waits in another group wrote that once.
    flights = flights_of([waiting(0, 2)], [waiting(1, 2)], [waiting(2, 1, group=(2, 3))], n_ranks=4)
    flights[2] = replace(flights[2], time=15.0)
    assert describe_hang(flights).startswith("Rank 2 has waited 5.0 s"), describe_hang(flights)


def test_ranks_that_made_a_call_in_different_lines_are_told_where():
    flights = flights_of(
        *([waiting(rank, 2, "exchange", source=f"a.py:{line} in f")] for rank, line in enumerate((7, 8, 7)))
    )
    text = describe_hang(flights)
    assert re.fullmatch(
        r"Ranks 0-2 have waited 80\.0 s, since [\d:]{8}, in exchange \(Float\), call 2 of the ranks 0-2, which they made in different "
        r"lines: ranks 0, 2 at a\.py:7 in f, rank 1 at a\.py:8 in f\. All ranks have come to it, .*: SHARDWISE_CHECK=1 says how .*\.",
        text,
    ), text
    flights = flights_of(*([waiting(rank, 2, source=f"a.py:{rank} in f")] for rank in range(6)), n_ranks=6)
    assert "rank 3 at a.py:3 in f, 2 more. All" in describe_hang(flights)


def test_ranks_that_send_different_numbers_of_bytes_have_parted():
    def made(rank, name, n_bytes):
        return [waiting(rank, 2, name, bytes_sent=n_bytes, source=f"a.py:{7 + rank} in f")]

    text = describe_hang(flights_of(*(made(rank, "all_reduce", 42 + 1000 * (rank == 1)) for rank in range(3))))
    assert text.startswith(
        "The ranks parted at call 2 of the ranks 0-2: ranks 0, 2 made it all_reduce (Float) with 42 bytes at a.py:7 in f, "
        "rank 1 made it all_reduce (Float) with 1,042 bytes at a.py:8 in f. Ranks 0-2 have waited 80.0 s"
    ), text
    for name in ("exchange", "all_to_all", "broadcast"):  # each rank sends as many as it has
        text = describe_hang(flights_of(*(made(rank, name, rank) for rank in range(3))))
        assert not text.startswith("The ranks parted"), text


def test_files_of_another_run_are_left_out(tmp_path, capsys):
    def write(run, rank, moment, n_calls, **values):
        last = {"group": 0, "call": n_calls, "name": "all_reduce", "operator": "", "dtype": "Float", "bytes_sent": 4}
        last |= {"state": "under way", "begin": moment - 2, "waits_since": moment - 2}
        facts = FACTS | {"rank": rank, "time": moment, "began": 10.0, "communications": [last]} | values
        dump = facts | {"groups": [{"ranks": [0, 1], "calls": n_calls}]} | ({"run": run} if run is not None else {})
        (tmp_path / f"shardwise-rank{rank}-pid{run}.json").write_text(json.dumps(dump))

    write("one", 0, 50.0, 4)
    write("two", 1, 51.0, 10)
    text = hang(capsys, [tmp_path])
    assert text.startswith("Rank 1 has waited 2.0 s") and "rank 0 left no file" in text, text
    assert text.splitlines()[0].endswith(" Left out: 1 file of another run."), text
    write("two", 0, 49.0, 9)
    flights = read_flights(tmp_path.glob("*.json"))
    assert [flights[rank].run for rank in range(2)] == ["two", "two"] and flights.n_of_other_runs == 1
    write(None, 1, 60.0, 4)  # of a version that does not say
    assert read_flights(tmp_path.glob("*.json")).n_of_other_runs == 0
    write(3, 1, 60.0, 4)
    with pytest.raises(ValueError, match=r'is damaged: "run" is'):
        read_flights(tmp_path.glob("*.json"))
