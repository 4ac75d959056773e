"""DistributedEmbedding against nn.Embedding and nn.EmbeddingBag on one rank: requirements D1 to D11 by name."""

import json
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torchrun import expect_all_well

import shardwise as sw
from shardwise.testing import run_ranks

N_RANKS = 3
SHAPES = {"a": (40, 8), "b": (7, 8), "c": (100, 4), "d": (3, 8), "e": (25, 6)}
COMBINERS = {"a": "sum", "b": "mean", "c": "none", "d": "max", "e": "sum"}
PLANS = {
    "basic": {"strategy": "basic"},
    "memory balanced, sliced": {"strategy": "memory_balanced", "column_slice_threshold": 100},
    "memory optimized, rows": {"strategy": "memory_optimized", "row_slice_threshold": 300},
    "replicated small ones": {"strategy": "memory_optimized", "data_parallel_threshold": 60},
    "cost balanced": {"strategy": "cost_balanced"},
}


def configs():
    return [sw.TableConfig(name, *shape, dtype="float64", combiner=COMBINERS[name]) for name, shape in SHAPES.items()]


def dense_tables():
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        for name, shape in SHAPES.items()
    }


def layer_of(values, **options):
    layer = sw.DistributedEmbedding(configs(), **options)
    layer.set_weights([values[name].detach().numpy() for name in SHAPES])
    return layer


def ids_of(rank, step=0, n_samples=None):
    """By table: ids [samples, 2], of other numbers of samples on each rank."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    n = 4 + rank if n_samples is None else n_samples
    return {name: torch.randint(shape[0], (n, 2), generator=generator) for name, shape in SHAPES.items()}


def dense_vectors(tables, ids):
    return {
        name: F.embedding(ids[name], table)
        if COMBINERS[name] == "none"
        else F.embedding_bag(ids[name], table, mode=COMBINERS[name])
        for name, table in tables.items()
    }


def loss_of(vectors):
    return sum(((index + 1) * each.square()).sum() for index, each in enumerate(vectors.values()))


def dense_gradients(step=0):
    """Those of the mean of the ranks' losses."""
    tables = dense_tables()
    sum(loss_of(dense_vectors(tables, ids_of(rank, step))) for rank in range(N_RANKS)).backward()
    return {name: table.grad / N_RANKS for name, table in tables.items()}


@pytest.mark.parametrize("options", PLANS.values(), ids=PLANS)
def test_d1_values_and_gradients_are_dense(options):
    tables, expected = dense_tables(), dense_gradients()

    def body(rank):
        layer = layer_of(tables, **options)
        vectors = layer(ids_of(rank))
        torch.testing.assert_close(vectors, dense_vectors(tables, ids_of(rank)))
        loss_of(vectors).backward()
        for name, parameter in layer.tables.items():
            assert parameter.grad.placements == parameter.placements
            torch.testing.assert_close(parameter.grad.full_tensor(), expected[name])

    run_ranks(N_RANKS, body)


def test_d7_d8_inputs_of_every_kind_are_dense():
    tables = dense_tables()
    lengths = torch.tensor([2, 0, 3])
    ids = torch.tensor([0, 2, 1, 1, 0])
    weights = torch.tensor([0.5, 2, 1, 3, -1], dtype=torch.float64)
    offsets = torch.tensor([0, 2, 2, 5])
    table = tables["d"].detach()
    nested = torch.nested.nested_tensor_from_jagged(ids, offsets)

    def body(rank):
        def vectors_of(value, combiner):
            config = sw.TableConfig("d", *SHAPES["d"], dtype=torch.float64, combiner=combiner)
            layer = sw.DistributedEmbedding([config], row_slice_threshold=1)
            layer.set_weights([table.numpy()])
            return layer([value])[0]

        dense = F.embedding_bag(ids, table, offsets[:-1], mode="sum")
        for value in [
            sw.RaggedIds(ids, offsets=offsets),
            sw.RaggedIds(ids.int(), lengths=lengths),
            (ids, offsets),
            nested,
        ]:
            torch.testing.assert_close(vectors_of(value, "sum"), dense)
        weighted = F.embedding_bag(ids, table, offsets[:-1], mode="sum", per_sample_weights=weights)
        torch.testing.assert_close(vectors_of(sw.RaggedIds(ids, offsets, weights=weights), "sum"), weighted)
        torch.testing.assert_close(vectors_of(ids, "none"), table[ids])
        torch.testing.assert_close(vectors_of(ids, "mean"), table[ids])
        rows = vectors_of(nested, "none")
        assert rows.is_nested
        torch.testing.assert_close(rows.values(), table[ids])
        torch.testing.assert_close(vectors_of(ids[:0], "sum"), table[:0])

    run_ranks(2, body)


