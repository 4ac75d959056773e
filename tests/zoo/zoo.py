"""Every architecture of transformers that has a tiny model, sharded in the ways of ways.py: the loss and all gradients equal dense.

    python tests/zoo/zoo.py                              all of them
    python tests/zoo/zoo.py --names llama bert           these, with every traceback
    python tests/zoo/zoo.py --page docs/model_zoo.md     writes the page of results

Each architecture runs in a forked process, so that a crash or a hang costs one architecture and is counted.
"""

import argparse
import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

warnings.simplefilter("ignore")

import page  # noqa: E402
import tiny  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import transformers.distributed  # noqa: E402
import transformers.models.llama.modeling_llama  # noqa: E402  imported once, before the forks
import ways  # noqa: E402
from known import EQUAL, LEFT_OUT, NO_PLAN, expected_failure  # noqa: E402

DEADLINE = float(os.environ.get("SHARDWISE_TEST_DEADLINE", "inf"))  # seconds since 1970
SECONDS = 300  # that one architecture may take


@dataclass
class Result:
    """The outcome of one architecture: one text per way."""

    architecture: tiny.Architecture
    outcomes: dict[str, str] = field(default_factory=dict)  # EQUAL, NO_PLAN or an error; empty: the time was over
    left_out: str = ""  # the error of the model on one process

    def failures(self) -> dict[str, str]:
        return {way: text for way, text in self.outcomes.items() if text not in (EQUAL, NO_PLAN)}

    def unexpected(self) -> dict[str, str]:
        name = self.architecture.name
        return {way: text for way, text in self.failures().items() if not expected_failure(name, way)}


def judge(architecture: tiny.Architecture, chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of a way and its outcome, or the pair (LEFT_OUT, the reason)."""
    try:
        model = architecture.make()
        plans = {"tp": model.tp_plan, "ep": model.ep_plan}
        for way in chosen:  # first those that fork: a fork lacks the threads that backward starts
            if way in ways.BY_PLAN:
                yield way, outcome(ways.BY_PLAN[way], architecture) if plans[way[:2]] else NO_PLAN
        reference = ways.Reference(architecture)
    except Exception as error:
        yield LEFT_OUT, text_of(error)
        return
    for way in chosen:
        if way in ways.IN_THREADS:
            yield way, outcome(ways.IN_THREADS[way], reference)


def outcome(way, model) -> str:
    try:
        way(model)
    except BaseException as error:
        return f"{text_of(error)}\n{traceback.format_exc()}"
    return EQUAL


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def start(architecture: tiny.Architecture, chosen: Sequence[str]) -> tuple[int, Path]:
    """Forks a process that writes its outcomes to a pipe. Returns the process and the pipe's end."""
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return process, read
    os.setpgid(0, 0)
    signal.alarm(SECONDS)
    os.close(read)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    with os.fdopen(write, "w") as pipe:
        for key, text in judge(architecture, chosen):
            pipe.write(f"{key}\0{text}\0")
            pipe.flush()
    os._exit(0)


def finish(process: int, pipe: int, result: Result, chosen: Sequence[str]) -> None:
    """Reads the outcomes until the process ends, and fills `result`."""
    with os.fdopen(pipe) as end:
        words = end.read().split("\0")
    _, status = os.waitpid(process, 0)
    result.outcomes = dict(zip(words[0:-1:2], words[1::2], strict=True))
    result.left_out = result.outcomes.pop(LEFT_OUT, "")
    if result.left_out:
        result.outcomes = {}
    elif status:
        for way in chosen:
            result.outcomes.setdefault(way, f"the process ended with status {status}")


def run_all(architectures: Sequence[tiny.Architecture], chosen: Sequence[str], jobs: int) -> list[Result]:
    import select

    results = [Result(architecture) for architecture in architectures]
    waiting, running = list(results), {}
    while waiting or running:
        while waiting and len(running) < jobs:
            result = waiting.pop(0)
            if time.time() >= DEADLINE:
                continue
            getattr(transformers, result.architecture.class_name)  # imported here, not in every fork
            process, pipe = start(result.architecture, chosen)
            running[pipe] = (process, result)
        for pipe in select.select(list(running), [], [])[0]:
            process, result = running.pop(pipe)
            finish(process, pipe, result, chosen)
            report(result, len(architectures) < 20)
    return results


def report(result: Result, with_tracebacks: bool) -> None:
    name = result.architecture.name
    if result.left_out:
        print(f"{name}: left out, {' '.join(result.left_out.split())[:150]}", flush=True)
        return
    for way, text in result.failures().items():
        reason = expected_failure(name, way)
        shown = text if with_tracebacks else " ".join(text.split())[:300]
        print(f"{name}, {way}: {f'expected ({reason})' if reason else 'FAILS'}: {shown}", flush=True)
    print(
        f"{name}: {', '.join(f'{way} {text}' for way, text in result.outcomes.items() if text in (EQUAL, NO_PLAN))}",
        flush=True,
    )


def with_earlier(results: Sequence[Result], file: Path) -> list[Result]:
    """All results of `file` and `results`, which are written back."""
    texts = json.loads(file.read_text()) if file.exists() else {}
    for result in results:
        earlier = texts.get(result.architecture.name, {})
        texts[result.architecture.name] = (
            {LEFT_OUT: result.left_out} if result.left_out else {**earlier, **result.outcomes}
        )
    file.write_text(json.dumps(texts, indent=1))
    known = tiny.architectures()
    return [
        Result(known[name], {way: text for way, text in found.items() if way != LEFT_OUT}, found.get(LEFT_OUT, ""))
        for name, found in texts.items()
    ]


def write_junit(results: Sequence[Result], chosen: Sequence[str], file: Path) -> None:
    suite = ElementTree.Element("testsuite", name="zoo")
    for result in results:
        for way in chosen:
            case = ElementTree.SubElement(suite, "testcase", classname="zoo", name=f"{result.architecture.name}-{way}")
            outcome = result.outcomes.get(way)
            if outcome is None and not result.left_out:
                ElementTree.SubElement(case, "skipped", message="the time is over")
            elif way in result.unexpected():
                ElementTree.SubElement(case, "failure")
            elif outcome != EQUAL:
                ElementTree.SubElement(case, "skipped")
    ElementTree.ElementTree(suite).write(file)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", help="these architectures only, by their model_type")
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=[*ways.IN_THREADS, *ways.BY_PLAN],
        default=list(ways.NAMES),
        help="'tp_plan on torch' is the plan on torch's own DTensors, to see whose failure one is (default: the others)",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--junit", type=Path, help="write a report for scripts/tally.py here")
    parser.add_argument(
        "--results", type=Path, help="add the outcomes to this file of JSON; report and page are of all that is in it"
    )
    parser.add_argument("--page", type=Path, help="write the page of results here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    known = tiny.architectures()
    results = run_all([known[name] for name in options.names or known], options.ways, options.jobs)
    if options.results:
        results = with_earlier(results, options.results)
    judged = [result for result in results if result.outcomes]
    unexpected = sum(len(result.unexpected()) for result in results)
    equal = sum(text == EQUAL for result in judged for text in result.outcomes.values())
    print(f"{len(judged)} architectures: {equal} results are equal dense, {unexpected} unexpected failures")
    if options.junit:
        write_junit(results, options.ways, options.junit)
    if options.page:
        page.write(results, options.page)
    return int(bool(unexpected) or not equal)


if __name__ == "__main__":
    sys.exit(main())
