"""Models sharded by a plan, judged by the same model unsharded."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.debug import CommDebugMode
from shardwise.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from shardwise.parallel.input_reshard import input_reshard
from shardwise.testing import run_ranks


class MLP(nn.Module):
    def __init__(self, hidden=10):
        super().__init__()
        self.up = nn.Linear(6, hidden)
        self.down = nn.Linear(hidden, 6)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


class Tied(nn.Module):
    """Word vectors that are the weights of the last layer, too."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList([MLP(), MLP()])
        self.norm = nn.LayerNorm(6)
        self.out = nn.Linear(6, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.out(self.norm(x))


def seeded(make, *args):
    """Made before the ranks start, which as threads share torch's generator; each works on a copy."""
    torch.manual_seed(3)
    return make(*args)


def assert_same_gradients(model, dense):
    for (name, parameter), (_, expected) in zip(model.named_parameters(), dense.named_parameters(), strict=True):
        grad = parameter.grad.full_tensor() if isinstance(parameter.grad, sw.DTensor) else parameter.grad
        torch.testing.assert_close(grad, expected.grad, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("n_ranks", [1, 3, 4])
@pytest.mark.parametrize("hidden", [12, 10, 2], ids=["even", "uneven", "empty pieces"])
def test_columns_then_rows_are_the_whole_layers(n_ranks, hidden):
    given, x = seeded(MLP, hidden), seeded(torch.rand, 5, 6)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (n_ranks,))
        dense = copy.deepcopy(given)
        model = parallelize_module(copy.deepcopy(dense), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        assert model.up.weight.placements == model.up.bias.placements == (Shard(0),)
        assert model.down.weight.placements == (Shard(1),) and model.down.bias.placements == (Replicate(),)
        with sw.CommDebugMode() as comm:
            y = model(x)
        assert comm.get_total_counts() == (n_ranks > 1)
        assert type(y) is torch.Tensor
        torch.testing.assert_close(y, dense(x))
        y.square().sum().backward()
        dense(x).square().sum().backward()
        assert_same_gradients(model, dense)

    run_ranks(n_ranks, body)


def test_a_plain_batch_norm_between_sharded_layers_trains():
    """Its weight and bias stay plain, and so must their gradients: optimizers step on both together."""
    given, x = (
        seeded(lambda: nn.Sequential(nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.Linear(6, 4))),
        seeded(torch.rand, 5, 4),
    )

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        dense = copy.deepcopy(given)
        plan = {"0": ColwiseParallel(use_local_output=False), "2": RowwiseParallel(use_local_output=False)}
        model = parallelize_module(copy.deepcopy(dense), mesh, plan)
        optimizers = [torch.optim.AdamW(each.parameters(), 0.01) for each in (model, dense)]
        for _ in range(2):
            model(x).square().sum().backward()
            dense(x).square().sum().backward()
            assert all(type(each.grad) is torch.Tensor for each in model[1].parameters())
            assert_same_gradients(model, dense)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(model[1].running_var, dense[1].running_var)

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("embedding", "columns"), [(RowwiseParallel(input_layouts=Replicate()), False), (ColwiseParallel(), True)]
)
def test_embeddings_are_sharded_by_rows_or_columns(embedding, columns):
    table = seeded(nn.Embedding, 10, 4)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        sharded = parallelize_module(copy.deepcopy(table), mesh, embedding)
        ids = torch.tensor([[1, 9], [0, 0]])
        assert sharded.weight.placements == (Shard(1 if columns else 0),)
        expected = (*table(ids).chunk(3, -1), table(ids)[..., :0])[rank] if columns else table(ids)
        torch.testing.assert_close(sharded(ids), expected)

    run_ranks(3, body)


def test_output_layouts_and_dtensor_outputs():
    dense, x = seeded(nn.Linear, 6, 8), seeded(torch.rand, 4, 6)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        gathered = ColwiseParallel(output_layouts=Replicate(), use_local_output=False)
        y = parallelize_module(copy.deepcopy(dense), mesh, gathered)(x)
        assert isinstance(y, sw.DTensor) and y.placements == (Replicate(),)
        torch.testing.assert_close(y.to_local(), dense(x))
        scattered = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0))
        y = parallelize_module(copy.deepcopy(dense), mesh, scattered)(x)
        torch.testing.assert_close(y, dense(x).chunk(2)[rank])

    run_ranks(2, body)


