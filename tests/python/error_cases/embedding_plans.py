"""What plan_embeddings, its tables and its plans refuse."""

from error_cases import case

TITLE = "Plans of embedding tables"
SETUP = '''
table = sw.TableConfig("user", 1000, 8)
small = sw.TableConfig("day", 7, 4)


def change(how):
    """Loads a plan for two ranks whose JSON was written to."""
    import json

    plan = json.loads(sw.plan_embeddings([table], 2).to_json())
    how(plan)
    sw.EmbeddingPlan.from_json(json.dumps(plan))
'''
CASES = [
    case("a table without a name", 'sw.plan_embeddings([sw.TableConfig("", 10, 8)], 2)', ValueError),
    case("a table without rows", 'sw.plan_embeddings([sw.TableConfig("t", 0, 8)], 2)', ValueError),
    case("a table of too many elements", 'sw.plan_embeddings([sw.TableConfig("t", 2**62, 8)], 2)', ValueError),
    case("no ids per sample", 'sw.plan_embeddings([sw.TableConfig("t", 10, 8, ids_per_sample=0)], 2)', ValueError),
    case("a negative skew", 'sw.plan_embeddings([sw.TableConfig("t", 10, 8, skew=-1)], 2)', ValueError),
    case("an unknown combiner", 'sw.TableConfig("t", 10, 8, combiner="min")', ValueError),
    case("an unknown dtype", 'sw.TableConfig("t", 10, 8, dtype="float4")', ValueError),
    case("no tables", "sw.plan_embeddings([], 2)", ValueError),
    case("two tables of one name", "sw.plan_embeddings([table, table], 2)", ValueError),
    case("no ranks", "sw.plan_embeddings([table], 0)", ValueError),
    case("an unknown strategy", 'sw.plan_embeddings([table], 2, strategy="best")', ValueError),
    case("a threshold of no elements", "sw.plan_embeddings([table], 2, row_slice_threshold=0)", ValueError),
    case(
        "thresholds that contradict each other",
        "sw.plan_embeddings([table], 2, data_parallel_threshold=100, row_slice_threshold=50)",
        ValueError,
    ),
    case("a mesh of other ranks", "sw.plan_embeddings([table], 2, mesh_shape=[3])", ValueError),
    case("a link per mesh dim", "sw.plan_embeddings([table], 2, links=[(1, 1), (1, 1)])", ValueError),
    case("a machine that cannot be", "sw.plan_embeddings([table], 2, machine=(0, 1, 1))", ValueError),
    case("no memory", "sw.plan_embeddings([table], 2, memory_per_rank=0)", ValueError),
    case("an empty batch", "sw.plan_embeddings([table], 2, batch_per_rank=0)", ValueError),
    case("a negative state", "sw.plan_embeddings([table], 2, state_bytes_per_row=-1)", ValueError),
    case("too little memory", "sw.plan_embeddings([table], 1, memory_per_rank=1000)", ValueError),
    case(
        "too little memory for any plan",
        'sw.plan_embeddings([table], 2, strategy="cost_balanced", memory_per_rank=1000)',
        ValueError,
    ),
    case("fewer slices than ranks", "sw.plan_embeddings([table], 4, column_slice_threshold=8000)", ValueError),
    case("fewer columns than ranks", "sw.plan_embeddings([small], 8)", ValueError),
    case("a rank that the plan does not have", "sw.plan_embeddings([table], 2).slices(2)", IndexError),
    case("text that is no JSON", 'sw.EmbeddingPlan.from_json("{")', ValueError),
    case("a number that no double holds", "sw.EmbeddingPlan.from_json('{\"version\": 1e999}')", ValueError),
    case("JSON that is no plan", 'sw.EmbeddingPlan.from_json("{}")', ValueError),
    case(
        "JSON with an unknown field",
        "sw.EmbeddingPlan.from_json(sw.plan_embeddings([table], 2).to_json().replace('\"strategy\"', '\"strategem\"'))",
        ValueError,
    ),
    case(
        "a field of another kind",
        'sw.EmbeddingPlan.from_json(sw.plan_embeddings([table], 2).to_json().replace(\'"memory_optimized"\', "7"))',
        ValueError,
    ),
    case("a file that is not there", 'sw.EmbeddingPlan.load("/nowhere/plan.json")', ValueError),
    case("a folder that is not there", 'sw.plan_embeddings([table], 2).save("/nowhere/plan.json")', ValueError),
    case(
        "a treatment that does not exist",
        """
        text = sw.plan_embeddings([table], 2).to_json()
        sw.EmbeddingPlan.from_json(text.replace('"table-parallel"', '"nowhere"'))
        """,
        ValueError,
    ),
    case(
        "tables of too many elements together",
        'sw.plan_embeddings([sw.TableConfig(name, 2**30, 2**19) for name in "abc"], 2)',
        ValueError,
    ),
    case("fewer plans than tables", "change(lambda plan: plan['plans'].pop())", ValueError),
    case(
        "a slice on a rank that is not there",
        "change(lambda plan: plan['plans'][0]['slices'][0].update(rank=2))",
        ValueError,
    ),
    case(
        "a slice beyond its table",
        "change(lambda plan: plan['plans'][0]['slices'][1].update(columns=[4, 9]))",
        ValueError,
    ),
    case("two slices on one rank", "change(lambda plan: plan['plans'][0]['slices'][1].update(rank=0))", ValueError),
    case(
        "slices that overlap", "change(lambda plan: plan['plans'][0]['slices'][1].update(columns=[3, 8]))", ValueError
    ),
    case("slices with a hole", "change(lambda plan: plan['plans'][0]['slices'][1].update(columns=[5, 8]))", ValueError),
    case(
        "a replicated table in slices",
        "change(lambda plan: plan['plans'][0].update(treatment='replicated'))",
        ValueError,
    ),
]
