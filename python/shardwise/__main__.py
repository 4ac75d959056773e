"""Plans without communication: what a redistribution would send, and where embedding tables would go.

python -m shardwise plan --shape 4097x1023 --mesh 2x2 --from "S0,S1" --to "S1,S0"
python -m shardwise simulate --shape 65536x8192 --mesh 256x256 --from "S0,R" --to "R,S1" --objective time --link 20:10 --link 2:100
python -m shardwise plan-embeddings tables.json --ranks 64 --memory 80GB --strategy cost_balanced
python -m shardwise doctor
"""

import argparse
import re
from collections.abc import Callable, Sequence
from math import prod

import torch

from shardwise import _embedding_command
from shardwise._C import (
    Layout,
    Partial,
    Placement,
    Plan,
    RankTraffic,
    Replicate,
    Shard,
    plan_redistribution,
)
from shardwise._command_arguments import MAX_RANKS, extents, link, mesh_extents, n_bytes
from shardwise._commands import doctor

PLACEMENT = re.compile(r"S(?P<dim>-?\d+)(\[(?P<sizes>[\d,\s]*)\])?|(?P<replicate>R)|P(?P<reduce>[a-z]*)")


def placement(text: str) -> Placement:
    """S0, S0[1,3,1,3], R, P, Pmax."""
    match = PLACEMENT.fullmatch(text.strip())
    if match is None:
        raise argparse.ArgumentTypeError(f'"{text}" is no placement. Write S0, S0[1,3,1,3], R, P or Pmax.')
    if match["replicate"]:
        return Replicate()
    try:
        if match["dim"] is None:
            return Partial(match["reduce"] or "sum")
        sizes = match["sizes"]
        return Shard(int(match["dim"]), None if sizes is None else [int(size) for size in sizes.split(",") if size])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def placements(text: str) -> list[Placement]:
    """One per mesh dim, by commas outside of brackets."""
    return [placement(part) for part in re.split(r",(?![^\[]*\])", text)]


def ranks(text: str) -> list[int]:
    """0,2,1,3 or 4-7."""
    if not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", text):
        raise argparse.ArgumentTypeError(f'"{text}" is no list of ranks. Write them as in 0,2,1,3 or 4-7.')
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if int(last or first) >= MAX_RANKS:
            raise argparse.ArgumentTypeError(f"rank {last or first} is out of range. Give ranks below {MAX_RANKS:,}.")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def dtype(text: str) -> torch.dtype:
    """float32."""
    found = getattr(torch, text, None)
    if not isinstance(found, torch.dtype):
        raise argparse.ArgumentTypeError(f'torch has no dtype "{text}". Write it as in float32 or bfloat16.')
    return found


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(add_help=False)
    add = arguments.add_argument
    add("--shape", type=extents, required=True, help="of the whole tensor, as in 4097x1023")
    add("--mesh", type=mesh_extents, required=True, help="extents, as in 2x2")
    add("--from", type=placements, required=True, dest="source", metavar="PLACEMENTS", help='as in "S0,S1"')
    add("--to", type=placements, required=True, dest="target", metavar="PLACEMENTS", help='as in "S1,S0" or "R,P"')
    add("--ranks", type=ranks, help="of --mesh, row-major: 0,2,1,3 or 4-7 (default: 0, 1, 2, ...)")
    add("--to-mesh", type=mesh_extents, metavar="MESH", help="another mesh to move to")
    add("--to-ranks", type=ranks, metavar="RANKS", help="of --to-mesh (default: 0, 1, 2, ...)")
    add("--dtype", type=dtype, default=torch.float32, help="default: float32")
    add("--objective", choices=("bytes", "time"), default="bytes", help="default: %(default)s")
    add("--link", type=link, action="append", metavar="US:GB/S", help="once per mesh dim (default: 20:10 for each)")
    add("--memory-cap", type=n_bytes, default=0, metavar="BYTES", help="of message buffers per rank, as in 1MiB")

    main = argparse.ArgumentParser(
        prog="python -m shardwise",
        description="Plans without communication: what a redistribution would send, and where embedding tables would go.",
        epilog="Placements of plan and simulate, one per mesh dim: S0 (sharded along tensor dim 0), S0[1,3,1,3] (in these sizes), R (replicated), "
        "P, Pavg, Pmax, Pmin, Pproduct (partial).",
    )
    commands = main.add_subparsers(dest="command", required=True)
    commands.add_parser("plan", parents=[arguments], help="the plan and its totals, in a line").set_defaults(
        run=lambda options: redistribution(options, show_plan)
    )
    commands.add_parser("simulate", parents=[arguments], help="a table of what ranks send and receive").set_defaults(
        run=lambda options: redistribution(options, show_ranks)
    )
    _embedding_command.add_to(commands)
    doctor.add_to(commands)
    return main