@pytest.mark.parametrize("features", [Shard(-1, sizes=[1, 0, 6, 3]), sw.BlockShard(-1, 4)], ids=str)
def test_features_are_divided_as_outputs_and_inputs_are(features):
    model, table, x = seeded(MLP), seeded(nn.Embedding, 5, 10), seeded(torch.rand, 4, 6)
    sizes = [1, 0, 6, 3] if features.sizes else [4, 4, 2, 0]

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        plan = {"up": ColwiseParallel(output_layouts=features), "down": RowwiseParallel(input_layouts=features)}
        sharded = parallelize_module(copy.deepcopy(model), mesh, plan)
        assert sharded.up.bias.to_local().shape == (sizes[rank],)
        assert sharded.up(x).shape == (4, sizes[rank]) and sharded.down.weight.to_local().shape == (6, sizes[rank])
        dense = copy.deepcopy(model)
        with CommDebugMode() as comm:
            loss = sharded(x).square().sum()
        assert comm.get_comm_counts() == {"all_reduce": 1}
        loss.backward()
        dense(x).square().sum().backward()
        assert_same_gradients(sharded, dense)
        words = parallelize_module(copy.deepcopy(table), mesh, ColwiseParallel(output_layouts=features))
        torch.testing.assert_close(words(torch.tensor([4, 0])), table(torch.tensor([4, 0])).split(sizes, -1)[rank])

    run_ranks(4, body)


def test_names_may_hold_wildcards_and_tied_parameters_stay_tied():
    given = seeded(Tied)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        dense = copy.deepcopy(given)
        plan = {
            "words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
            "blocks.*.up": ColwiseParallel(),
            "blocks.[01].down": RowwiseParallel(),
            "ou?": ColwiseParallel(output_layouts=Replicate()),
        }
        model = copy.deepcopy(dense)
        parallelize_module(model, mesh, plan)
        assert model.out.weight is model.words.weight
        assert [block.up.weight.placements for block in model.blocks] == [(Shard(0),)] * 2
        assert [block.down.weight.placements for block in model.blocks] == [(Shard(1),)] * 2
        ids = torch.tensor([[0, 3, 8], [1, 1, 2]])
        torch.testing.assert_close(model(ids), dense(ids))
        F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        F.cross_entropy(dense(ids).flatten(0, 1), ids.flatten()).backward()
        assert_same_gradients(model, dense)

    run_ranks(2, body)


def test_ties_that_a_plan_breaks_are_named_and_so_is_a_plan_that_is_not_there():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        with pytest.warns(UserWarning, match=r"words\.weight and out\.weight were one parameter"):
            parallelize_module(seeded(Tied), mesh, {"words": ColwiseParallel(), "out": ColwiseParallel()})
        with pytest.warns(UserWarning, match="No parallelize_plan is provided"):
            parallelize_module(MLP(), mesh)

    run_ranks(1, body)  # threads share what warnings are caught


def test_positions_are_sharded_around_a_norm():
    norm, x = seeded(nn.LayerNorm, 6), seeded(torch.rand, 3, 4, 6)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        sharded = parallelize_module(copy.deepcopy(norm), mesh, SequenceParallel())
        y = sharded(x.chunk(2, 1)[rank])
        assert y.placements == (Shard(1),) and sharded.weight.placements == (Replicate(),)
        torch.testing.assert_close(y.full_tensor(), norm(x))
        replicated = sw.distribute_tensor(x, mesh, [Replicate()])
        local = parallelize_module(copy.deepcopy(norm), mesh, SequenceParallel(use_local_output=True))
        torch.testing.assert_close(local(replicated), norm(x).chunk(2, 1)[rank])

    run_ranks(2, body)


def test_positions_that_are_sharded_unevenly_stay_where_they_are():
    norm, x = seeded(nn.LayerNorm, 6), seeded(torch.rand, 3, 4, 6)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        uneven = Shard(1, sizes=[3, 1])
        sharded = parallelize_module(copy.deepcopy(norm), mesh, SequenceParallel())
        given = sw.distribute_tensor(x, mesh, [uneven])
        with sw.CommDebugMode() as comm:
            y = sharded(given)
        assert y.placements == (uneven,) and comm.get_total_counts() == 0
        torch.testing.assert_close(y.full_tensor(), norm(x))

    run_ranks(2, body)