def test_d7_one_table_for_several_inputs_and_names():
    values = torch.randn(9, 4, dtype=torch.float64)

    def body(rank):
        config = sw.TableConfig("t", 9, 4, dtype="float64")
        other = sw.TableConfig("u", 5, 2, dtype="float64")
        layer = sw.DistributedEmbedding([config, other], input_table_map=["t", 1, 0])
        assert layer.feature_names == ["t_0", "u", "t_1"]
        layer.set_weights([values.numpy(), np.ones((5, 2))])
        one, two = torch.tensor([1, 2, rank]), torch.tensor([8, 1, 1])
        vectors = layer([one, one, two])
        torch.testing.assert_close(vectors[0], values[one])
        torch.testing.assert_close(vectors[2], values[two])
        (vectors[0].sum() + 2 * vectors[2].sum()).backward()
        expected = torch.zeros(9, 4, dtype=torch.float64)
        for r in range(2):
            for weight, ids in ((1, torch.tensor([1, 2, r])), (2, two)):
                expected.index_add_(0, ids, torch.full((3, 4), weight / 2, dtype=torch.float64))
        torch.testing.assert_close(layer.tables["t"].grad.full_tensor(), expected)

    run_ranks(2, body)


def test_d7_ids_by_table():
    tables, expected = dense_tables(), dense_gradients_of_equal_batches()

    def body(rank):
        layer = layer_of(tables, dp_input=False, strategy="memory_balanced", column_slice_threshold=100)
        all_ids = {name: torch.cat([ids_of(r, n_samples=5)[name] for r in range(N_RANKS)]) for name in SHAPES}
        inputs = {name: ids if layer.pieces(name) else None for name, ids in all_ids.items()}
        vectors = layer(inputs)
        torch.testing.assert_close(vectors, dense_vectors(tables, ids_of(rank, n_samples=5)))
        loss_of(vectors).backward()
        for name, parameter in layer.tables.items():
            torch.testing.assert_close(parameter.grad.full_tensor(), expected[name])

    run_ranks(N_RANKS, body)


def dense_gradients_of_equal_batches():
    tables = dense_tables()
    sum(loss_of(dense_vectors(tables, ids_of(rank, n_samples=5))) for rank in range(N_RANKS)).backward()
    return {name: table.grad / N_RANKS for name, table in tables.items()}


def test_d5_the_tables_are_dtensors_of_one_block():
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig(f"t{t}", 4 + t, 8) for t in range(2 * N_RANKS)])
        pieces = [piece for t in range(2 * N_RANKS) for piece, _, _ in layer.pieces(t)]
        assert len({piece.untyped_storage().data_ptr() for piece in pieces}) == 1
        table = layer.tables["t0"]
        assert isinstance(table, sw.DTensor)
        assert str(sw.visualize_sharding(table, print=False) if False else table.placements)
        whole = table.detach().redistribute(placements=[sw.Replicate()]).to_local()
        torch.testing.assert_close(whole, table.detach().full_tensor())

    run_ranks(N_RANKS, body)


def test_the_initial_values_do_not_depend_on_the_number_of_ranks():
    values = {}
    lock = threading.Lock()

    def body(rank):
        torch.manual_seed(5)
        layer = sw.DistributedEmbedding(configs(), strategy="basic")
        whole = layer.get_weights(all_ranks=True)
        with lock:
            values[layer.mesh.size(), rank] = whole

    for n_ranks in (1, 2, 4):
        run_ranks(n_ranks, body)
    for arrays in values.values():
        for own, first in zip(arrays, values[1, 0], strict=True):
            np.testing.assert_array_equal(own, first)


