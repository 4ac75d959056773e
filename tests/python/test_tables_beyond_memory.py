"""Tables of a DistributedEmbedding in files, with a cache of hot rows, against the same layer in memory."""

import copy
import os
import signal
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torchrun import expect_all_well, forked_python

import shardwise as sw
from shardwise.id_transform import ExactMapping
from shardwise.testing import run_ranks

N_RANKS = 3
SHAPES = {"a": (400, 8), "b": (90, 8), "c": (1000, 4)}
COMBINERS = {"a": "sum", "b": "none", "c": "mean"}
PLANS = {
    "whole tables": {"strategy": "basic"},
    "columns": {"strategy": "memory_balanced", "column_slice_threshold": 1700},
    "rows": {"strategy": "memory_optimized", "row_slice_threshold": 3500},
}


def layer_of(folder=None, cache_rows=None, dtype="float32", stored=("a", "c"), **options):
    configs = [sw.TableConfig(n, *shape, dtype=dtype, combiner=COMBINERS[n]) for n, shape in SHAPES.items()]
    if folder is not None:
        options["storage"] = {name: sw.FileStorage(folder, cache_rows=cache_rows) for name in stored}
    torch.manual_seed(4)
    return sw.DistributedEmbedding(configs, **options)


def ids_of(rank, step, n_samples=5):
    """Ids that move through the tables, so that the rows of many steps together are far more than a cache."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return {
        name: (torch.randint(40, (n_samples, 3), generator=generator) ** 2 + 17 * step) % rows
        for name, (rows, _) in SHAPES.items()
    }


def train(layer, optimizer, rank, steps):
    vectors = {}
    for step in steps:
        optimizer.zero_grad()
        vectors = layer(ids_of(rank, step))
        sum(((index + 1) * each.square()).sum() for index, each in enumerate(vectors.values())).backward()
        optimizer.step()
    return vectors


OPTIMIZERS = {
    "FusedSGD": lambda p: sw.optim.FusedSGD(p, lr=0.01),
    "FusedAdagrad": lambda p: sw.optim.FusedAdagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "FusedAdam": lambda p: sw.optim.FusedAdam(p, lr=0.05),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_many_steps_with_a_small_cache_equal_those_in_memory(name, options, tmp_path):
    def body(rank):
        plain, stored = layer_of(**options), layer_of(tmp_path, cache_rows=48, **options)
        theirs, ours = OPTIMIZERS[name](list(plain.parameters())), OPTIMIZERS[name](list(stored.parameters()))
        expected = train(plain, theirs, rank, range(25))
        vectors = train(stored, ours, rank, range(25))
        for feature, each in expected.items():
            assert torch.equal(vectors[feature], each)
        for own, other in zip(stored.get_weights(all_ranks=True), plain.get_weights(all_ranks=True), strict=True):
            np.testing.assert_array_equal(own, other)
        ours.state_dict(), theirs.state_dict()
        for own, other in zip(stored.parameters(), plain.parameters(), strict=True):
            for kind, values in ours.state.get(own, {}).items():
                same = theirs.state[other][kind]
                assert torch.equal(whole(values), whole(same)), kind
        return stored.cache_counts()

    counts = [each for of_rank in run_ranks(N_RANKS, body) for each in of_rank.values() if each.slots]
    assert counts
    assert any(each.evictions > 0 for each in counts)
    assert all(each.slots <= 96 for each in counts)


def whole(values):
    return values.full_tensor() if isinstance(values, sw.DTensor) else values


def test_row_wise_adagrad_keeps_its_sums_in_files(tmp_path):
    def body(rank):
        layers = [layer_of(**PLANS["rows"]), layer_of(tmp_path, cache_rows=48, **PLANS["rows"])]
        sums = []
        for layer in layers:
            tables = [layer.tables["c"]]
            optimizer = sw.optim.FusedAdagrad(tables, lr=0.1, row_wise=True)
            train(layer, optimizer, rank, range(20))
            optimizer.state_dict()
            sums.append(optimizer.state[tables[0]]["sum"].full_tensor())
        assert sums[0].shape == (1000,)
        assert torch.equal(*sums)

    run_ranks(N_RANKS, body)


def test_ids_by_table(tmp_path):
    def body(rank):
        options = {"dp_input": False, **PLANS["columns"]}
        layers = [layer_of(**options), layer_of(tmp_path, cache_rows=100, **options)]
        for layer in layers:
            optimizer = sw.optim.FusedAdam(list(layer.parameters()), lr=0.05)
            is_here = {n: bool(layer.pieces(n)) for n in SHAPES}
            for step in range(12):
                parts = [ids_of(each, step) for each in range(N_RANKS)]
                ids = {n: torch.cat([part[n] for part in parts]) for n in SHAPES}
                vectors = layer({n: each if is_here[n] else None for n, each in ids.items()})
                sum(each.square().sum() for each in vectors.values()).backward()
            del optimizer
        for own, other in zip(*(layer.get_weights(all_ranks=True) for layer in layers), strict=True):
            np.testing.assert_array_equal(own, other)

    run_ranks(N_RANKS, body)


def test_a_lookup_whose_rows_do_not_fit_is_an_error_on_all_ranks(tmp_path):
    def body(rank):
        config = sw.TableConfig("t", 100, 4)
        layer = sw.DistributedEmbedding(
            [config], storage={"t": sw.FileStorage(tmp_path, cache_rows=6)}, row_slice_threshold=1
        )
        few, many = torch.arange(3) + 3 * rank, torch.arange(8)
        expected = layer.get_weights(all_ranks=True)[0]
        for _ in range(2):
            with pytest.raises(
                ValueError,
                match=r"8 distinct rows of table t on rank 0\. .*Set cache_rows of the table's storage to 8 or more",
            ):
                layer([many])
            vectors = layer([few])[0]
            np.testing.assert_array_equal(vectors.detach(), expected[few])
            with pytest.raises(
                ValueError,
                match=r"4 distinct rows of table t on rank 0, in addition to 6 rows .* storage to 10 or more",
            ):
                layer([torch.arange(4) + 20])
            with torch.no_grad():
                layer([few])
            del vectors  # and with it the backward that never came
        by_table = sw.DistributedEmbedding(
            [config, sw.TableConfig("u", 100, 4)], storage={"t": sw.FileStorage(tmp_path, cache_rows=6)}, dp_input=False
        )
        with pytest.raises(ValueError, match="8 distinct rows of table t on rank"):
            by_table([torch.arange(8) if by_table.pieces(n) else None for n in "tu"])

    run_ranks(2, body)


def test_rows_of_lookups_under_way_stay(tmp_path):
    def body(rank):
        values = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
        layer = sw.DistributedEmbedding(
            [sw.TableConfig("t", 50, 4)], storage={0: sw.FileStorage(tmp_path, cache_rows=20)}
        )
        layer.set_weights([values])
        optimizer = sw.optim.FusedSGD(list(layer.parameters()), lr=1.0)
        first, second = layer([torch.arange(10)])[0], layer([torch.arange(10, 20)])[0]
        second.sum().backward()
        layer([torch.arange(20, 30)])[0].sum().backward(retain_graph=True)
        missed = layer.cache_counts()["t"].misses
        assert missed == 30
        first.sum().backward(retain_graph=True)
        for begin in (30, 40):  # the first lookup's rows leave
            layer([torch.arange(begin, begin + 10)])[0].sum().backward()
        first.sum().backward()  # in the file
        expected = values - 1
        expected[:10] -= 1
        torch.testing.assert_close(torch.from_numpy(layer.get_weights()[0]), expected)
        vectors = layer([torch.arange(20)])[0]
        torch.testing.assert_close(vectors.detach(), expected[:20])
        del optimizer

    run_ranks(1, body)


def test_what_a_program_writes_to_the_parameter_is_looked_up(tmp_path):
    def body(rank):
        layers = [layer_of(), layer_of(tmp_path, cache_rows=60)]
        optimizers = [sw.optim.FusedAdam(list(layer.parameters()), lr=0.05) for layer in layers]
        for layer, optimizer in zip(layers, optimizers, strict=True):
            train(layer, optimizer, rank, range(3))
            with torch.no_grad():
                layer.tables["a"].mul_(2)  # rows that the file has not yet are in memory
                layer.tables["c"].data.add_(1)
            train(layer, optimizer, rank, range(3, 5))
            state = copy.deepcopy(optimizer.state_dict())
            train(layer, optimizer, rank, range(5, 7))
            optimizer.load_state_dict(state)
            train(layer, optimizer, rank, range(7, 9))
            layer.load_state_dict({name: 0.5 * value for name, value in layer.state_dict().items()})
            ids = sw.distribute_tensor(ids_of(0, 9)["a"], layer.mesh, [sw.Replicate()])
            F.embedding(ids, layer.tables["a"]).sum().backward()  # updates rows of the parameter itself
            train(layer, optimizer, rank, range(9, 11))
        for own, other in zip(*(layer.get_weights(all_ranks=True) for layer in layers), strict=True):
            np.testing.assert_array_equal(own, other)

    run_ranks(2, body)


def test_what_is_written_between_start_and_wait_is_looked_up_with_ids_by_table(tmp_path):
    def body(rank):
        vectors = []
        for layer in (layer_of(dp_input=False), layer_of(tmp_path, cache_rows=100, dp_input=False)):
            parts = [ids_of(each, 0) for each in range(2)]
            ids = {n: torch.cat([part[n] for part in parts]) if layer.pieces(n) else None for n in SHAPES}
            lookup = layer.start(ids)
            for table in layer.tables.values():
                table.data.add_(1)
            vectors.append(lookup.wait())
        for feature, each in vectors[0].items():
            assert torch.equal(vectors[1][feature], each)

    run_ranks(2, body)


def test_rows_that_pass_to_other_ids_start_anew(tmp_path):
    def trained(**options):
        torch.manual_seed(4)
        layer = sw.DistributedEmbedding([sw.TableConfig("t", 20, 4)], **options)
        to_rows = ExactMapping(20, layer.mesh)
        optimizer = sw.optim.FusedAdagrad(layer.parameters(), lr=0.1)
        n_reassigned = 0
        for step in range(8):
            rows = to_rows(torch.arange(6 * step, 6 * step + 6))
            to_rows.reset_rows(layer.tables["t"], optimizer, scale=0.1)
            n_reassigned += to_rows.n_reassigned
            layer([rows])[0].square().sum().backward()
        optimizer.state_dict()
        assert n_reassigned > 10
        return layer.get_weights()[0], optimizer.state[layer.tables["t"]]["sum"].full_tensor()

    def body(rank):
        values, sums = trained()
        stored, stored_sums = trained(storage={"t": sw.FileStorage(tmp_path, cache_rows=20)})
        np.testing.assert_array_equal(stored, values)
        assert torch.equal(stored_sums, sums)

    run_ranks(1, body)


def test_sparse_gradients(tmp_path):
    def body(rank):
        layers = [layer_of(sparse=True), layer_of(tmp_path, cache_rows=60, sparse=True)]
        for layer in layers:
            train(layer, torch.optim.SparseAdam(list(layer.parameters()), lr=0.05), rank, range(4))
        for own, other in zip(*(layer.get_weights(all_ranks=True) for layer in layers), strict=True):
            np.testing.assert_array_equal(own, other)

    run_ranks(2, body)


def test_counts_and_explain(tmp_path):
    def body(rank):
        layer = sw.DistributedEmbedding(
            [sw.TableConfig("t", 50, 4), sw.TableConfig("u", 5, 4)],
            storage={"t": sw.FileStorage(tmp_path, cache_bytes=10 * 16)},
        )
        assert list(layer.cache_counts()) == ["t"]
        for begin in (0, 4, 0, 12):
            with torch.no_grad():
                layer([torch.arange(begin, begin + 8), torch.zeros(8, dtype=torch.int64)])
        counts = layer.cache_counts()["t"]
        # 8 new; 4 to 7 known and 8 to 11 new, two of them for others; 0 to 7 without these two; 12 to 19 new.
        assert counts.slots == 10
        assert counts.hits + counts.misses == 32
        assert counts.evictions == counts.misses - 10
        assert counts.bytes_read == counts.misses * 16
        assert counts.bytes_written == 0
        assert counts.hit_rate == counts.hits / 32
        text = layer.explain()
        assert "table in files" in text
        assert text.splitlines()[-3].split()[:3] == ["t", "10", str(counts.hits)]
        assert text.splitlines()[-1].split()[:4] == ["1", "tables", "10", str(counts.hits)]

    run_ranks(1, body)


class PlainLfu:
    """Rows with their counts, in the order in which their last lookups ended."""

    def __init__(self, n_slots):
        self.n_slots, self.counts = n_slots, {}
        self.accesses = self.hits = self.misses = self.evictions = 0

    def look_up(self, asked):
        known = [row for row in asked if row in self.counts]
        self.hits += len(known)
        self.misses += len(asked) - len(known)
        for row in known:
            self.counts[row] = min(self.counts[row] + 1, 255)
        for row in asked:
            if row in self.counts:
                continue
            if len(self.counts) == self.n_slots:
                del self.counts[min((each for each in self.counts if each not in asked), key=self.counts.get)]
                self.evictions += 1
            self.counts[row] = 1
        self.accesses += len(asked)
        if self.accesses >= 10 * self.n_slots:
            self.accesses = 0
            self.counts = {row: count // 2 for row, count in sorted(self.counts.items(), key=lambda item: item[1])}
        self.counts = {row: c for row, c in self.counts.items() if row not in asked} | {
            row: self.counts[row] for row in asked
        }


def test_hits_are_those_of_a_plain_lfu(tmp_path):
    def body(rank):
        layer = sw.DistributedEmbedding(
            [sw.TableConfig("t", 500, 4)], storage={0: sw.FileStorage(tmp_path, cache_rows=64)}
        )
        plain = PlainLfu(64)
        generator = torch.Generator().manual_seed(2)
        weights = torch.arange(1, 501, dtype=torch.float64).pow(-1.1)
        for step in range(150):
            ids = torch.multinomial(weights.roll(step), 60, replacement=True, generator=generator)
            with torch.no_grad():
                layer([ids])
            plain.look_up(ids.unique().tolist())
            counts = layer.cache_counts()["t"]
            assert (counts.hits, counts.misses, counts.evictions) == (plain.hits, plain.misses, plain.evictions), step
        assert plain.evictions > 1000

    run_ranks(1, body)


def test_bad_storage_is_the_same_error_on_all_ranks(tmp_path):
    def body(rank):
        wrong = [
            ({"z": sw.FileStorage(tmp_path, cache_rows=1)}, ValueError, "storage names table 'z'"),
            ({"a": "file"}, TypeError, "the storage of table 'a' is a str"),
            (
                {"a": sw.FileStorage(tmp_path, cache_rows=1), 0: sw.FileStorage(tmp_path, cache_rows=1)},
                ValueError,
                "twice",
            ),
            ({"a": sw.FileStorage(tmp_path)}, ValueError, "cache_rows 0 and cache_bytes 0"),
            ({"a": sw.FileStorage(tmp_path, cache_rows=1, cache_bytes=1)}, ValueError, "Give one of them"),
            ({"a": sw.FileStorage(tmp_path, cache_rows=-1)}, ValueError, "above 0"),
            ({"a": sw.FileStorage(tmp_path / "none", cache_rows=1)}, ValueError, "cannot make a file .* No such file"),
        ]
        configs = [sw.TableConfig(name, *shape) for name, shape in SHAPES.items()]
        for storage, kind, text in wrong:
            with pytest.raises(kind, match=text):
                sw.DistributedEmbedding(configs, storage=storage)
        with pytest.raises(ValueError, match="table b is replicated, but has a storage"):
            sw.DistributedEmbedding(
                configs, storage={"b": sw.FileStorage(tmp_path, cache_rows=1)}, data_parallel_threshold=800
            )
        # A folder that only one rank has.
        folder = tmp_path if rank == 1 else tmp_path / "none"
        with pytest.raises(ValueError, match="cannot make a file"):
            sw.DistributedEmbedding(configs, storage={"a": sw.FileStorage(folder, cache_rows=1)}, row_slice_threshold=1)
        assert os.listdir(tmp_path) == []

    run_ranks(2, body)


def test_checkpoints_on_four_processes(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expect_all_well("beyond_memory_program.py", 4, "saves_and_loads", tmp_path)


KILLED = """
import os, signal, sys
import torch
import torch.distributed as dist
import shardwise as sw

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
layer = sw.DistributedEmbedding([sw.TableConfig("t", 1000, 8)], storage={"t": sw.FileStorage(sys.argv[1], cache_rows=20)})
optimizer = sw.optim.FusedAdagrad(list(layer.parameters()))
for step in range(5):
    layer([torch.arange(20) + 10 * step])[0].sum().backward()
print("trained", len(os.listdir(sys.argv[1])), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_nothing(tmp_path):
    killed = forked_python("-c", KILLED, tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout == "trained 0\n"
    assert os.listdir(tmp_path) == []