def test_classes_that_derive_from_a_style_define_torchs_methods():
    class Twice(ColwiseParallel):
        def _partition_linear_fn(self, name, module, device_mesh):
            super()._partition_linear_fn(name, module, device_mesh)
            self.seen = type(module)

        @staticmethod
        def _prepare_input_fn(input_layouts, desired_input_layouts, mod, inputs, device_mesh):
            return 2 * ColwiseParallel._prepare_input_fn(input_layouts, desired_input_layouts, mod, inputs, device_mesh)

        @staticmethod
        def _prepare_output_fn(output_layouts, use_local_output, mod, outputs, device_mesh):
            return outputs

    class Thrice(PrepareModuleInput):
        def _prepare_input_arg(self, value, mesh, input_layout, desired_layout):
            return 3 * super()._prepare_input_arg(value, mesh, input_layout, desired_layout)

    given, x = seeded(nn.Linear, 6, 5), seeded(torch.rand, 4, 6)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        style = Twice()
        layer = parallelize_module(copy.deepcopy(given), mesh, style)
        y = layer(x)
        assert style.seen is nn.Linear and y.placements == (Shard(1),)
        torch.testing.assert_close(y.full_tensor(), given(2 * x))
        thrice = Thrice(input_layouts=Replicate(), desired_input_layouts=Replicate())
        torch.testing.assert_close(parallelize_module(nn.Identity(), mesh, thrice)(x).full_tensor(), 3 * x)

    run_ranks(2, body)


def test_sharded_layers_inside_a_replicated_module_stay_sharded():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        block = nn.Sequential(nn.Linear(4, 400), nn.LayerNorm(400))
        with sw.CommDebugMode() as comm:
            parallelize_module(block, mesh, {"0": ColwiseParallel()})
            n_before = comm.get_total_counts()
            parallelize_module(block, mesh, SequenceParallel())
            assert comm.get_total_counts() == n_before + 1 == 2  # the norm's weight and bias, from the first rank
        assert block[0].weight.placements == (Shard(0),) and block[1].weight.placements == (Replicate(),)

    run_ranks(2, body)


def test_a_plain_piece_has_the_desired_sizes():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        style = PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Shard(0), use_local_output=True)
        module = parallelize_module(nn.Identity(), mesh, style)
        for placement in (Shard(0, sizes=[3, 1]), sw.BlockShard(0, 1)):
            given = sw.distribute_tensor(torch.arange(4), mesh, [placement])
            assert module(given).tolist() == [2 * rank, 2 * rank + 1]

    run_ranks(2, body)


class Sum(nn.Module):
    def forward(self, a, b, *, c=None, d=2):
        self.seen = (a, b, c)
        return (a + b, d) if c is None else (a + b + c, d)


def test_inputs_and_outputs_are_laid_out():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        piece, whole = torch.arange(6.0).view(2, 3) + rank, torch.ones(4, 3)
        prepare = PrepareModuleInput(
            input_layouts=(Shard(0), None),
            desired_input_layouts=(Replicate(), None),
            input_kwarg_layouts={"c": Replicate()},
            desired_input_kwarg_layouts={"c": Shard(1)},
        )
        other = sw.distribute_tensor(whole, mesh, [Replicate()])
        model = parallelize_module(Sum(), mesh, prepare)
        model(piece, other, c=whole)
        a, b, c = model.seen
        assert a.placements == (Replicate(),) and a.shape == (4, 3) and b is other
        assert c.placements == (Shard(1),)
        with pytest.raises(
            ValueError, match=r"module inputs and input_layouts should have same length! There are 1 inputs"
        ):
            model(piece)

        both = PrepareModuleInputOutput(
            input_layouts=(Shard(0), Replicate()),
            desired_input_layouts=(Shard(0), Shard(0)),
            use_local_input=True,
            output_layouts=(Shard(0), None),
            desired_output_layouts=(Replicate(), None),
        )
        model = parallelize_module(Sum(), mesh, both)
        total, two = model(piece, whole)
        assert [type(value) for value in model.seen[:2]] == [torch.Tensor] * 2 and model.seen[1].shape == (2, 3)
        assert total.shape == (4, 3) and two == 2
        torch.testing.assert_close(total[2 * rank : 2 * rank + 2], piece + 1)

        out = PrepareModuleOutput(output_layouts=Partial(), desired_output_layouts=Shard(0), use_local_output=False)
        result = parallelize_module(nn.Identity(), mesh, out)(whole)
        assert result.placements == (Shard(0),) and result.full_tensor().eq(2).all()

    run_ranks(2, body)