def test_d9_weights_of_another_number_of_ranks(tmp_path):
    tables = dense_tables()
    saved = {}

    def write(rank):
        layer = layer_of(tables, column_slice_threshold=100)
        arrays = layer.get_weights()
        assert (arrays is None) == (rank != 0)
        if rank == 0:
            for name, array in zip(SHAPES, arrays, strict=True):
                np.testing.assert_array_equal(array, tables[name].detach().numpy())
                np.save(tmp_path / f"{name}.npy", array)
            saved.update(zip(SHAPES, arrays, strict=True))

    def read(rank):
        layer = sw.DistributedEmbedding(configs(), strategy="memory_optimized", row_slice_threshold=100)
        layer.set_weights([tmp_path / f"{name}.npy" for name in SHAPES])
        for array, name in zip(layer.get_weights(all_ranks=True), SHAPES, strict=True):
            np.testing.assert_array_equal(array, saved[name])

    run_ranks(3, write)
    run_ranks(2, read)


def test_d9_wrong_weights_are_errors_and_nothing_is_written(tmp_path):
    tables = dense_tables()
    (tmp_path / "corrupt.npy").write_bytes(b"\x93NUMPY no header")

    def body(rank):
        layer = layer_of(tables)
        good = [np.zeros(shape) for shape in SHAPES.values()]
        with pytest.raises(ValueError, match=r"b is \[2, 2\] and not \[7, 8\]; e is \[1\] and not \[25, 6\]"):
            layer.set_weights(
                [
                    np.zeros((2, 2)) if n == "b" else np.zeros(1) if n == "e" else w
                    for n, w in zip(SHAPES, good, strict=True)
                ]
            )
        with pytest.raises(ValueError, match="got 4 arrays for 5 tables"):
            layer.set_weights(good[1:])
        with pytest.raises(Exception, match="format version"):
            layer.set_weights([tmp_path / "corrupt.npy" if rank == 1 else good[0], *good[1:]])
        with pytest.raises(ValueError, match="e is of float128 and not an array of real numbers of up to 8 bytes"):
            layer.set_weights([*good[:-1], good[-1].astype(np.longdouble)])
        with pytest.raises(ValueError, match="c is of <U1 and not an array of real numbers"):
            layer.set_weights(
                [np.full(shape, "x") if n == "c" else w for (n, shape), w in zip(SHAPES.items(), good, strict=True)]
            )
        for array, name in zip(layer.get_weights(all_ranks=True), SHAPES, strict=True):
            np.testing.assert_array_equal(array, tables[name].detach().numpy())

    run_ranks(2, body)


def test_d9_weights_of_either_byte_order(tmp_path):
    tables = dense_tables()
    for name, dtype in zip(SHAPES, (">f8", "<f8", ">f4", ">i4", "f8"), strict=True):
        np.save(tmp_path / f"{name}.npy", tables[name].detach().mul(100).round().numpy().astype(dtype))

    def body(rank):
        layer = sw.DistributedEmbedding(configs())
        layer.set_weights(tmp_path)
        for array, table in zip(layer.get_weights(all_ranks=True), tables.values(), strict=True):
            np.testing.assert_array_equal(array, table.detach().mul(100).round().numpy())

    run_ranks(2, body)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "FusedSGD": lambda p: sw.optim.FusedSGD(p, lr=0.1),
    "FusedAdagrad": lambda p: sw.optim.FusedAdagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("options", list(PLANS.values())[1:4], ids=list(PLANS)[1:4])
def test_d10_training_is_dense(name, options):
    dense = dense_tables()
    optimizer = OPTIMIZERS[name.removeprefix("Fused")](list(dense.values()))
    for step in range(3):
        optimizer.zero_grad()
        (sum(loss_of(dense_vectors(dense, ids_of(rank, step))) for rank in range(N_RANKS)) / N_RANKS).backward()
        optimizer.step()

    def body(rank):
        layer = layer_of(dense_tables(), **options)
        optimizer = OPTIMIZERS[name](list(layer.parameters()))
        for step in range(3):
            optimizer.zero_grad()
            loss_of(layer(ids_of(rank, step))).backward()
            optimizer.step()
        for array, table in zip(layer.get_weights(all_ranks=True), dense.values(), strict=True):
            torch.testing.assert_close(torch.from_numpy(array), table.detach())

    run_ranks(N_RANKS, body)


