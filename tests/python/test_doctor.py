"""python -m shardwise doctor, and what is refused of other versions of torch."""

import json
import os
import re
import resource
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torchrun import LAUNCHER, TORCHS, forked_python

import shardwise
from shardwise import _build_facts, _torch_check
from shardwise._commands import doctor, link_speed

ROOT = Path(__file__).resolve().parents[2]
DOCTOR = ["-m", "shardwise", "doctor"]
# Of this test's process, these might be set.
UNSET = {"GLOO_SOCKET_IFNAME", *doctor.TORCHRUN_VARIABLES}


def environment(**variables):
    return {name: value for name, value in os.environ.items() if name not in UNSET} | variables


def findings(*arguments, **variables):
    result = forked_python(*DOCTOR, "--json", *arguments, imported=TORCHS, env=environment(**variables))
    return {each["name"]: each for each in json.loads(result.stdout)}, result.returncode


def test_the_report_has_all_sections_and_measures_a_link():
    result = forked_python(*DOCTOR, imported=TORCHS, env=environment())
    assert result.returncode == 0, result.stdout + result.stderr
    sections = [line.rstrip() for line in result.stdout.splitlines() if re.fullmatch(r"[a-z]+ *", line)]
    assert sections == ["versions", "backends", "devices", "memory", "limits", "network", "links", "environment"]
    assert re.search(r"two processes here, gloo +(ok|note) +[\d,]+ us per small message, \d+\.\d\d GB/s", result.stdout)
    assert shardwise.__version__ in result.stdout and f"torch {_build_facts.TORCH}" in result.stdout
    assert re.search(r"^Nothing is wrong, \d+ to note\.", result.stdout, re.MULTILINE)


def test_an_interface_that_does_not_exist_is_wrong_and_so_is_the_link():
    found, status = findings(GLOO_SOCKET_IFNAME="nope0")
    assert status == 1
    assert (
        found["GLOO_SOCKET_IFNAME"]["state"] == "wrong"
        and "nope0 does not exist" in found["GLOO_SOCKET_IFNAME"]["mend"]
    )
    assert found["two processes here, gloo"]["state"] == "wrong"


def test_variables_misspelt_and_missing_are_named():
    found, status = findings("--no-links", SHARDWISE_CHEK="1", SHARDWISE_CHECK="1", RANK="0", MASTER_PORT="29500")
    assert status == 1 and not [each for each in found.values() if each["section"] == "links"]
    assert found["SHARDWISE_CHEK"]["state"] == "note" and "SHARDWISE_CHECK" in found["SHARDWISE_CHEK"]["mend"]
    assert found["SHARDWISE_CHECK"]["state"] == "ok"
    assert found["torchrun's variables"]["value"] == "WORLD_SIZE, MASTER_ADDR not set"


def test_under_torchrun_the_ranks_measure_their_links_and_one_reports():
    command = [*LAUNCHER, "--nproc-per-node", "3", *DOCTOR]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment())
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("versions") == 1 and "two processes here" not in result.stdout
    assert len(re.findall(r"rank 0 .* - rank 1 .* us per|rank 1 .* - rank 2 .* us per", result.stdout)) == 2


def silent(rank, file, answer, seconds):
    time.sleep(60)


def gone(rank, file, answer, seconds):
    os._exit(1)


@pytest.mark.parametrize("ranks, words", [(silent, "no answer in 1 s"), (gone, "ended without an answer")])
def test_processes_that_do_not_answer_end_the_measurement(monkeypatch, ranks, words):
    monkeypatch.setattr(link_speed, "_local_rank", ranks)
    began = time.monotonic()
    assert words in link_speed.between_local_processes(seconds=1)
    assert time.monotonic() - began < 30


# the finding, its state, a word of its value or its mend
FINDINGS = {
    "enough files": (doctor.open_files(65536, 65536), "ok", "65536"),
    "few files": (doctor.open_files(256, 4096), "note", "ulimit -n 4096"),
    "files for nobody": (doctor.open_files(16, 16), "wrong", "ulimit -n"),
    "files without end": (doctor.open_files(resource.RLIM_INFINITY, resource.RLIM_INFINITY), "ok", "unlimited"),
    "locked memory": (doctor.locked_memory(8 << 20, has_rdma=False), "ok", "8.0 MiB"),
    "locked memory, InfiniBand": (doctor.locked_memory(8 << 20, has_rdma=True), "note", "ulimit -l unlimited"),
    "no shared memory": (doctor.shared_memory(Path("/nowhere")), "note", "mount a tmpfs"),
    "no gloo": (doctor.backend("gloo", is_there=False, needed_for="CPU"), "wrong", "CPUs cannot be sent"),
    "no nccl, no GPU": (doctor.backend("nccl", is_there=False, needed_for=None), "ok", "not in this torch"),
    "a debug build": (doctor.compiler("GNU 12.2.0", "Debug"), "note", "Release"),
    "a slow link": (
        doctor.link("a - b", link_speed.LinkSpeed(2e-3, 1e9)),
        "note",
        "2,000 us per small message, 1.00 GB/s",
    ),
    "a link that fails": (doctor.link("a - b", "refused"), "wrong", "firewalls"),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_findings(name):
    found, state, words = FINDINGS[name]
    assert found.state == state and words in f"{found.value} {found.mend}"
    assert (found.state == "ok") == (not found.mend)


@pytest.mark.skipif(not (ROOT / "runtime").is_dir(), reason="needs the C++ sources")
def test_the_variables_that_doctor_knows_are_those_that_the_sources_read():
    sources = [
        path for room in ("runtime", "ops", "threads", "wrappers", "python") for path in (ROOT / room).rglob("*.cpp")
    ]
    sources += (ROOT / "python" / "shardwise" / "live").glob("*.py")
    read = {
        name for path in sources for name in re.findall(r'(?:getenv|environ\.get)\("(SHARDWISE_\w+)"', path.read_text())
    }
    assert read == doctor.SHARDWISE_VARIABLES.keys()


def test_the_torch_that_was_compiled_against_fits_with_any_last_number_and_build():
    minor = _torch_check.minor(torch.__version__)
    for fits in (torch.__version__, f"{minor}.0", f"{minor}.9+cu130", f"{minor}.1a0+git123"):
        _torch_check.refuse_another(fits)


@pytest.mark.parametrize("other", ["2.10.0", "3.0.0+cpu", "2.1.3"])
def test_another_torch_is_refused_by_name(other):
    with pytest.raises(ImportError) as error:
        _torch_check.refuse_another(other)
    words = str(error.value)
    assert f"torch {other} is installed" in words and f"torch {_build_facts.TORCH}" in words
    assert f"torch=={_torch_check.minor(_build_facts.TORCH)}.*" in words and "--no-build-isolation" in words


def test_the_version_is_that_of_the_build():
    assert shardwise.__version__ == _build_facts.VERSION
    assert re.fullmatch(r"\d+(\.\d+)*(\.dev\d+(\+g[0-9a-f.d]+)?)?", shardwise.__version__)