def layout(shape: Sequence[int], mesh: tuple[int, ...], order: list[int] | None, placed: list[Placement]) -> Layout:
    if order is None:
        return Layout(shape, mesh, placed)
    if len(order) != prod(mesh):
        raise ValueError(f"{len(order)} ranks do not fill a mesh of {prod(mesh)}. Give one rank per place.")
    return Layout(shape, torch.tensor(order).view(mesh), placed)


def planned(options: argparse.Namespace) -> Plan:
    if options.to_ranks is not None and options.to_mesh is None:
        raise ValueError("--to-ranks are those of --to-mesh, which is missing. Give both.")
    source = layout(options.shape, options.mesh, options.ranks, options.source)
    mesh, order = (options.mesh, options.ranks) if options.to_mesh is None else (options.to_mesh, options.to_ranks)
    return plan_redistribution(
        source,
        layout(options.shape, mesh, order, options.target),
        dtype=options.dtype,
        objective=options.objective,
        links=options.link,
        memory_cap=options.memory_cap,
    )


def redistribution(options: argparse.Namespace, show: Callable[[Plan], list[str]]) -> list[str]:
    plan = planned(options)
    return [f"{plan.source} -> {plan.destination}, {str(options.dtype).removeprefix('torch.')}", *show(plan)]


def show_plan(plan: Plan) -> list[str]:
    return [str(plan)]


def show_ranks(plan: Plan) -> list[str]:
    shares = sorted(plan.simulate(), key=lambda share: (-share[1].received, share[0]))
    rows = [
        ("", "rank", "received", "bound", "sent", "messages", "buffers", "time"),
        totals(shares),
        *(
            row(name, rank, share)
            for name, (rank, share) in (
                ("most loaded", shares[0]),
                ("median", shares[len(shares) // 2]),
                ("least loaded", shares[-1]),
            )
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [str(plan), "", *("  ".join([r[0].ljust(widths[0]), *map(str.rjust, r[1:], widths[1:])]) for r in rows)]


def row(name: str, rank: int, share: RankTraffic) -> tuple[str, ...]:
    counts = (share.received, share.bound, share.sent, share.n_messages, share.buffer_bytes)
    return name, f"{rank}", *(f"{count:,}" for count in counts), duration(share.seconds)


def totals(shares: list[tuple[int, RankTraffic]]) -> tuple[str, ...]:
    """Sums over all ranks; of buffers and time the most."""
    every = [share for _, share in shares]
    counts = (
        sum(share.received for share in every),
        sum(share.bound for share in every),
        sum(share.sent for share in every),
        sum(share.n_messages for share in every),
        max(share.buffer_bytes for share in every),
    )
    return (
        f"all {len(every):,} ranks",
        "",
        *(f"{count:,}" for count in counts),
        duration(max(share.seconds for share in every)),
    )


def duration(seconds: float) -> str:
    """The unit that leaves one to three digits before the point."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds:.2f} s"


def main(arguments: Sequence[str] | None = None) -> None:
    commands = parser()
    options = commands.parse_args(arguments)
    try:
        lines = options.run(options)
    except (ValueError, IndexError, OSError) as error:
        commands.error(str(error).split("\n")[0])
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
