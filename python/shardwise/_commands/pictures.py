"""python -m shardwise show and diff: pictures of layouts and of moves, from shapes alone."""

import argparse
from math import prod
from pathlib import Path

from shardwise import _C
from shardwise._commands.arguments import PLACEMENTS, add_layout, check_names, layout, names, placements
from shardwise._commands.redistribution import add_move, planned
from shardwise.debug.picture import formats, shown_picture

SHOW_EXAMPLES = """examples:
  python -m shardwise show --shape 10x7 --mesh 2x2 --placements "S0,S1"
  python -m shardwise show --shape 8x16 --mesh 4 --placements "S0[1,3,1,3]" --file layout.html
  python -m shardwise show --shape 4x5x2 --mesh 4 --placements "RaggedShard((0,1),(2,3,0,5))"
  python -m shardwise show --shape 4x6x5 --mesh 2x3 --names dp,tp --placements "S0,P" --format svg > layout.svg
  python -m shardwise show --mesh 2x4 --names dp,tp"""

DIFF_EXAMPLES = """examples:
  python -m shardwise diff --shape 4097x1023 --mesh 2x2 --from "S0,S1" --to "S1,R"
  python -m shardwise diff --shape 4096x4096 --mesh 1024 --from S0 --to S1 --file move.html
  python -m shardwise diff --shape 4096x4096 --mesh 4x2 --names dp,tp --from "S0,P" --to "R,S1" --steps"""


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    show = commands.add_parser(
        "show",
        help="a picture of a tensor's parts on the ranks, or of a mesh",
        description="Draws which rank holds which part of a tensor, with bytes and imbalance.\nWithout --shape it draws the mesh.",
        epilog=f"{PLACEMENTS}\n\n{SHOW_EXAMPLES}",
    )
    add_layout(show, is_shape_required=False)
    show.add_argument("--placements", type=placements, metavar="PLACEMENTS", help='such as "S0,S1"')
    show.add_argument("--names", type=names, help="the names of the mesh dims, such as dp,tp")
    _add_output(show)
    show.set_defaults(run=run_show)

    diff = commands.add_parser(
        "diff",
        help="a picture of a move between two layouts",
        description="Draws both layouts, the bytes between ranks and per link, and the boxes that move.",
        epilog=f"{PLACEMENTS}\n\n{DIFF_EXAMPLES}",
    )
    add_move(diff)
    diff.add_argument("--names", type=names, help="the names of the dims of --mesh, such as dp,tp")
    diff.add_argument("--to-names", type=names, metavar="NAMES", help="the names of the dims of --to-mesh")
    diff.add_argument("--steps", action="store_true", help="draws each step of the plan instead of the whole move")
    _add_output(diff)
    diff.set_defaults(run=run_diff)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("--format", choices=tuple(formats()), help="default: by the suffix of --file, else text")
    command.add_argument("--file", type=Path, help="the file to write (default: standard output)")


def run_show(options: argparse.Namespace) -> list[str]:
    if (options.shape is None) != (options.placements is None):
        raise ValueError(
            "--shape and --placements belong together: a layout needs both. Give both, or neither to see the mesh."
        )
    dim_names = check_names("--names", options.names, options.mesh)
    if options.shape is None:
        order = options.ranks or list(range(prod(options.mesh)))
        return _shown(_C.picture_of_mesh(options.mesh, order, dim_names), options)
    placed = layout(options.shape, options.mesh, options.ranks, options.placements, options.dtype)
    return _shown(_C.picture_of_tensor(placed, options.dtype.itemsize, dim_names), options)


def run_diff(options: argparse.Namespace) -> list[str]:
    source = check_names("--names", options.names, options.mesh)
    if options.to_mesh is None and options.to_names is not None:
        raise ValueError("--to-names needs --to-mesh. Give both.")
    target = source if options.to_mesh is None else check_names("--to-names", options.to_names, options.to_mesh)
    plan = planned(options)
    draw = _C.picture_of_plan if options.steps else _C.difference_of_plan
    return _shown(draw(plan, source, target), options)


def _shown(figures: _C.Figures, options: argparse.Namespace) -> list[str]:
    """Prints the picture, or writes it to a file and returns a line that says so."""
    shown_picture(figures, "", False, options.format, options.file)
    return [] if options.file is None else [f"wrote {options.file}"]
