"""The command dry-run: its report, its errors, its status, and the times that it estimates."""

import dataclasses
import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from command_line import finished_command, is_error_in_a_line
from dry_run_scripts import run_of
from torchrun import TORCHS, forked_python

import shardwise as sw
from shardwise._commands import doctor
from shardwise._commands.link_speed import LinkSpeed, slowest
from shardwise._dry_run.job import run_as
from shardwise._progress import Notes


def test_times_are_estimated_at_the_rates_that_are_given():
    with sw.dry_run(4, flops=2, memory_bandwidth=1000, links=[(5, 1), (10, 0.5)]) as run:
        torch.rand(1000, 1000) @ torch.rand(1000, 1000)
        dist.all_reduce(torch.rand(1000))
    assert "if they overlap fully" in str(run)
    assert "0.011 ms of communication" in str(run)  # 5 us, and 6,000 bytes at 1 GB/s


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ({}, "ms of communication. That of computation is not known without --flops and --memory-bandwidth."),
        ({"flops": 2}, "The memory traffic of operators is not known without --memory-bandwidth."),
        ({"memory_bandwidth": 2}, "The arithmetic of operators is not known without --flops."),
    ],
)
def test_no_total_time_is_told_if_a_rate_is_not_known(rates, words):
    with sw.dry_run(4, **rates) as run:
        torch.rand(1000, 1000) @ torch.rand(1000, 1000)
        dist.all_reduce(torch.rand(1000))
    (line,) = (line for line in str(run).splitlines() if line.startswith("estimated time"))
    assert line.endswith(words)
    assert "overlap" not in line
    assert ("of computation," in line) == bool(rates)


def test_errors_after_a_dry_run_are_printed_without_its_rank():
    text = "import sys, shardwise as sw\nwith sw.dry_run(8, 1):\n    pass\nraise KeyError('later')"
    done = forked_python("-c", text, imported=TORCHS)
    assert "KeyError: 'later'" in done.stderr
    assert "[rank1]" not in done.stderr


def test_the_command_prints_the_report_and_writes_files(tmp_path):
    program = run_of(
        tmp_path, "sw.ones(64, 12, device_mesh=mesh, placements=[sw.Shard(0), sw.Shard(1)]).full_tensor()\n"
    )
    command = [sys.executable, "-m", "shardwise", "dry-run", "--ranks", "32", "--sample", "3"]
    files = ["--json", tmp_path / "run.json", "--html", tmp_path / "run.html"]
    done = subprocess.run([*command, *files, *program.arguments], capture_output=True, text=True, check=True)
    assert "3 of 32 ranks" in done.stdout
    assert "these ranks make the same collectives in the same order in the groups that they share" in done.stdout
    assert [each["rank"] for each in json.loads((tmp_path / "run.json").read_text())] == [0, 16, 31]
    assert "<svg" in (tmp_path / "run.html").read_text()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "there is no file 'nothing.py'"),
        (["--rank", "4"], "rank 4 is not in a job of 4 ranks"),
        (["--all", "--device", "gpu"], "device_type is 'gpu', which torch does not know"),
        (["--sample", "5"], "a sample of 5 ranks is more than the job has, 4. Give 4 or less, or `--all`"),
        (["-m"], "there is no module 'nothing.py'. Give the name of a module, as for `python -m`."),
        (["--ids", "zipf:one"], "'one' is no number of 0 or more"),
        (["--ids", "loads.txt"], "no such file"),
        (["--links", "nothing.json"], "there is no file 'nothing.json'. Give what"),
        (["--links", __file__], "has no links. Give what"),
        (["--link", "20:1"] * 3, "there are 3 links. Give the link within a host"),
        (["--value", "train.py:x=1"], '"train.py:x=1" is no value. Write a number, or a line'),
        (["--link", "20:0"], "a link of 20.0 us and 0.0 GB/s is none"),
        (["--link", "20:1", "--links", "x.json"], "not allowed with argument"),
        (["--flops", "-1"], "-1.0 TFLOP/s and 0 GB/s are no rates"),
    ],
)
def test_arguments_that_no_run_has_are_errors_in_a_line(options, words):
    done = finished_command("dry-run", "--ranks", 4, *options, "nothing.py")
    assert is_error_in_a_line(done, "dry-run")
    assert words in done.stderr


