"""Every operator of torch's own list, on four ranks, against plain tensors.

    python tests/opinfo/sweep.py                   a few samples of each
    python tests/opinfo/sweep.py --samples 1000    all of them
    python tests/opinfo/sweep.py --ops add cumsum  these, with every failure
    SHARDWISE_THREADS=strict python tests/opinfo/sweep.py --every 8    some of them, on ranks that communicate as over NCCL

Operators run in worker processes, so that a crash or a hang costs one operator and is counted.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, Queue
from xml.etree import ElementTree

DEADLINE = float(os.environ.get("SHARDWISE_TEST_DEADLINE", "inf"))  # seconds since 1970

# What is not equal dense yet, and why.
KNOWN = {
    "logcumsumexp": "torch's own float32 gradient is off by as much",
    "svd_lowrank": "random projections: its gradient is ill-conditioned",
    "pca_lowrank": "the same, and the signs are chance",
}
KNOWN |= {
    f"jiterator_{variant}": "on GPUs alone: kernels from text, for the memory of plain tensors"
    for variant in ("unary", "binary", "binary_return_by_ref", "2inputs_2outputs", "4inputs_with_extra_args")
}


@dataclass
class Result:
    name: str
    n_cases: int = 0
    failures: list[dict] = field(default_factory=list)
    is_late: bool = False  # not judged: the time of scripts/test --minutes was over
    needs_implicit: bool = False
    gathered: list[str] = field(default_factory=list)
    broken: str = ""  # a crash or a hang

    def passes(self, stage: str = "") -> bool:
        return not self.broken and not any(stage in ("", found["stage"]) for found in self.failures)


def float_ops() -> dict[str, object]:
    import torch

    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

    ops = {}
    for op in op_db:
        if torch.float32 in op.dtypes:
            ops[op.name + ("." + op.variant_test_name if op.variant_test_name else "")] = op
    return ops


def work(samples: int) -> None:
    """A worker: names on stdin, a line of JSON for each on stdout."""
    import torch

    import shardwise as sw
    from shardwise.testing import run_ranks

    run_ranks(
        1, lambda rank: sw.init_device_mesh("cpu", (1,))
    )  # torch's list is to hold functions as they are after the first mesh
    from judge import judge

    torch.set_num_threads(1)
    ops = float_ops()
    warnings.simplefilter("ignore")
    print("ready", flush=True)
    for line in sys.stdin:
        name = line.strip()
        outcome = judge(ops[name], samples, lambda text: print(f"at {text}", flush=True))
        print(json.dumps({"name": name, **asdict(outcome)}), flush=True)


class Worker:
    """A worker process and its thread, which takes names from `names` until there are none."""

    def __init__(self, names: Queue, samples: int, seconds: float, results: dict[str, Result], tick) -> None:
        self.names, self.samples, self.seconds, self.results, self.tick = names, samples, seconds, results, tick
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def start(self) -> None:
        command = [sys.executable, __file__, "--worker", "--samples", str(self.samples)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.lines: Queue = Queue()
        threading.Thread(target=self.read, args=(self.process, self.lines), daemon=True).start()
        if self.lines.get() is None:
            raise RuntimeError(f"a worker did not start: {' '.join(command)}")

    @staticmethod
    def read(process: subprocess.Popen, lines: Queue) -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def run(self) -> None:
        self.start()
        while True:
            try:
                name = self.names.get_nowait()
            except Empty:
                break
            self.results[name] = Result(name, is_late=True) if time.time() >= DEADLINE else self.judge(name)
            self.tick(self.results[name])
        self.process.stdin.close()
        self.process.wait()

    def judge(self, name: str) -> Result:
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        at, how = "", ""
        while not how:
            try:
                line = self.lines.get(timeout=self.seconds)
            except Empty:
                self.process.kill()
                how = "hangs"
                break
            if line is None:
                how = "crashes"
            elif line.startswith("at "):
                at = line[3:].strip()
            elif line.startswith("{"):
                return Result(**json.loads(line))
        self.start()
        return Result(name, broken=f"{how} at {at}")


def sweep(
    names: Sequence[str], samples: int, jobs: int, seconds: float = 120.0, progress=lambda result: None
) -> dict[str, Result]:
    queue: Queue = Queue()
    for name in names:
        queue.put(name)
    results: dict[str, Result] = {}
    for worker in [Worker(queue, samples, seconds, results, progress) for _ in range(jobs)]:
        worker.thread.join()
    return {name: results[name] for name in names}


def report(results: Sequence[Result], every_failure: bool, seconds: float) -> None:
    """What failed, what was gathered, and the counts."""
    results = [result for result in results if not result.is_late]
    for result in results:
        reason = f"  (known: {KNOWN[result.name]})" if result.name in KNOWN else ""
        if result.broken:
            print(f"{result.name}: {result.broken}{reason}")
        for found in result.failures if every_failure else result.failures[:1]:
            where = f"sample {found['sample']}, {found['scheme']}, {found['stage']}"
            print(f"{result.name} ({len(result.failures)} of {result.n_cases}): {where}: {found['failure']}{reason}")
    gathered = sorted({op for result in results for op in result.gathered})
    print(f"\nGathered, for want of a rule for some layout ({len(gathered)}): {', '.join(gathered)}")
    implicit = [result.name for result in results if result.needs_implicit]
    print(f"Under implicit_replication(), for torch writes them in Python with plain tensors: {', '.join(implicit)}")
    forward = sum(result.passes("forward") for result in results)
    first = sum(result.passes("forward") and result.passes("gradient") for result in results)
    second = sum(result.passes() for result in results)
    broken = sum(bool(result.broken) for result in results)
    n_cases = sum(result.n_cases for result in results)
    print(
        f"{len(results)} operators, {n_cases:,} cases in {seconds:.0f} s: equal dense: {forward} forward, {first} with gradients, "
        f"{second} with those of second order; {broken} crash, hang or lose step"
    )


def write_junit(results: Sequence[Result], file: Path) -> None:
    suite = ElementTree.Element("testsuite", name="opinfo")
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname="opinfo", name=result.name)
        if result.is_late:
            ElementTree.SubElement(case, "skipped", message="the time is over")
        elif not result.passes():
            ElementTree.SubElement(case, "skipped" if result.name in KNOWN else "failure")
    ElementTree.ElementTree(suite).write(file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", nargs="+", help="these operators only")
    parser.add_argument(
        "--samples", type=int, default=2, help="at most so many samples of an operator (default: %(default)s)"
    )
    parser.add_argument("--every", type=int, default=1, help="every N-th operator only")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes (default: %(default)s)")
    parser.add_argument("--device", help="where tensors lie, for example cuda (default: cpu)")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--junit", type=Path, help="write a report for scripts/tally.py here")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device:
        os.environ["SHARDWISE_SWEEP_DEVICE"] = options.device
    if options.worker:
        work(options.samples)
        return 0
    known = float_ops()
    names = [name for name in known if not options.ops or name in options.ops or known[name].name in options.ops]
    names = names[:: options.every]
    begin = time.monotonic()
    swept = sweep(names, options.samples, options.jobs)
    results = [result for result in swept.values() if result.n_cases or result.broken or result.is_late]
    report(results, bool(options.ops), time.monotonic() - begin)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    if options.junit:
        write_junit(results, options.junit)
    return int(any(not result.passes() and result.name not in KNOWN for result in results))


if __name__ == "__main__":
    sys.exit(main())