def test_d10_clipping_is_one_message():
    expected = torch.cat([grad.view(-1) for grad in dense_gradients().values()]).norm()

    def body(rank):
        layer = layer_of(dense_tables(), data_parallel_threshold=60)
        loss_of(layer(ids_of(rank))).backward()
        with sw.CommDebugMode() as mode:
            norm = nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            whole = norm.full_tensor() if isinstance(norm, sw.DTensor) else norm
        assert mode.get_total_counts() <= 1
        torch.testing.assert_close(whole, expected)

    run_ranks(N_RANKS, body)


def test_the_pipeline_gives_batches_with_their_vectors():
    tables = dense_tables()

    def body(rank):
        layer = layer_of(tables)
        batches = [(step, ids_of(rank, step)) for step in range(4)]
        seen = []
        for (step, ids), vectors in sw.EmbeddingPipeline(layer, batches, lambda batch: batch[1]):
            torch.testing.assert_close(vectors, dense_vectors(tables, ids))
            seen.append(step)
        assert seen == [0, 1, 2, 3]
        assert list(sw.EmbeddingPipeline(layer, [], lambda batch: batch)) == []

    run_ranks(2, body)


def test_concatenated_vectors_are_those_of_torch_cat():
    tables = {name: table for name, table in dense_tables().items() if name != "c"}
    combined = [config for config in configs() if config.name != "c"]

    def body(rank):
        layers = [
            sw.DistributedEmbedding(combined, concatenate=joins, column_slice_threshold=60) for joins in (True, False)
        ]
        for layer in layers:
            layer.set_weights([table.detach().numpy() for table in tables.values()])
        ids = [ids_of(rank)[name] if name != "b" else ids_of(rank)[name][:, :1] for name in tables]
        one, several = layers[0](ids), torch.cat(layers[1](ids), 1)
        torch.testing.assert_close(one, several)
        weights = torch.arange(one.numel(), dtype=one.dtype).view_as(one)
        (one * weights).sum().backward()
        (several * weights).sum().backward()
        for own, other in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
            torch.testing.assert_close(own.grad.full_tensor(), other.grad.full_tensor())
        with pytest.raises(ValueError, match=r"feature b has 2 samples, but feature a has 4|feature b has 2 samples"):
            layers[0]([each[:2] if index == 1 and rank == 1 else each for index, each in enumerate(ids)])
        with pytest.raises(ValueError, match="feature c is not combined"):
            sw.DistributedEmbedding(configs(), concatenate=True)

    run_ranks(2, body)


def test_modules_as_tables():
    torch.manual_seed(1)
    bag, plain = nn.EmbeddingBag(11, 4, mode="mean"), nn.Embedding(6, 2)

    def body(rank):
        layer = sw.DistributedEmbedding([bag, plain])
        ids = torch.tensor([[1, 2], [3, 3], [10, 0]])
        one, two = layer([ids, ids[:, 0] % 6])
        torch.testing.assert_close(one, bag(ids))
        torch.testing.assert_close(two, plain(ids[:, 0] % 6))
        with pytest.raises(ValueError, match="max_norm"):
            sw.DistributedEmbedding([nn.Embedding(4, 2, max_norm=1.0)])
        with pytest.raises(TypeError, match="table 0 is a Linear"):
            sw.DistributedEmbedding([nn.Linear(4, 2)])

    run_ranks(2, body)


@pytest.mark.parametrize(
    "options", [{"data_parallel_threshold": 1000}, {"row_slice_threshold": 1}], ids=["replicated", "rows"]
)
def test_ids_and_weights_may_be_filled_anew(options):
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig("t", 9, 2)], **options)
        whole = torch.from_numpy(layer.get_weights(all_ranks=True)[0])
        ids, weights = torch.tensor([1, 2]), torch.ones(2)
        lookup = layer.start([sw.RaggedIds(ids, weights=weights)])
        ids.fill_(10**9)
        vectors = lookup.wait()[0]
        torch.testing.assert_close(vectors, whole[[1, 2]])
        weights.fill_(100)
        vectors.sum().backward()
        expected = torch.zeros(9, 2)
        expected[[1, 2]] = 1
        torch.testing.assert_close(layer.tables["t"].grad.full_tensor(), expected)

    run_ranks(2, body)