def test_styles_of_ones_own_and_which_ranks_values_are_taken():
    class Everywhere(ParallelStyle):
        def _apply(self, module, device_mesh):
            assert self.src_data_rank is None
            return sw.distribute_module(module, device_mesh)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = parallelize_module(MLP(), mesh, {"": Everywhere()}, src_data_rank=None)
        assert isinstance(model.up.weight, sw.DTensor)
        layer = nn.Linear(2, 2)
        nn.init.constant_(layer.weight, rank + 5.0)
        with sw.CommDebugMode() as comm:
            own = parallelize_module(copy.deepcopy(layer), mesh, ColwiseParallel(), src_data_rank=None)
        assert own.weight.to_local()[0, 0] == rank + 5 and comm.get_total_counts() == 0
        others = parallelize_module(copy.deepcopy(layer), mesh, ColwiseParallel(), src_data_rank=1)
        assert others.weight.to_local()[0, 0] == 6
        with mesh:
            assert isinstance(parallelize_module(layer, parallelize_plan=ColwiseParallel()).weight, sw.DTensor)

    run_ranks(2, body)


def test_what_cannot_be_sharded_is_an_error_before_anything_is_sharded():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        model = MLP()
        with pytest.raises(
            ValueError, match=r"the plan names 'layers\.0', and MLP has no such submodule. It has up, down"
        ):
            parallelize_module(model, mesh, {"up": ColwiseParallel(), "layers.0": RowwiseParallel()})
        with pytest.raises(TypeError, match=r"Expect a ParallelStyle, .* str found"):
            parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": "rows"})
        assert not isinstance(model.up.weight, sw.DTensor)
        with pytest.raises(
            NotImplementedError, match=r"RowwiseParallel shards nn\.Linear and nn\.Embedding, not LayerNorm"
        ):
            parallelize_module(nn.LayerNorm(4), mesh, RowwiseParallel())
        grid = sw.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        with pytest.raises(ValueError, match=r'ColwiseParallel shards over one mesh dim, .* has 2.*mesh\["tp"\]'):
            parallelize_module(model, grid, {"up": ColwiseParallel()})
        with pytest.raises(AssertionError, match="should have same length"):
            PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Shard(0), Shard(1)))
        layer = parallelize_module(nn.Linear(2, 2), mesh, ColwiseParallel())
        with pytest.raises(ValueError, match="Linear needs a tensor as its first positional input, got none"):
            layer(input=torch.ones(2, 2))

    run_ranks(2, body)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("n_classes", [8, 7, 3], ids=["even", "uneven", "empty pieces"])
def test_labels_are_plain_where_logits_are_sharded_by_class(reduction, n_classes):
    values, weight = seeded(torch.rand, 6, n_classes), seeded(torch.rand, n_classes)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        dense, labels = values.clone().requires_grad_(), torch.arange(6) % n_classes
        logits = sw.distribute_tensor(dense.detach(), mesh, [Shard(1)]).requires_grad_()
        with pytest.raises(Exception, match=r"(?s)plain|DTensor"):
            F.cross_entropy(logits, labels)
        with loss_parallel(), sw.CommDebugMode() as comm:
            loss = F.cross_entropy(logits, labels, weight, reduction=reduction, ignore_index=2)
            loss.sum().backward()
        expected = F.cross_entropy(dense, labels, weight, reduction=reduction, ignore_index=2)
        expected.sum().backward()
        torch.testing.assert_close(loss.full_tensor(), expected)
        torch.testing.assert_close(logits.grad.full_tensor(), dense.grad)
        assert "all_gather" not in comm.get_comm_counts()

    run_ranks(4, body)


def expect_dense(loss, logits, dense, labels):
    """`loss` and the gradient of `logits` are those of `dense`."""
    loss.backward()
    expected = F.cross_entropy(dense, labels)
    expected.backward()
    torch.testing.assert_close(loss.full_tensor(), expected)
    torch.testing.assert_close(logits.grad.full_tensor(), dense.grad)


