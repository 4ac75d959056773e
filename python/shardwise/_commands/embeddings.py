"""python -m shardwise plan-embeddings: where the tables of a file would go."""

import argparse
from pathlib import Path

from shardwise._C import EmbeddingPlan, plan_embeddings, tables_from_json
from shardwise._commands.arguments import link, mesh_extents, n_bytes
from shardwise._commands.help import HelpFormatter

STRATEGIES = ("basic", "memory_balanced", "memory_optimized", "cost_balanced")


def add_to(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "plan-embeddings",
        help="where embedding tables would go: a table, a picture, and a bound",
        epilog='The file is a list as in [{"name": "users", "n_rows": 1000000, "n_columns": 64, "dtype": "float32",\n'
        '"combiner": "sum", "ids_per_sample": 1, "skew": 1.05}], of which the first three are needed, or a saved plan,\n'
        "whose tables are planned anew.\n\n"
        "example:\n  python -m shardwise plan-embeddings tables.json --ranks 64 --memory 80GB --strategy cost_balanced",
        formatter_class=HelpFormatter,
    )
    add = command.add_argument
    add("tables", type=Path, metavar="TABLES.JSON", help="the tables")
    add("--ranks", type=int, required=True, help="how many")
    add("--memory", type=n_bytes, metavar="BYTES", help="of tables and optimizer state per rank, as in 80GB or 512MiB")
    add("--strategy", choices=STRATEGIES, default="cost_balanced", help="default: %(default)s")
    add("--batch", type=int, default=1024, help="samples per rank and step (default: %(default)s)")
    add("--data-parallel-threshold", type=int, metavar="ELEMENTS", help="tables of at most so many are replicated")
    add("--row-slice-threshold", type=int, metavar="ELEMENTS", help="tables of at least so many are sharded by rows")
    add("--column-slice-threshold", type=int, metavar="ELEMENTS", help="a slice of columns has at most so many")
    add("--state-per-element", type=int, default=0, metavar="BYTES", help="of the optimizer: 4 for Adagrad, 8 for Adam")
    add("--state-per-row", type=int, default=0, metavar="BYTES", help="of the optimizer: 4 for row-wise Adagrad")
    add("--mesh", type=mesh_extents, default=(), help="of the ranks, as in 8x8: links are given per mesh dim")
    add("--link", type=link, action="append", metavar="US:GB/S", help="once per mesh dim (default: 20:10)")
    add("--save", type=Path, metavar="PLAN.JSON", help="saves the plan")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> list[str]:
    try:
        text = options.tables.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{options.tables} is no text in UTF-8.") from None
    plan = plan_embeddings(
        tables_from_json(text),
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
    return shown(plan)


def shown(plan: EmbeddingPlan) -> list[str]:
    return [str(plan), plan.picture().rstrip()]