def test_nested_tensors_with_holes():
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig("s", 12, 2), sw.TableConfig("n", 12, 2, combiner="none")])
        one, other = (torch.from_numpy(array) for array in layer.get_weights(all_ranks=True))
        ids = torch.nested.narrow(
            torch.arange(12).reshape(2, 6), 1, torch.tensor([0, 0]), torch.tensor([2, 5]), layout=torch.jagged
        )
        sums, rows = layer([ids, ids])
        torch.testing.assert_close(sums, torch.stack([one[:2].sum(0), one[6:11].sum(0)]))
        torch.testing.assert_close(rows.values(), torch.cat([other[:2], other[6:11]]))

    run_ranks(2, body)


def test_names_of_tables():
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig(name, 4, 2) for name in ("items", "type", "pop")])
        assert sorted(layer.state_dict()) == ["tables.items", "tables.pop", "tables.type"]
        layer.load_state_dict(layer.state_dict())
        assert layer({name: torch.tensor([1]) for name in ("items", "type", "pop")})["pop"].shape == (1, 2)
        for name in ("training", "a.b"):
            with pytest.raises(ValueError, match="tables cannot be called"):
                sw.DistributedEmbedding([sw.TableConfig(name, 4, 2)], row_slice_threshold=1)

    run_ranks(2, body)


def test_plans_of_other_tables_or_ranks_are_refused():
    def body(rank):
        configs = [sw.TableConfig("a", 4, 2), sw.TableConfig("b", 6, 2)]
        with pytest.raises(ValueError, match=r"it has a \[4, 2\] float32 where the layer has b \[6, 2\] float32"):
            sw.DistributedEmbedding(configs[::-1], plan=sw.plan_embeddings(configs, 2))
        with pytest.raises(ValueError, match="the plan is for 1 ranks, but the mesh has 2"):
            sw.DistributedEmbedding(configs, plan=sw.plan_embeddings(configs, 1))

    run_ranks(2, body)


@pytest.mark.parametrize("dp_input", [True, False])
def test_frozen_tables_are_not_trained(dp_input):
    def body(rank):
        tables = [sw.TableConfig(name, 40, 2) for name in "ab"] + [sw.TableConfig(name, 3, 2) for name in "cd"]
        layer = sw.DistributedEmbedding(tables, data_parallel_threshold=6, dp_input=dp_input)
        optimizer = sw.optim.FusedSGD(layer.parameters(), lr=1.0)
        for name in "ac":
            layer.tables[name].requires_grad_(False)
        before = layer.get_weights(all_ranks=True)
        ids = torch.tensor([0, 1, 2, 0])
        own = ids.view(2, 2)[rank]
        of_owner = {name: ids if layer.pieces(name) else None for name in "ab"}
        vectors = layer(dict.fromkeys("abcd", own) | ({} if dp_input else of_owner))
        sum(each.sum() for each in vectors.values()).backward()
        for name, old, new in zip("abcd", before, layer.get_weights(all_ranks=True), strict=True):
            steps = torch.zeros_like(torch.from_numpy(old))
            if name in "bd":
                steps[:3] = torch.tensor([[1.0], [0.5], [0.5]])
            torch.testing.assert_close(torch.from_numpy(old - new), steps)
        del optimizer

    run_ranks(2, body)


def test_a_backward_that_wants_no_gradient_of_tables_trains_none():
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig("t", 9, 2)], row_slice_threshold=1)
        optimizer = sw.optim.FusedSGD(layer.parameters(), lr=1.0)
        whole = torch.from_numpy(layer.get_weights(all_ranks=True)[0])
        weights = torch.ones(2, requires_grad=True)
        vectors = layer([sw.RaggedIds(torch.tensor([1, 8]), weights=weights)])[0]
        (grad,) = torch.autograd.grad(vectors.sum(), weights)
        torch.testing.assert_close(grad, whole[[1, 8]].sum(1))
        np.testing.assert_array_equal(layer.get_weights(all_ranks=True)[0], whole)
        del optimizer

    run_ranks(2, body)