@pytest.mark.parametrize("n_rows", [6, 5, 1], ids=["even", "uneven", "empty pieces"])
def test_plain_labels_are_this_ranks_part_of_the_batch(n_rows):
    values, labels = seeded(torch.rand, n_rows, 5, 3), seeded(torch.randint, 5, (n_rows, 3))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dense = values.clone().requires_grad_()
        logits = sw.distribute_tensor(values, mesh, [Shard(0), Shard(1)]).requires_grad_()
        own = (*labels.chunk(2), labels[:0])[rank // 2]
        with loss_parallel():
            loss = F.cross_entropy(logits, own)
            with pytest.raises(
                ValueError, match=r"\[loss_parallel\] plain labels of shape \[7, 3\] do not fit .* \[., ., 3\]"
            ):
                F.cross_entropy(logits, torch.zeros(7, 3, dtype=torch.int64))
        expect_dense(loss, logits, dense, labels)

    run_ranks(4, body)


@pytest.mark.parametrize("n_rows", [6, 5], ids=["even", "uneven"])
def test_plain_probabilities_are_of_all_classes_and_this_ranks_part_of_the_batch(n_rows):
    values, labels = seeded(torch.rand, n_rows, 5), seeded(torch.rand, n_rows, 5).softmax(1)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        dense = values.clone().requires_grad_()
        logits = sw.distribute_tensor(values, mesh, [Shard(0), Shard(1)]).requires_grad_()
        own = labels.chunk(2)[rank // 2]
        with loss_parallel():
            loss = F.cross_entropy(logits, own)
            with pytest.raises(ValueError, match=r"\[loss_parallel\] plain labels of shape \[., 2\] do not fit"):
                F.cross_entropy(logits, own[:, :2])
        expect_dense(loss, logits, dense, labels)

    run_ranks(4, body)


def test_plain_labels_of_ranks_outside_the_mesh_are_ignored():
    dense, labels = seeded(torch.rand, 6, 5), seeded(torch.randint, 5, (6,))

    def body(rank):
        logits = sw.distribute_tensor(dense, sw.DeviceMesh("cpu", [0]), [Shard(0)])
        with loss_parallel():
            loss = F.cross_entropy(logits, labels)
        assert loss.shape == ()
        if rank == 0:
            torch.testing.assert_close(loss.to_local(), F.cross_entropy(dense, labels))

    run_ranks(2, body)


def test_plain_labels_are_replicas_beside_logits_that_are_partial():
    x, weight, labels = seeded(torch.rand, 6, 4), seeded(torch.rand, 4, 5), seeded(torch.randint, 5, (6,))

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        logits = sw.distribute_tensor(x, mesh, [Shard(1)]) @ sw.distribute_tensor(weight, mesh, [Shard(0)])
        assert logits.placements[0].is_partial()
        with loss_parallel():
            loss = F.cross_entropy(logits, labels)
        torch.testing.assert_close(loss.full_tensor(), F.cross_entropy(x @ weight, labels))

    run_ranks(2, body)


@pytest.mark.parametrize("is_plain", [True, False])
def test_saved_inputs_are_shards_until_the_backward(is_plain):
    layer = seeded(nn.Linear, 6, 4)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        x = torch.arange(18.0).view(3, 6) / 18
        ours = copy.deepcopy(layer)
        parallelize_module(ours, mesh, ColwiseParallel(output_layouts=Replicate(), use_local_output=is_plain))
        model = nn.Sequential(ours, nn.Tanh())
        dense = nn.Sequential(layer, nn.Tanh())
        assert input_reshard(model, mesh) is model and not model._forward_hooks
        input_reshard(model, mesh, input_reshard_dim=0)
        y = model(x)
        assert isinstance(y, sw.DTensor) != is_plain
        with CommDebugMode() as of_reading:
            result = y.grad_fn._saved_result
        assert of_reading.get_total_counts() == 1 and result.shape == (3, 4)
        (y**2).sum().backward()
        expected = torch.autograd.grad((dense(x) ** 2).sum(), list(dense.parameters()))
        for parameter, grad in zip(ours.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad.full_tensor(), grad)
        with pytest.raises(RuntimeError):
            model(torch.ones(3, 7))
        with CommDebugMode() as after_an_error:
            assert torch.ones(2, requires_grad=True).exp().grad_fn._saved_result.shape == (2,)
        assert after_an_error.get_total_counts() == 0

    run_ranks(2, body)
