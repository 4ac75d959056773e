"""python -m shardwise plan-embeddings: where the tables of a file would go."""

import argparse
import re
from pathlib import Path

from shardwise._C import TableConfig, plan_embeddings, tables_from_json
from shardwise._commands.arguments import MAX_INTEGER, link, mesh_extents, n_bytes, whole

MAX_RANKS = 1 << 20  # of a plan; plan_embeddings() checks all other limits, too
MAX_STATE_BYTES = 1024
ROWS = 'Write a list as in [{"name": "users", "n_rows": 1000000, "n_columns": 64}], or give a saved plan.'

STRATEGIES = ("basic", "memory_balanced", "memory_optimized", "cost_balanced")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "plan-embeddings",
        help="a plan for embedding tables: a table, a picture, and a bound",
        epilog='The file is a list as in [{"name": "users", "n_rows": 1000000, "n_columns": 64, "dtype": "float32",\n'
        '"combiner": "sum", "ids_per_sample": 1, "skew": 1.05}], where only the first three fields are required, or a\n'
        "saved plan, whose tables are planned again.\n\n"
        "example:\n  python -m shardwise plan-embeddings tables.json --ranks 64 --memory 80GB --strategy cost_balanced",
    )
    add = command.add_argument
    add("tables", type=Path, metavar="TABLES.JSON", help="the file with the tables")
    add("--ranks", type=whole(1, MAX_RANKS), required=True, help="the number of ranks")
    add("--memory", type=n_bytes, metavar="BYTES", help="for tables and optimizer state, per rank, such as 80GB")
    add("--strategy", choices=STRATEGIES, default="cost_balanced", help="default: %(default)s")
    add("--batch", type=whole(1, MAX_INTEGER), default=1024, help="samples per rank and step (default: %(default)s)")
    for least, name, help in (
        (0, "data-parallel", "tables of at most this size are replicated"),
        (1, "row-slice", "tables of at least this size are sharded by rows"),
        (1, "column-slice", "the largest size of a slice of columns"),
    ):
        add(f"--{name}-threshold", type=whole(least, MAX_INTEGER), metavar="ELEMENTS", help=help)
    state = whole(0, MAX_STATE_BYTES)
    for name, help in (("element", "4 for Adagrad, 8 for Adam"), ("row", "4 for row-wise Adagrad")):
        add(f"--state-per-{name}", type=state, default=0, metavar="BYTES", help=f"optimizer state: {help}")
    add("--mesh", type=mesh_extents, default=(), help="the shape of the mesh, such as 8x8: each mesh dim has a --link")
    add("--link", type=link, action="append", metavar="US:GB/S", help="give it once per mesh dim (default: 20:10)")
    add("--save", type=Path, metavar="PLAN.JSON", help="saves the plan")
    command.set_defaults(run=run)


def tables_of(path: Path) -> list[TableConfig]:
    """The tables of the file. Raises ValueError or OSError, which main() prints, if it has none."""
    name = repr(str(path))
    try:
        return tables_from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise type(error)(f"{name} cannot be read: {error.strerror}. Give a file of tables, or a saved plan.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name} is no text in UTF-8. {ROWS}") from None
    except (ValueError, RuntimeError) as error:  # the JSON parser raises RuntimeError
        why = re.sub(r"^\[[\w.]+\] ", "", str(error).split("\n")[0]).rstrip(".")
        raise ValueError(f"{name} holds no tables: {why}. {ROWS}") from None


def check_name(path: Path) -> None:
    """Raises ValueError unless the name is UTF-8, which C++ needs to write the file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"argument --save: {str(path)!r} is no name in UTF-8. Give another, as in plan.json."
        ) from None


def run(options: argparse.Namespace) -> list[str]:
    if options.save is not None:
        check_name(options.save)
    plan = plan_embeddings(
        tables_of(options.tables),
        options.ranks,
        strategy=options.strategy,
        memory_per_rank=options.memory,
        batch_per_rank=options.batch,
        data_parallel_threshold=options.data_parallel_threshold,
        row_slice_threshold=options.row_slice_threshold,
        column_slice_threshold=options.column_slice_threshold,
        state_bytes_per_element=options.state_per_element,
        state_bytes_per_row=options.state_per_row,
        mesh_shape=options.mesh,
        links=options.link,
    )
    if options.save is not None:
        plan.save(str(options.save))
    return [str(plan), plan.picture().rstrip()]
