"""plan_embeddings in Python and on the command line; the arithmetic is tested in C++."""

import copy
import json
import pickle

import pytest
import torch
from command_line import finished_command, is_error_in_a_line

import shardwise as sw

TABLES = [
    sw.TableConfig("users", 1000, 64, ids_per_sample=2.5, skew=1.1),
    sw.TableConfig("items", 300, 16, dtype=torch.float16, combiner="mean"),
    sw.TableConfig("days", 7, 4, dtype="float64", combiner="none"),
]


def test_a_plan_says_where_each_table_is_and_why():
    plan = sw.plan_embeddings(TABLES, 2, strategy="basic", data_parallel_threshold=28, column_slice_threshold=32_000)
    assert [each.treatment for each in plan.table_plans] == [
        "replicated" if t == 2 else "table-parallel" for t in range(3)
    ]
    assert [(s.rank, s.rows, s.columns) for s in plan.table_plans[0].slices] == [
        (0, (0, 1000), (0, 32)),
        (1, (0, 1000), (32, 64)),
    ]
    assert "28 elements are at most data_parallel_threshold 28" in plan.table_plans[2].reason
    assert [(g.is_replicated, g.n_columns, g.dtype, g.combiner, g.n_rows) for g in plan.groups(0)] == [
        (True, 4, "float64", "none", 7),
        (False, 32, "float32", "sum", 1000),
        (False, 16, "float16", "mean", 300),
    ]
    assert [s.table for s in plan.slices(0)] == [2, 0, 1]
    assert plan.rank_load(0).n_bytes == 1000 * 32 * 4 + 300 * 16 * 2 + 7 * 4 * 8
    assert plan.heaviest_rank == 0 and plan.seconds >= plan.bound_seconds > 0
    assert plan.strategy == "basic" and plan.n_ranks == 2 and plan.tables == TABLES


def test_a_plan_is_a_value():
    plan = sw.plan_embeddings(TABLES, 4, strategy="cost_balanced", links=[(20, 10)], machine=(10, 20, 50))
    assert sw.EmbeddingPlan.from_json(plan.to_json()) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan == copy.deepcopy(plan)
    assert repr(plan) == "EmbeddingPlan(3 tables on 4 ranks, cost_balanced)"
    assert "a step takes" in str(plan) and "rank 3" in plan.picture()


def test_a_plan_is_saved_and_loaded(tmp_path):
    plan = sw.plan_embeddings(TABLES, 2)
    plan.save(str(tmp_path / "plan.json"))
    assert sw.EmbeddingPlan.load(str(tmp_path / "plan.json")) == plan
    with pytest.raises(ValueError, match="cannot be written: No such file"):
        plan.save(str(tmp_path / "no" / "plan.json"))
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        sw.EmbeddingPlan.load(str(tmp_path / "other.json"))


