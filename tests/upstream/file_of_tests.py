"""Runs the tests of one file of torch's, each in a process of its own.

    python tests/upstream/file_of_tests.py CHECKOUT FILE RESULTS [--torch] [--values] [--seconds N] [--jobs N] [--only WORD]

`run` starts this program. It imports torch and the file once, and forks a process for each test, so that a test costs no imports.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import time
import unittest

_RANK_FAILED = re.compile(r"^Process \d+ exited with error code \d+ and exception:\n", re.MULTILINE)


def _arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout")
    parser.add_argument("file")
    parser.add_argument("results")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--values", action="store_true")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="tests with this word in their names")
    parser.add_argument("--failed-in", metavar="RESULTS", help="tests that did not pass in these results")
    return parser.parse_args()


def _load(checkout, file):
    path = os.path.join(checkout, "test", "distributed", file)
    sys.path[:0] = [os.path.join(checkout, "test"), os.path.dirname(path)]
    spec = importlib.util.spec_from_file_location(os.path.splitext(os.path.basename(file))[0], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def _flat(suite):
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each


def _name(test):
    return f"{type(test).__name__}.{test.id().rsplit('.', 1)[-1]}"


def _tests(module, only, failed_in):
    """The file's tests, without those on torch's LocalTensor, which plays all ranks in one process."""
    tests = [test for test in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)) if only in _name(test)]
    if failed_in:
        with open(failed_in) as file:
            failed = {name for name, result in json.load(file).items() if result["verdict"] != "pass"}
        tests = [test for test in tests if _name(test) in failed]
    return [
        test
        for test in tests
        if not any("LocalTensor" in each.__name__ or "LocalDTensor" in each.__name__ for each in type(test).__mro__)
    ]


def _last_error(text):
    """The text of the first rank's error, or of the test's own: the last exception of its trace."""
    ranks = _RANK_FAILED.split(text)
    trace = ranks[1] if len(ranks) > 1 else text
    lines = [line for line in trace.strip().splitlines() if line.strip()]
    starts = [
        k
        for k, line in enumerate(lines)
        if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Warning|Exit|Interrupt|Unsupported|Failed|Test)\b", line)
    ]
    return " ".join(line.strip() for line in lines[starts[-1] :])[:600] if starts else " ".join(lines[-3:])[:600]


def _verdict(result):
    bad = result.failures + result.errors + [(test, "unexpectedly passes") for test in result.unexpectedSuccesses]
    if bad:
        return {"verdict": "fail", "error": _last_error(bad[0][1]), "trace": bad[0][1][-20000:]}
    if result.skipped:
        return {"verdict": "skip", "error": result.skipped[0][1][:200]}
    return {"verdict": "pass"}


def _run_here(test, path):
    os.setpgid(0, 0)
    log = os.open(path + ".log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    with open(path, "w") as out:
        json.dump(_verdict(result), out)
    os._exit(0)


def _end(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class _Running:
    def __init__(self, test, folder, seconds):
        self.name = _name(test)
        self.path = os.path.join(folder, self.name)
        self.began = time.monotonic()
        self.until = self.began + seconds
        self.pid = os.fork()
        if not self.pid:
            try:
                _run_here(test, self.path)
            finally:
                os._exit(1)

    def ended(self):
        pid, _ = os.waitpid(self.pid, os.WNOHANG)
        late = not pid and time.monotonic() > self.until
        if not pid and not late:
            return None
        _end(self.pid)
        if late:
            os.waitpid(self.pid, 0)
        try:
            with open(self.path) as file:
                verdict = json.load(file)
        except (OSError, ValueError):
            with open(self.path + ".log", errors="replace") as file:
                verdict = {"verdict": "late" if late else "crash", "trace": file.read()[-8000:]}
        return {**verdict, "seconds": round(time.monotonic() - self.began, 1)}


def main():
    arguments = _arguments()
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if not arguments.torch:
        import shardwise.compat

        shardwise.compat.install()
    from processes import fork_ranks

    fork_ranks(arguments.seconds)
    if arguments.values:
        from torch.testing._internal.common_utils import TestCase
        from values import pass_over_layouts

        from shardwise import DTensor

        pass_over_layouts(TestCase, DTensor)
    module = _load(arguments.checkout, arguments.file)
    if not arguments.torch:
        shardwise.compat.install()
    waiting = _tests(module, arguments.only, arguments.failed_in)
    results, running = {}, []
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                running.append(_Running(waiting.pop(0), folder, arguments.seconds + 15))
            time.sleep(0.02)
            for each in list(running):
                if (result := each.ended()) is not None:
                    running.remove(each)
                    results[each.name] = result
                    print(
                        f"{result['verdict']:5} {result['seconds']:6.1f} {each.name}  {result.get('error', '')[:150]}",
                        flush=True,
                    )
                    with open(arguments.results, "w") as out:
                        json.dump(results, out, indent=1)


main()