def test_a_report_is_printed_although_its_file_cannot_be_written(tmp_path):
    program = run_of(tmp_path, "torch.ones(3)\n")
    file = tmp_path / "nowhere" / "run.json"
    done = finished_command("dry-run", "--ranks", 32, "--json", file, *program.arguments)
    assert (done.returncode, "rank 0 of 32: peak" in done.stdout, str(file) in done.stderr) == (2, True, True)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ("(8, 8)", r"rank 32 is not in the world of 32 ranks.* at .*program.py:2"),
        ("(4, 4)", "ranks 16-31 are in no mesh"),
    ],
)
def test_a_mesh_of_another_number_of_ranks_is_told(tmp_path, shape, words):
    script = tmp_path / "program.py"
    script.write_text(f"import shardwise as sw\nmesh = sw.init_device_mesh('cuda', {shape})\n")
    done = finished_command("dry-run", "--ranks", 32, "--rank", 31, script)
    assert re.search(words, done.stdout)


def test_the_status_tells_of_ranks_that_differ(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(
        "import torch.distributed as dist, torch\ndist.init_process_group()\n"
        "if dist.get_rank() != 3:\n    dist.all_reduce(torch.ones(4))\n"
    )
    done = [finished_command("dry-run", "--ranks", 8, *which, script) for which in (["--all"], ["--sample", 2])]
    assert [each.returncode for each in done] == [1, 0]
    assert "the ranks do not make the same collectives" in done[0].stdout


def test_an_error_of_several_ranks_is_told_once(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import os\nraise ValueError('no' if int(os.environ['RANK']) < 6 else 'never')\n")
    done = finished_command("dry-run", "--ranks", 8, "--sample", 4, script)
    assert [line.split(" at ")[0] for line in done.stdout.splitlines() if "ValueError" in line] == [
        "on ranks 0, 2, 5: ValueError: no",
        "on rank 7: ValueError: never",
    ]


def test_a_run_that_fails_shows_its_error_and_no_empty_tables(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("raise ValueError('of two\\nlines')\n")
    done = finished_command("dry-run", "--ranks", 8, "--all", script)
    assert done.stdout.split() == f"on ranks 0-7: ValueError: of two lines at {script}:1".split()
    script.write_text("import torch, os\nx = torch.ones(3)\nraise ValueError(os.environ['RANK'] == '0')\n")
    done = finished_command("dry-run", "--ranks", 8, "--sample", 2, script)
    titles = [part.split(":")[0].split("\n")[0] for part in done.stdout.strip().split("\n\n")]
    assert titles[-2:] == ["on rank 0", "on rank 7"]
    assert [each for each in titles if "communication" in each or "time" in each] == []
    assert "bytes sent" not in done.stdout


def test_a_read_of_a_value_is_told_once_and_a_value_for_a_line_that_reads_none_is_told(tmp_path):
    program = run_of(tmp_path, "torch.ones(3).sum().item()\n")
    script, given = program.arguments[0], ["--value", "program.py:99=1"]
    done = finished_command("dry-run", "--ranks", 32, *given, script)
    (failure,) = (line for line in done.stdout.splitlines() if line.startswith("on rank 0: NoValue"))
    assert failure.count("program.py:") == 1
    done = finished_command("dry-run", "--ranks", 32, "--sample", 2, *given, "--value", "1", script)
    assert "the program read no value at program.py:99, for which one is given\n" in done.stdout


def test_a_long_run_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Notes, "SECONDS", 0.2)
    run_as(run_of(tmp_path, "import time; time.sleep(1)\n"), [0, 31])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 1
    assert re.fullmatch("dry-run: 0 of 2 ranks are done after [0-9]+ s; rank 0 runs", lines[0])


def test_links_are_taken_as_doctor_measured_them(tmp_path):
    file = tmp_path / "links.json"
    unset = {name: value for name, value in os.environ.items() if name not in doctor.TORCHRUN_VARIABLES}
    measured = forked_python("-m", "shardwise", "doctor", "--json", imported=TORCHS, env=unset)
    file.write_text(measured.stdout)
    ((latency_us, gb_per_second),) = slowest(file)
    (speed,) = (each["speed"] for each in json.loads(measured.stdout) if each["speed"])
    assert (latency_us, gb_per_second) == (speed["latency"] * 1e6, speed["bandwidth"] / 1e9)
    program = run_of(tmp_path, "dist.broadcast(torch.ones(1000, 1000), src=0)\n")
    done = finished_command("dry-run", "--ranks", 32, "--links", file, *program.arguments)
    assert f"{(speed['latency'] + 4e6 / speed['bandwidth']) * 1e3:,.3f} ms of communication" in done.stdout


def test_the_slowest_links_within_and_between_hosts_are_taken(tmp_path):
    file = tmp_path / "links.json"
    speeds = [None, LinkSpeed(5e-6, 3e9), LinkSpeed(2e-5, 1e9, True), LinkSpeed(4e-6, 2e9), LinkSpeed(3e-5, 2e9, True)]
    file.write_text(json.dumps([{"speed": each and dataclasses.asdict(each)} for each in speeds]))
    assert slowest(file) == [(pytest.approx(5), 2.0), (pytest.approx(30), 1.0)]
