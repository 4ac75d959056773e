"""suggest(): plans beside those that people write, their code on real ranks, and limits that nothing fits into."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import shardwise as sw
from shardwise._suggest.layers import COLUMN, EXPERT, ROW, WHOLE, blocks_of, kinds_of
from shardwise._suggest.plans import Plan
from shardwise.testing import run_ranks

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from suggest_models import Block, Llama, Tables


class Experts(nn.Module):
    def __init__(self, n_experts, width):
        super().__init__()
        self.num_experts = n_experts
        self.up = nn.Parameter(torch.randn(n_experts, width, 4 * width))
        self.down = nn.Parameter(torch.randn(n_experts, 4 * width, width))

    def forward(self, x, index, weights):
        flat = index.flatten()
        order = flat.argsort(stable=True)
        offs = F.one_hot(flat, self.num_experts).sum(0).cumsum(0).to(torch.int32)
        rows = F.silu(F.grouped_mm(x[order // index.shape[1]], self.up, offs=offs))
        rows = F.grouped_mm(rows, self.down, offs=offs) * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // index.shape[1], rows)


class Mixture(nn.Module):
    def __init__(self, width, n_experts):
        super().__init__()
        self.router, self.experts = nn.Linear(width, n_experts, bias=False), Experts(n_experts, width)

    def forward(self, x):
        weights, index = self.router(x).softmax(-1).topk(2, -1)
        return x + self.experts(x, index, weights)


class Ranking(nn.Module):
    def __init__(self, n_rows, width=16):
        super().__init__()
        self.lookups = Tables(n_rows, width)
        self.dense = nn.Sequential(nn.Linear(13 + width * len(n_rows), 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, features, ids):
        return self.dense(torch.cat([features, *self.lookups(ids)], 1))


def on_meta(make):
    with torch.device("meta"):
        return make()


def ids_of(n_samples, length):
    return torch.zeros(n_samples, length, dtype=torch.long)


MEGATRON = {"words": ROW, "q": COLUMN, "k": COLUMN, "v": COLUMN, "o": ROW, "up": COLUMN, "gate": COLUMN, "down": ROW}


@pytest.fixture(scope="module")
def llama():
    return on_meta(lambda: Llama(1024, 8, 2, 4096).bfloat16())


@pytest.fixture(scope="module")
def over_layers(llama):
    return sw.suggest(llama, ids_of(1, 2048), ranks=8)


def layouts_of(found):
    kinds = found.search.meter.subject.kinds
    return {kind.names[0]: layout for kind, layout in zip(kinds, found.plan.layouts, strict=True)}


def test_one_sequence_divides_the_layers_and_no_plan_of_people_is_faster(over_layers):
    kinds = over_layers.search.meter.subject.kinds
    megatron = [MEGATRON.get(kind.names[0].split(".")[-1], WHOLE) for kind in kinds]
    for head in (COLUMN, WHOLE):
        layouts = tuple(head if kind.names[0] == "head" else each for kind, each in zip(kinds, megatron, strict=True))
        by_people = over_layers.search.meter.cost(Plan((("tp", 8),), layouts))
        assert by_people.failure == ""
        assert over_layers.seconds <= by_people.seconds
    assert over_layers.plan.mesh == (("tp", 8),)
    assert over_layers.bound_seconds <= over_layers.seconds
    found = layouts_of(over_layers)
    assert (found["blocks.*.up"], found["blocks.*.gate"], found["blocks.*.down"]) == (COLUMN, COLUMN, ROW)


def test_many_sequences_divide_the_batch_and_little_memory_shards_the_parameters(llama):
    batch = ids_of(8, 2048)
    ample = sw.suggest(llama, batch, ranks=8)
    assert "tp" not in dict(ample.plan.mesh)
    meter = ample.search.meter
    sharded = [plan for plan in ample.search.weighed() if plan.mesh == (("shard", 8),)]
    least = min(meter.cost(plan).n_bytes for plan in sharded)
    short = sw.suggest(llama, batch, mesh={"shard": 8}, memory=1.01 * least)
    assert short.peak_bytes <= 1.01 * least
    assert 'sw.fully_shard(block, mesh=mesh["shard"])' in short.code()


def test_ranks_that_are_alike_are_confirmed_by_one_run(over_layers):
    assert over_layers.search.whole[over_layers.plan].alike == (0, 7)


def test_the_least_memory_of_the_error_suffices(llama):
    batch = ids_of(2, 256)
    with pytest.raises(ValueError, match=r"none of \d+ plans fits into 1,000 bytes on a rank: the least is") as error:
        sw.suggest(llama, batch, mesh={"shard": 2, "tp": 2}, memory=1000)
    least = int(re.search(r"the least is ([\d,]+)", str(error.value))[1].replace(",", ""))
    assert sw.suggest(llama, batch, mesh={"shard": 2, "tp": 2}, memory=least).peak_bytes == least


def test_experts_are_divided():
    model = on_meta(lambda: Mixture(1024, 8).bfloat16())
    found = sw.suggest(model, torch.zeros(4096, 1024, dtype=torch.bfloat16), mesh={"tp": 8})
    assert layouts_of(found)["experts"] == EXPERT
    assert "ExpertParallel(input_layouts=Replicate(), use_local_output=False)" in found.code()


@pytest.mark.parametrize("mesh", [{"shard": 4, "tp": 2}, {"shard": 2, "tp": 4}], ids=str)
@pytest.mark.parametrize("n_experts", [8, 6])
def test_every_plan_of_experts_runs_also_if_they_are_uneven(n_experts, mesh):
    model = on_meta(lambda: nn.Sequential(nn.Embedding(128, 64), nn.LayerNorm(64), Mixture(64, n_experts)).bfloat16())
    found = sw.suggest(model, torch.zeros(256, dtype=torch.long), mesh=mesh)
    assert {cost.failure for cost in found.search.meter.found.values()} == {""}
    assert any(EXPERT in plan.layouts for plan in found.search.weighed())


def test_blocks_of_a_sequential_are_sharded():
    model = on_meta(lambda: nn.Sequential(nn.Embedding(128, 64), *(Block(64, 4) for _ in range(3)), nn.Linear(64, 128)))
    found = sw.suggest(model, ids_of(4, 8), ranks=4)
    assert {cost.failure for cost in found.search.meter.found.values()} == {""}
    assert "for block in model:" in sw.suggest(model, ids_of(4, 8), mesh={"shard": 4}).code()


def test_a_plan_that_divides_nothing_says_so_and_times_have_three_digits():
    text = str(sw.suggest(on_meta(lambda: nn.Linear(8, 8)), torch.zeros(4, 8), mesh={"tp": 8}))
    assert "the 8 ranks of tp all do the same" in text
    assert re.search(r": [\d.]{1,7} us a step, ", text)


def test_tables_with_a_fused_optimizer_are_placed_too():
    def optimizer(parameters):
        tables = [each for each in parameters if each.shape[-1] == 16 and isinstance(each, sw.DTensor)]
        result = torch.optim.SGD([each for each in parameters if each.shape[-1] != 16], lr=0.1)
        result.of_tables = tables and sw.optim.FusedSGD(tables, lr=0.1)
        return result

    n_rows = [4_000_000, 1000, 3]
    batch = (torch.zeros(512, 13), [ids_of(512, 1) for _ in n_rows])
    found = sw.suggest(on_meta(lambda: Ranking(n_rows)), batch, ranks=4, optimizer=optimizer)
    assert "DistributedEmbedding" in found.code() and "machine=(2000, 0, 0)" in found.code()


def test_tables_are_placed_by_the_planner_unless_their_module_does_more():
    n_rows = [1_000_000, 1000, 3]
    batch = (torch.zeros(512, 13), [ids_of(512, 2) for _ in n_rows])
    found = sw.suggest(on_meta(lambda: Ranking(n_rows)), batch, ranks=4)
    (plan,) = found.search.cost(found.plan).embeddings
    assert plan.table_plans[0].treatment == "row-parallel"
    assert "DistributedEmbedding(tables, mesh=mesh" in found.code()

    class Doubled(Tables):
        def forward(self, ids):
            return [2 * each for each in super().forward(ids)]

    doubled = on_meta(lambda: Ranking(n_rows))
    doubled.lookups = on_meta(lambda: Doubled(n_rows, 16))
    assert "DistributedEmbedding" not in sw.suggest(doubled, batch, mesh={"shard": 4}).code()


def shard_of(found):
    names = {}
    exec(found.code(), names)
    return names["shard"]


@pytest.mark.parametrize("mesh", [{"tp": 4}, {"shard": 2, "tp": 2}, {"replicate": 2, "shard": 2}, {"replicate": 4}])
def test_the_code_computes_what_the_model_does(mesh):
    torch.manual_seed(0)
    model, ids = Llama(32, 4, 3), torch.randint(128, (4, 8))
    found = sw.suggest(model, ids, mesh=mesh, device_type="cpu")
    n_parts = found.plan.n_parts

    with sw.dry_run(4, device_type="cpu") as run:
        sharded, part = shard_of(found)(copy.deepcopy(model).to("meta")), ids[: len(ids) // n_parts].clone()
        optimizer = torch.optim.AdamW(sharded.parameters())
        for _ in range(2):
            sharded(part).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert run.figures.peak_bytes <= found.peak_bytes

    expected = model(ids)
    expected.square().mean().backward()

    def on_rank(rank):
        sharded = shard_of(found)(copy.deepcopy(model))
        place = rank // (4 // n_parts)
        rows = slice(place * len(ids) // n_parts, (place + 1) * len(ids) // n_parts)
        result = sharded(ids[rows])
        torch.testing.assert_close(result, expected[rows].detach())
        result.square().mean().backward()
        for (name, ours), theirs in zip(sharded.named_parameters(), model.parameters(), strict=True):
            grad = ours.grad.full_tensor() if isinstance(ours.grad, sw.DTensor) else ours.grad
            torch.testing.assert_close(grad, theirs.grad, msg=lambda text, name=name: f"{name}: {text}")

    for parameter in model.parameters():
        parameter.requires_grad_()
    run_ranks(4, on_rank)


def test_equal_layers_are_one_kind_and_blocks_of_a_list_may_differ():
    class Other(Block):
        pass

    model = on_meta(lambda: nn.ModuleDict({"body": nn.ModuleList([Other(8, 2), *(Block(8, 2) for _ in range(3))])}))
    names = {kind.names for kind in kinds_of(model)}
    assert ("body.0.q",) in names
    assert ("body.1.q", "body.2.q", "body.3.q") in names
    assert list(blocks_of(model)) == [("body", ["0"]), ("body", ["1", "2", "3"])]
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert [kind.names for kind in kinds_of(plain)] == [("0",), ("2",)]


def test_a_model_that_counts_its_blocks_is_measured_whole():
    class Counting(Llama):
        def forward(self, ids):
            x = self.words(ids)
            for i in range(4):
                x = self.blocks[i](x)
            return self.head(x)

    found = sw.suggest(on_meta(lambda: Counting(32, 4, 4)), ids_of(2, 8), mesh={"tp": 2})
    assert found.search.meter.longer == []


def test_the_model_stays_as_it_was():
    model = Llama(32, 4, 2)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    text = str(sw.suggest(model, {"ids": ids_of(2, 8)}, ranks=2))
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert "no plan is faster than" in text


@pytest.mark.parametrize(
    ("batch", "options", "words"),
    [
        (torch.zeros(4, 8), {}, "does not take the batch: RuntimeError"),
        ((ids_of(4, 8), 1), {}, "does not take the batch: TypeError"),
        (ids_of(4, 8), {"loss": lambda result: torch.zeros(())}, "does not take the batch: RuntimeError"),
        (ids_of(4, 8), {"loss": lambda result: None}, "does not take the batch: AttributeError"),
        (ids_of(4, 8), {"memory": "4 GiB"}, "memory is '4 GiB'. Give the bytes of a rank"),
    ],
)
def test_a_batch_or_an_argument_that_does_not_fit_is_an_error(batch, options, words):
    with pytest.raises(ValueError, match=words):
        sw.suggest(on_meta(lambda: Llama(32, 4, 2)), batch, ranks=2, **options)


def test_a_model_that_reads_a_value_goes_on_with_the_one_that_is_given():
    class Checked(Llama):
        def forward(self, ids):
            return super().forward(ids[:, :2] if (ids > 0).all() else ids)

    model, batch = on_meta(lambda: Checked(32, 4, 1)), ids_of(2, 8)
    with pytest.raises(
        ValueError,
        match=r"^\[suggest\] .*test_suggest.py:\d+ in .*forward reads a value .* value=1, or value={\"test_suggest.py:\d+\": 1} for",
    ):
        sw.suggest(model, batch, mesh={"shard": 2})
    line = Checked.forward.__code__.co_firstlineno + 1
    values = {f"test_suggest.py:{line}": 0}, 1
    whole, short = (sw.suggest(model, batch, mesh={"shard": 2}, value=value) for value in values)
    assert short.bound_seconds < whole.bound_seconds


def test_a_model_that_no_plan_runs_is_an_error():
    class Unready(Llama):
        def forward(self, ids):
            assert not isinstance(self.head.weight, sw.DTensor) and type(self) is Unready
            return super().forward(ids)

    with pytest.raises(ValueError, match=r"no plan runs: AssertionError"):
        sw.suggest(on_meta(lambda: Unready(32, 4, 1)), ids_of(4, 8), mesh={"shard": 2})


def test_tied_parameters_stay_one():
    def tied():
        model = Llama(32, 4, 2)
        model.head.weight = model.words.weight
        return model

    found = layouts_of(sw.suggest(on_meta(tied), ids_of(1, 64), mesh={"tp": 2}))
    assert found["words"] != COLUMN or found["head"] == ROW


def test_importing_shardwise_does_not_import_the_search():
    program = "import sys, shardwise; print([name for name in sys.modules if name.startswith('shardwise._suggest.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