MISTAKES = {
    "strategy": (lambda: sw.plan_embeddings(TABLES, 2, strategy="best"), 'strategy "best" is not known'),
    "no tables": (lambda: sw.plan_embeddings([], 2), "no tables"),
    "twice": (lambda: sw.plan_embeddings([TABLES[0]] * 2, 2), 'two tables have the name "users"'),
    "D11": (lambda: sw.plan_embeddings([sw.TableConfig("t", 9, 2)], 4), "lower row_slice_threshold to at most 18"),
    "thresholds": (
        lambda: sw.plan_embeddings(TABLES, 2, data_parallel_threshold=9, row_slice_threshold=9),
        "contradict each other",
    ),
    "dtype": (
        lambda: sw.TableConfig("t", 9, 2, dtype=torch.complex64),
        'dtype "complex64" is not supported for tables',
    ),
    "combiner": (lambda: sw.TableConfig("t", 9, 2, combiner="median"), 'combiner "median" is not known'),
    "memory": (lambda: sw.plan_embeddings(TABLES, 1, memory_per_rank=5), "more than memory_per_rank 5"),
    "JSON": (lambda: sw.EmbeddingPlan.from_json("{"), "line 1, byte 2: this is no JSON"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_a_value_error(name):
    call, words = MISTAKES[name]
    with pytest.raises(ValueError, match=words):
        call()


def test_ranks_outside_the_plan_are_index_errors():
    plan = sw.plan_embeddings(TABLES, 2)
    for call in (plan.groups, plan.slices, plan.rank_load):
        for rank in (-1, 2):
            with pytest.raises(IndexError, match=f"rank {rank} is not one of the plan's 2 ranks"):
                call(rank)


def run(*arguments):
    return finished_command("plan-embeddings", *arguments)


@pytest.fixture
def tables(tmp_path):
    path = tmp_path / "tables.json"
    path.write_text(
        json.dumps([{"name": f"t{i}", "n_rows": 10 ** (i % 7 + 1), "n_columns": 32, "skew": 1.05} for i in range(26)])
    )
    return path


def test_the_command_prints_the_table_the_picture_and_the_bound(tables, tmp_path):
    saved = tmp_path / "plan.json"
    result = run(tables, "--ranks", 4, "--memory", "80GB", "--save", saved)
    assert result.returncode == 0 and not result.stderr, result.stderr
    lines = result.stdout.splitlines()
    assert (
        lines[0].startswith("26 tables on 4 ranks, cost_balanced: a step takes ") and "none takes less than" in lines[0]
    )
    assert sum(line.startswith("t25 ") for line in lines) == 2
    assert any(
        line.split() == ["table", *[word for rank in range(4) for word in ("rank", str(rank))]] for line in lines
    )
    assert sw.EmbeddingPlan.load(str(saved)).n_ranks == 4
    again = run(saved, "--ranks", 64, "--memory", "80GB", "--strategy", "memory_optimized", "--mesh", "8x8")
    assert again.returncode == 0 and "26 tables on 64 ranks, memory_optimized" in again.stdout, again.stderr


BEYOND_64_BITS = "99999999999999999999"

COMMAND_MISTAKES = [
    (["--memory", "80 apples"], '"80 apples" is no number of bytes'),
    (["--memory", "1KB"], "at most memory_per_rank 1,000"),
    (["--ranks", "0"], '"0" is no whole number from 1 to 1048576'),
    (["--ranks", "x"], 'argument --ranks: "x" is no whole number from 1 to 1048576'),
    (["--ranks", "1.5"], '"1.5" is no whole number'),
    (["--ranks", "9" * 5000], '..." is no whole number'),
    *((["--ranks", text], f'"{text}" is no whole number from 1 to 1048576') for text in ("-1", BEYOND_64_BITS)),
    *(
        ([option, BEYOND_64_BITS], f'argument {option}: "{BEYOND_64_BITS}" is no whole number from {least} to {most}')
        for option, least, most in (
            ("--batch", 1, 2**63 - 1),
            ("--data-parallel-threshold", 0, 2**63 - 1),
            ("--row-slice-threshold", 1, 2**63 - 1),
            ("--column-slice-threshold", 1, 2**63 - 1),
            ("--state-per-element", 0, 1024),
            ("--state-per-row", 0, 1024),
        )
    ),
    (["--save", "\udcff.json"], r"argument --save: '\udcff.json' is no name in UTF-8. Give another"),
    (["--strategy", "best"], "invalid choice"),
    (["--mesh", "3x3"], "mesh_shape"),
    (["--row-slice-threshold", "1", "--data-parallel-threshold", "5"], "contradict each other"),
]


@pytest.mark.parametrize(("arguments", "words"), COMMAND_MISTAKES, ids=lambda each: str(each)[:60])
def test_a_mistake_on_the_command_line_is_an_error_of_usage(tables, arguments, words):
    result = run(tables, "--ranks", "4", *arguments)
    assert is_error_in_a_line(result, "plan-embeddings") and words in result.stderr, result.stderr


# what is in the file, why there are no tables in it
NO_TABLES = [
    ("{", "holds no tables: line 1, byte 2: this is no JSON"),
    ("[" * 100_000, "holds no tables: line 1, byte 100001: this is no JSON"),
    ('{"tables": 3}', "holds no tables: "),
    ('[{"name": "t"}]', 'holds no tables: $[0] has no "n_rows". Give it one.'),
    ('[{"name": "t", "n_rows": 1e999, "n_columns": 8}]', "holds no tables: "),
    ("[]", "holds no tables: there are no tables to place"),
    ("\xff", "is no text in UTF-8."),
]


@pytest.mark.parametrize(("content", "why"), NO_TABLES, ids=[content[:40] for content, _ in NO_TABLES])
def test_a_file_of_no_tables_is_an_error_of_usage(tmp_path, content, why):
    path = tmp_path / "tables.json"
    path.write_bytes(content.encode("latin-1"))
    result = run(path, "--ranks", "2")
    assert is_error_in_a_line(result, "plan-embeddings") and f"{str(path)!r} {why}" in result.stderr, result.stderr
    assert "EmbeddingPlan" not in result.stderr and 'Write a list as in [{"name": "users",' in result.stderr


def test_a_file_of_tables_that_cannot_be_read_is_an_error_of_usage(tmp_path):
    for path, why in ((tmp_path / "none.json", "No such file or directory"), (tmp_path, "Is a directory")):
        result = run(path, "--ranks", "2")
        assert is_error_in_a_line(result, "plan-embeddings"), result.stderr
        assert f"error: {str(path)!r} cannot be read: {why}. Give a file of tables" in result.stderr, result.stderr