def test_lookups_of_inference_leave_nothing_that_training_cannot_use():
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig("t", 9, 2)], row_slice_threshold=1)
        whole = torch.from_numpy(layer.get_weights(all_ranks=True)[0])
        ids, weights = torch.tensor([1, 8]), torch.ones(2, requires_grad=True)
        with torch.inference_mode():
            layer([ids])
        layer([sw.RaggedIds(ids, weights=weights)])[0].sum().backward()
        torch.testing.assert_close(weights.grad, whole[[1, 8]].sum(1))

    run_ranks(2, body)


def planned(configs, n_ranks, treatment, slices):
    """A plan written by hand. `slices`: by table (rank, rows, columns)."""
    plan = json.loads(sw.plan_embeddings(configs, n_ranks).to_json())
    for own, of_table in zip(plan["plans"], slices, strict=True):
        own["treatment"] = treatment
        own["slices"] = [{"rank": rank, "rows": rows, "columns": columns} for rank, rows, columns in of_table]
    return sw.EmbeddingPlan.from_json(json.dumps(plan))


def test_slices_of_columns_have_the_same_bounds_for_all_rows():
    def body(rank):
        table = sw.TableConfig("t", 10, 8)

        def layer_with(slices):
            return sw.DistributedEmbedding([table], plan=planned([table], 4, "table-parallel", [slices]))

        with pytest.raises(ValueError, match=r"table t into columns 0:[48] and (0:[48]|4:8), which overlap"):
            layer_with([(0, [0, 5], [0, 8]), (1, [5, 10], [0, 4]), (2, [5, 10], [4, 8])])
        # Their rows may be cut anywhere.
        layer = layer_with([(0, [0, 5], [0, 4]), (2, [0, 3], [4, 8]), (3, [3, 10], [4, 8]), (1, [5, 10], [0, 4])])
        rows = layer([torch.arange(10)])[0].detach()
        np.testing.assert_array_equal(rows, layer.get_weights(all_ranks=True)[0])

    run_ranks(4, body)


def test_ids_by_table_of_samples_without_ids():
    def body(rank):
        tables = [sw.TableConfig(name, 9, 2, combiner="none") for name in "tu"]
        layer = sw.DistributedEmbedding(tables, dp_input=False)
        ids = torch.empty(5, 0, dtype=torch.int64)
        vectors = layer([ids if layer.pieces(name) else None for name in "tu"])
        assert [list(each.shape) for each in vectors] == [[3 - rank, 0, 2]] * 2
        sum(each.sum() for each in vectors).backward()
        assert not layer.tables["t"].grad.full_tensor().any()

    run_ranks(2, body)


def test_ids_by_table_of_a_row_parallel_table_on_one_rank():
    def body(rank):
        table = sw.TableConfig("t", 9, 2, dtype="float64")
        plan = planned([table], 2, "row-parallel", [[(0, [0, 9], [0, 2])]])
        layer = sw.DistributedEmbedding([table], plan=plan, dp_input=False)
        dense = torch.from_numpy(layer.get_weights(all_ranks=True)[0]).requires_grad_()
        ids = torch.tensor([1, 1, 8, 0])
        own = slice(0, 2) if rank == 0 else slice(2, 4)
        vectors = layer([ids if rank == 0 else None])[0]
        torch.testing.assert_close(vectors, dense[ids[own]])
        vectors.square().sum().backward()
        (dense[ids].square().sum() / 2).backward()
        torch.testing.assert_close(layer.tables["t"].grad.full_tensor(), dense.grad)

    run_ranks(2, body)


def test_frozen_tables_need_no_messages_for_weights():
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig("t", 9, 2)], row_slice_threshold=1)
        whole = torch.from_numpy(layer.get_weights(all_ranks=True)[0])
        layer.requires_grad_(False)
        weights = torch.ones(2, requires_grad=rank == 0)
        vectors = layer([sw.RaggedIds(torch.tensor([1, 2]), weights=weights)])[0]
        if rank == 0:
            vectors.sum().backward()
            torch.testing.assert_close(weights.grad, whole[[1, 2]].sum(1))

    run_ranks(2, body)


