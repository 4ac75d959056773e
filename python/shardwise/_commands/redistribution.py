"""python -m shardwise plan and simulate: the messages that a redistribution would send."""

import argparse
from collections.abc import Callable
from functools import partial

from shardwise._C import Plan, RankTraffic, plan_redistribution
from shardwise._commands.arguments import PLACEMENTS, add_layout, layout, link, mesh_extents, n_bytes, placements, ranks
from shardwise.debug.text_tables import in_time, table_text

PLAN_EXAMPLE = """example:
  python -m shardwise plan --shape 4097x1023 --mesh 2x2 --from "S0,S1" --to "S1,S0\""""

SIMULATE_EXAMPLE = """example:
  python -m shardwise simulate --shape 65536x8192 --mesh 256x256 --from "S0,R" --to "R,S1" --objective time --link 20:10 --link 2:100"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, help, example, show in (
        ("plan", "the plan and its totals, in a line", PLAN_EXAMPLE, lambda plan: [str(plan)]),
        ("simulate", "a table of the traffic of all ranks together, and of some ranks", SIMULATE_EXAMPLE, show_ranks),
    ):
        command = commands.add_parser(name, help=help, epilog=f"{PLACEMENTS}\n\n{example}")
        add_move(command)
        command.set_defaults(run=partial(redistribution, show=show))


def add_move(command: argparse.ArgumentParser) -> None:
    """The arguments that planned() reads."""
    add = command.add_argument
    add_layout(command, is_shape_required=True)
    add("--from", type=placements, required=True, dest="source", metavar="PLACEMENTS", help='such as "S0,S1"')
    add("--to", type=placements, required=True, dest="target", metavar="PLACEMENTS", help='such as "S1,S0" or "R,P"')
    add("--to-mesh", type=mesh_extents, metavar="MESH", help="the shape of another mesh to move to")
    add("--to-ranks", type=ranks, metavar="RANKS", help="the ranks of --to-mesh (default: 0, 1, 2, ...)")
    add("--objective", choices=("bytes", "time"), default="bytes", help="default: %(default)s")
    add("--link", type=link, action="append", metavar="US:GB/S", help="give it once per mesh dim (default: 20:10)")
    add("--memory-cap", type=n_bytes, default=0, metavar="BYTES", help="for message buffers, per rank, such as 1MiB")


def planned(options: argparse.Namespace) -> Plan:
    if options.to_ranks is not None and options.to_mesh is None:
        raise ValueError("--to-ranks needs --to-mesh. Give both.")
    source = layout(options.shape, options.mesh, options.ranks, options.source, options.dtype)
    mesh, order = (options.mesh, options.ranks) if options.to_mesh is None else (options.to_mesh, options.to_ranks)
    return plan_redistribution(
        source,
        layout(options.shape, mesh, order, options.target, options.dtype),
        dtype=options.dtype,
        objective=options.objective,
        links=options.link,
        memory_cap=options.memory_cap,
    )


def redistribution(options: argparse.Namespace, show: Callable[[Plan], list[str]]) -> list[str]:
    plan = planned(options)
    lines = [f"{plan.source} -> {plan.destination}, {str(options.dtype).removeprefix('torch.')}", *show(plan)]
    if 0 < options.memory_cap < plan.buffer_bytes:
        lines.append(
            f"buffers are above the cap of {options.memory_cap:,} bytes: a round sends at least one index of the longest dim"
        )
    return lines


def show_ranks(plan: Plan) -> list[str]:
    shares = sorted(plan.simulate(), key=lambda share: (-share[1].received, share[0]))
    heading = ("", "rank", "received", "bound", "sent", "messages", "buffers", "time")
    columns = list(zip(*(_numbers(share) for _, share in shares), strict=True))
    name = f"all {len(shares):,} ranks" if len(shares) > 1 else "one rank"
    rows = [_row(name, "", [*map(sum, columns[:4]), *map(max, columns[4:])])]  # the maximum of buffers and time
    for name, place in (("most loaded", 0), ("median", len(shares) // 2), ("least loaded", -1)):
        rank, share = shares[place]
        rows.append(_row(name, f"{rank}", _numbers(share)))
    return [str(plan), "", table_text("", heading, rows, 1).rstrip()]


def _numbers(share: RankTraffic) -> list[float]:
    return [share.received, share.bound, share.sent, share.n_messages, share.buffer_bytes, share.seconds]


def _row(name: str, rank: str, numbers: list[float]) -> tuple[str, ...]:
    return name, rank, *(f"{count:,}" for count in numbers[:-1]), in_time(numbers[-1])
