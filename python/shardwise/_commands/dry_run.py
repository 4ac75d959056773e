"""python -m shardwise dry-run: a program as some ranks of a job of any size, without memory and without messages."""

import argparse
from pathlib import Path

from shardwise._commands.arguments import MAX_INTEGER, link, value, whole
from shardwise._commands.link_speed import slowest
from shardwise.debug.picture import printable

COUNT = whole(1, MAX_INTEGER)
EPILOG = """examples:
  python -m shardwise dry-run --ranks 512 train.py --lr 0.1
  python -m shardwise dry-run --ranks 512 --sample 8 --value 1 --html run.html train.py
  python -m shardwise dry-run --ranks 64 --flops 400 --memory-bandwidth 2000 --link 5:300 --link 20:25 train.py"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "dry-run",
        help="runs a program as ranks of a job of any size, without memory and messages, and says what would happen",
        description="Runs a program, unchanged, as one rank of a job, or as several. Tensors are on meta: they have shapes and no "
        "memory. Nothing is sent. Prints the memory, the communication and the work of a rank. The status is 1 if the program fails on a rank, or if "
        "ranks do not make the same collectives.",
        epilog=EPILOG,
    )
    add = command.add_argument
    add("--ranks", type=COUNT, required=True, help="the number of ranks of the job")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, help="the rank that runs (default: %(default)s)")
    which.add_argument("--sample", type=COUNT, metavar="N", help="N ranks run, from the first to the last")
    which.add_argument("--all", action="store_true", help="every rank runs")
    add("--device", default="cuda", help="the kind of device that is planned for (default: %(default)s)")
    add(
        "--value",
        type=value,
        action="append",
        metavar="[LINE=]NUMBER",
        help="what a read of a value gives, at one line (train.py:12=0) or elsewhere (default: such a read is an error)",
    )
    add(
        "--ids",
        default="uniform",
        metavar="MODEL",
        help="the shares of a table's rows in ids, and of experts in tokens: uniform, zipf:EXPONENT, or a file with a histogram (default: %(default)s)",
    )
    add("--ranks-per-host", type=COUNT, default=8, metavar="N", help="default: %(default)s")
    add("--flops", type=float, default=0, metavar="TFLOP/S", help="the rate of a device, for estimates of time")
    add("--memory-bandwidth", type=float, default=0, metavar="GB/S", help="the rate of a device's memory, for the same")
    links = command.add_mutually_exclusive_group()
    links.add_argument(
        "--link",
        type=link,
        action="append",
        metavar="US:GB/S",
        help="within a host, then between hosts (default: 20:10)",
    )
    links.add_argument("--links", type=Path, metavar="FILE", help="the same as measured: what doctor --json printed")
    add("--json", type=Path, metavar="FILE", help="writes the figures for other programs")
    add("--html", type=Path, metavar="FILE", help="writes a page with the report and drawings")
    add("-m", action="store_true", dest="is_module", help="the program is a module, as in python -m")
    add("program", help="a script")
    add("arguments", nargs=argparse.REMAINDER, help="the program's own")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> list[str]:
    from shardwise._dry_run.figures import LINKS, Machine
    from shardwise._dry_run.ids import IdModel
    from shardwise._dry_run.job import Program, run_all, run_as, sampled
    from shardwise._dry_run.report import Report

    links = slowest(options.links) if options.links else options.link or LINKS
    machine = Machine.of(options.flops, options.memory_bandwidth, links, options.ranks_per_host)
    program = Program(
        (options.program, *options.arguments),
        options.ranks,
        options.device,
        dict(options.value or ()),
        options.ranks_per_host,
        IdModel.of(options.ids),
        options.is_module,
    )
    if options.all:
        found = run_all(program)
    else:
        found = run_as(program, [options.rank] if options.sample is None else sampled(options.ranks, options.sample))
    report = Report(found, machine)
    print(printable(str(report)))
    if options.json is not None:
        options.json.write_text(report.json(), encoding="utf-8")
    if options.html is not None:
        options.html.write_text(report.html(), encoding="utf-8")
    raise SystemExit(int(report.has_errors()))