def test_d11_bad_input_is_the_same_error_on_all_ranks():
    tables = dense_tables()

    def body(rank):
        layer = layer_of(tables)
        good = ids_of(rank)
        wrong = [
            ({**good, "b": good["b"] + 7}, IndexError, "feature b has id"),
            ({**good, "b": good["b"].float()}, TypeError, "the ids of feature b are Float"),
            ({**good, "b": "ids"}, TypeError, "feature b is a str"),
            ({n: v for n, v in good.items() if n != "b"}, ValueError, "lack the features"),
            (list(good.values())[1:], ValueError, "got 4 inputs for 5 features"),
            (sw.RaggedIds(good["a"]), TypeError, "got a RaggedIds"),
            ({**good, "b": sw.RaggedIds(good["b"].view(-1), lengths=torch.tensor([1]))}, ValueError, "add up to 1"),
            (
                {**good, "b": sw.RaggedIds(good["b"][0], lengths=torch.tensor([2**63 - 1] * 2 + [4]))},
                ValueError,
                "add up",
            ),
            ({**good, "b": sw.RaggedIds(good["b"][0], lengths=[2])}, TypeError, "the lengths of feature b are a list"),
            ({**good, "b": sw.RaggedIds(good["b"][0], weights=2.0)}, TypeError, "the weights of feature b are a float"),
            ({**good, "b": sw.RaggedIds(good["b"][0], lengths=torch.tensor(2))}, ValueError, "have shape"),
            ({**good, "b": good["b"].to_sparse()}, TypeError, "sparse or on meta"),
        ]
        for inputs, kind, text in wrong:
            with pytest.raises(kind, match=text):
                layer(inputs if rank == 1 else good)
        torch.testing.assert_close(layer(good), dense_vectors(tables, good))
        with pytest.raises(ValueError, match="input_table_map names table 'z'"):
            sw.DistributedEmbedding(configs(), input_table_map=["z"])
        with pytest.raises(ValueError, match="table b has no input"):
            sw.DistributedEmbedding(configs(), input_table_map=["a", "c", "d", "e"])

    run_ranks(2, body)


def test_d11_a_parameter_with_other_memory_is_an_error_on_ranks_without_its_rows_too():
    def body(rank):
        layer = sw.DistributedEmbedding([sw.TableConfig("user", 100, 8), sw.TableConfig("item", 50, 8)])
        ids = torch.tensor([1, 2, 3])
        layer([ids, ids])
        layer.tables["user"].data = layer.tables["user"].data.clone()
        with pytest.raises(ValueError, match="parameter of table user is not the layer's own any more"):
            layer([ids, ids])

    run_ranks(2, body, timeout=20)


def test_d11_too_few_tables_name_the_threshold():
    def body(rank):
        with pytest.raises(ValueError, match="Lower column_slice_threshold"):
            sw.DistributedEmbedding([sw.TableConfig("t", 30, 4)], column_slice_threshold=1000)

    run_ranks(2, body)


def test_another_dtype_is_refused_by_name():
    def body(rank):
        model = nn.Sequential(layer_of(dense_tables()))
        assert model.to("cpu") is model
        with pytest.raises(NotImplementedError, match=r"table a cannot go from torch\.float64"):
            model.half()
        torch.testing.assert_close(model(ids_of(rank)), dense_vectors(dense_tables(), ids_of(rank)))

    run_ranks(2, body)


def test_explain_names_tables_and_traffic():
    def body(rank):
        layer = layer_of(dense_tables())
        layer(ids_of(rank))
        text = layer.explain()
        for name in SHAPES:
            assert f"\n{name} " in text
        assert text.splitlines()[-1].startswith("5 tables")

    run_ranks(2, body)


@pytest.mark.parametrize(
    "part",
    [
        "torch_data_parallel",
        "replicas_are_broadcast",
        "pipeline_overlaps",
        "gradients_of_lookups_in_flight",
        "memory_is_shared_at_the_first_lookup",
    ],
)
def test_on_four_processes(part, tmp_path):
    expect_all_well("distributed_embedding_program.py", 4, part, tmp_path)


def test_checkpoints_on_four_two_three_and_one_processes(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n_ranks, part in ((4, "save_0"), (2, "load_0_save_1"), (3, "load_1_save_2"), (1, "load_2")):
            expect_all_well("distributed_embedding_program.py", n_ranks, part, tmp_path)
