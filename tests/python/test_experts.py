"""Tokens go to the ranks of their experts and come back: the dense results, of models of transformers too, and no expert is sent."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard
from shardwise.parallel import ExpertParallel, combine_tokens, dispatch_tokens, parallelize_module
from shardwise.testing import run_ranks


def dense(tokens, ids, weights, matrices):
    """Rows by expert, their ends, and what comes back to the tokens."""
    n_choices = ids.shape[1]
    order = ids.flatten().argsort(stable=True)
    ends = ids.flatten().bincount(minlength=len(matrices)).cumsum(0, dtype=torch.int32)
    rows = tokens[order // n_choices]
    parts = [rows[begin:end] @ m for m, begin, end in zip(matrices, [0, *ends.tolist()], ends.tolist(), strict=False)]
    outputs = torch.cat(parts).tanh() * weights.flatten()[order, None].to(tokens.dtype)
    return (
        rows,
        ends,
        torch.zeros(len(tokens), outputs.shape[1], dtype=tokens.dtype).index_add(0, order // n_choices, outputs),
    )


def problem(n_tokens, n_experts, n_choices, hot, dtype):
    random = torch.Generator().manual_seed(0)
    ids = torch.rand(n_tokens, n_experts, generator=random).argsort(1)[:, :n_choices].contiguous()
    if hot is not None:
        ids[:] = hot
    tokens = torch.randn(n_tokens, 8, generator=random).to(dtype)
    matrices = torch.randn(n_experts, 8, 16, generator=random).to(dtype)
    grads = torch.randn(n_tokens, 16, generator=random).to(dtype)
    return tokens, ids, torch.rand(n_tokens, n_choices, generator=random), matrices, grads


def part(tensor, mesh, placements):
    return sw.distribute_tensor(tensor, mesh, placements, src_data_rank=None).to_local()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "sharded", "replicated", "partial"])
@pytest.mark.parametrize("n_experts", [8, 7, 3])
def test_dispatched_and_combined_tokens_are_dense(n_experts, kind, dtype):
    close = {"rtol": 1e-5, "atol": 4e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 1e-1}

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for sizes in ([2, 2, 2, 2], [5, 0, 3, 1], [0, 0, 0, 4], [0, 0, 0, 0]):
            for n_choices, hot in ((2, None), (1, 0), (3, n_experts - 1)):
                tokens, ids, weights, matrices, grads = problem(sum(sizes), n_experts, n_choices, hot, dtype)
                for tensor in (tokens, weights, matrices):
                    tensor.requires_grad_()
                rows, ends, wanted = dense(tokens, ids, weights, matrices)
                wanted.backward(grads)
                by_row = [Shard(0, sizes=sizes)]
                layout = {"replicated": [Replicate()], "partial": [Partial()]}.get(kind, by_row)
                given = [sw.distribute_tensor(each.detach(), mesh, layout) for each in (tokens, weights)]
                chosen = sw.distribute_tensor(ids, mesh, by_row)
                if kind == "plain":
                    given, chosen = [each.to_local() for each in given], chosen.to_local()
                for each in given:
                    each.requires_grad_()
                experts = sw.distribute_tensor(matrices.detach(), mesh, [Shard(0)]).requires_grad_()
                routed = dispatch_tokens(given[0], chosen, given[1], experts=experts)
                assert torch.equal(routed.rows.full_tensor(), rows)
                assert torch.equal(routed.offs.to_local(), ends)
                assert torch.equal(routed.expert_ids.full_tensor(), ids.flatten().sort()[0])
                with sw.CommDebugMode() as comm:
                    products = F.grouped_mm(routed.rows, experts, offs=routed.offs)
                assert comm.get_total_counts() == 0
                outputs = products.tanh() * routed.weights.unsqueeze(-1).to(dtype)
                combined = combine_tokens(outputs, routed)
                if kind == "plain":
                    combined.backward(part(grads, mesh, by_row))
                    results = [(combined, wanted.detach()), (given[0].grad, tokens.grad), (given[1].grad, weights.grad)]
                    results = [(ours, part(theirs, mesh, by_row)) for ours, theirs in results]
                else:
                    assert combined.placements == (given[0].placements if kind == "sharded" else (Replicate(),))
                    combined.backward(sw.distribute_tensor(grads, mesh, [Replicate()]))
                    results = [
                        (combined.full_tensor(), wanted),
                        (given[0].grad.full_tensor(), tokens.grad),
                        (given[1].grad.full_tensor(), weights.grad),
                    ]
                assert experts.grad.placements == experts.placements
                for ours, theirs in [*results, (experts.grad.full_tensor(), matrices.grad)]:
                    torch.testing.assert_close(ours, theirs, **close)

    run_ranks(4, body, timeout=120)


@pytest.mark.parametrize("names", [("dp", "ep"), ("ep", "dp")])
@pytest.mark.parametrize(
    "layout",
    [[Shard(0), Shard(0)], [Shard(0, sizes=[7, 2]), Replicate()], [Replicate(), Shard(0)], [Partial(), Shard(1)]],
    ids=str,
)
def test_tokens_are_sharded_over_other_mesh_dims_too(layout, names):
    tokens, ids, weights, matrices, grads = problem(9, 5, 2, None, torch.float32)
    for tensor in (tokens, weights, matrices):
        tensor.requires_grad_()
    _, _, wanted = dense(tokens, ids, weights, matrices)
    wanted.backward(grads)

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=names)
        given, chosen, factors = (
            sw.distribute_tensor(each.detach(), mesh, layout) for each in (tokens, ids.float(), weights)
        )
        given.requires_grad_()
        factors.requires_grad_()
        experts = sw.distribute_tensor(matrices.detach(), mesh["ep"], [Shard(0)]).requires_grad_()
        routed = dispatch_tokens(given, chosen.long(), factors, experts=experts)
        products = F.grouped_mm(routed.rows, experts, offs=routed.offs)
        combined = combine_tokens(products.tanh() * routed.weights.unsqueeze(-1), routed)
        torch.testing.assert_close(combined.full_tensor(), wanted.detach())
        combined.backward(sw.distribute_tensor(grads, mesh, [Replicate()] * 2))
        torch.testing.assert_close(given.grad.full_tensor(), tokens.grad)
        torch.testing.assert_close(factors.grad.full_tensor(), weights.grad)
        splits = layout[names.index("dp")] != Replicate()
        whole = DTensor.from_local(
            experts.grad.full_tensor(), mesh["dp"], [Partial() if splits else Replicate()]
        ).full_tensor()
        torch.testing.assert_close(whole, matrices.grad)

    run_ranks(4, body, timeout=60)


def test_an_expert_that_does_not_exist_is_an_error_over_all_mesh_dims():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
        tokens, ids = (
            sw.distribute_tensor(each, mesh, [Shard(0)] * 2) for each in (torch.ones(4, 3), torch.tensor([0, 1, 2, 4]))
        )
        experts = sw.ones(4, 3, 3, device_mesh=mesh["ep"], placements=[Shard(0)])
        with pytest.raises(IndexError, match="expert 4 does not exist: rank 3 asks for it"):
            dispatch_tokens(tokens, ids, experts=experts)
        line = sw.init_device_mesh("cpu", (4,))
        elsewhere = [
            sw.distribute_tensor(each, line, [Shard(0)]) for each in (torch.ones(4, 3), torch.tensor([0, 1, 2, 4]))
        ]
        with pytest.raises(RuntimeError, match="different meshes"):
            dispatch_tokens(*elsewhere, experts=experts)

    run_ranks(4, body, timeout=60)


def test_one_rank_may_have_all_experts():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (1,))
        tokens, ids, weights, matrices, _ = problem(5, 3, 2, None, torch.float32)
        _, _, wanted = dense(tokens, ids, weights, matrices)
        experts = sw.distribute_tensor(matrices, mesh, [Shard(0)])
        with sw.CommDebugMode() as comm:
            routed = dispatch_tokens(tokens, ids, weights, experts=experts)
            products = F.grouped_mm(routed.rows, experts, offs=routed.offs)
            combined = combine_tokens(products.tanh() * routed.weights.unsqueeze(-1), routed)
        assert comm.get_total_counts() == 0
        torch.testing.assert_close(combined, wanted)

    run_ranks(1, body)


def test_a_token_is_sent_once_to_each_rank_that_wants_it():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        experts = sw.zeros(4, 8, 3, device_mesh=mesh, placements=[Shard(0)])
        ids = torch.tensor(
            [[0, 1], [2, 3], [1, 2]]
        )  # two of each rank's tokens go to both ranks' experts or to the other's
        with sw.CommDebugMode() as comm:
            routed = dispatch_tokens(torch.ones(3, 8), ids, experts=experts)
        token, slot = 8 * 4, 4
        numbers = 8 * (4 + 4 + 2)  # what each rank tells the other, int64
        assert comm.bytes_received() == numbers + 2 * token + 3 * slot
        with sw.CommDebugMode() as comm:
            combine_tokens(F.grouped_mm(routed.rows, experts, offs=routed.offs), routed)
        assert comm.bytes_received() == 2 * 3 * 4

    run_ranks(2, body, timeout=60)


def test_gradients_reach_ranks_whose_experts_have_no_rows():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        tokens = torch.ones(2, 3, requires_grad=True)
        experts = sw.ones(4, 3, 3, device_mesh=mesh, placements=[Shard(0)])
        routed = dispatch_tokens(tokens, torch.zeros(2, 1, dtype=torch.long), experts=experts)
        rows = routed.rows.to_local()
        outputs = rows * 2 if len(rows) else torch.zeros(0, 3)  # ranks without rows do not depend on them
        combine_tokens(outputs, routed).sum().backward()
        assert tokens.grad.eq(2).all()

    run_ranks(4, body, timeout=60)


SMALL = {
    "vocab_size": 37, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def made(name, implementation, n_experts, dtype):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, num_local_experts=n_experts, num_experts_per_tok=2)
    if name == "GptOss":
        config.layer_types = ["full_attention"] * 2
    config._experts_implementation = implementation
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():
        if parameter.dim() > 1 or parameter.eq(0).all():
            nn.init.normal_(parameter, std=0.2)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
@pytest.mark.parametrize("name", ["Mixtral", "GptOss"])
def test_models_of_transformers_are_dense(name, implementation, dtype):
    close = 1e-3 if dtype == torch.float32 else 8e-2
    ids = torch.randint(3, 37, (5, 6), generator=torch.Generator().manual_seed(1))
    models = {n: made(name, implementation, n, dtype) for n in (8, 7)}

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (4,))
        for n_experts, whole in models.items():
            reference = copy.deepcopy(whole)
            loss = reference(ids, labels=ids).loss
            loss.backward()
            model = parallelize_module(copy.deepcopy(whole), mesh, {"model.layers.*.mlp.experts": ExpertParallel()})
            own = ids.tensor_split([2, 3, 4])[rank]
            with sw.CommDebugMode() as comm:
                share = model(own, labels=own).loss * len(own) / len(ids)
                share.backward()
            # Per layer: counts, tokens, and back; the two ways of the gradients. All of it is less than one layer's experts.
            assert comm.get_total_counts() == 2 * 5
            experts = list(whole.model.layers[0].mlp.experts.parameters())
            assert comm.bytes_received() < sum(each.numel() * each.itemsize for each in experts)
            assert model.model.layers[0].mlp.experts.num_experts == n_experts
            total = DTensor.from_local(share.detach(), mesh, [Partial()]).full_tensor()
            torch.testing.assert_close(total, loss.detach(), rtol=close, atol=close)
            for (path, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
                if isinstance(ours, DTensor):
                    assert ours.grad.placements == ours.placements
                    grad = ours.grad.full_tensor()
                else:
                    grad = DTensor.from_local(ours.grad, mesh, [Partial()]).full_tensor()
                distance = (grad - theirs.grad).abs().max() / theirs.grad.abs().max().clamp(min=1e-3)
                assert distance < close, (path, distance)

    run_ranks(4, body, timeout=120)


class Experts(nn.Module):
    def __init__(self, n_experts):
        super().__init__()
        self.num_experts = n_experts
        self.weight = nn.Parameter(torch.linspace(-1, 1, n_experts * 8 * 8).sin().view(n_experts, 8, 8))

    def forward(self, x, num_tokens_per_expert):
        assert len(self.weight) == self.num_experts == len(num_tokens_per_expert)
        return F.grouped_mm(x, self.weight, offs=num_tokens_per_expert.cumsum(0, dtype=torch.int32))


@pytest.mark.parametrize("layout", [Shard(0), Replicate()])
def test_rows_ordered_by_expert_come_back_in_their_order(layout):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
        whole = Experts(5)
        experts = parallelize_module(copy.deepcopy(whole), mesh["ep"], ExpertParallel(input_layouts=layout))
        assert len(experts.weight.to_local()) == [3, 2][mesh.get_local_rank("ep")]
        counts = torch.tensor([3, 0, 2, 0, 1] if layout.is_replicate() or rank % 2 else [0, 0, 0, 0, 0])
        x = torch.linspace(0, 1, int(counts.sum()) * 8).view(-1, 8).requires_grad_()
        reference = x.detach().clone().requires_grad_()
        output, wanted = experts(x, counts), whole(reference, counts)
        torch.testing.assert_close(output, wanted)
        output.square().sum().backward()
        wanted.square().sum().backward()
        torch.testing.assert_close(x.grad, reference.grad)
        if layout.is_replicate():
            torch.testing.assert_close(experts.weight.grad.full_tensor(), whole.weight.grad)

    run_ranks(4, body, timeout=60)


def test_parameters_are_whole_again_after_a_call_that_fails():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))

        class Failing(Experts):
            def forward(self, x, num_tokens_per_expert):
                raise RuntimeError("no")

        experts = parallelize_module(Failing(4), mesh, ExpertParallel())
        with pytest.raises(RuntimeError, match="no"):
            experts(torch.ones(1, 8), torch.tensor([1, 0, 0, 0]))
        assert isinstance(experts.weight, DTensor)
        assert experts.num_experts == 4

    run_ranks(2, body, timeout=60)


def test_parameters_are_whole_in_the_call_after_one_that_was_interrupted():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))

        class Interrupted(Experts):
            is_interrupted = True

            def forward(self, x, num_tokens_per_expert):
                if self.is_interrupted:
                    raise KeyboardInterrupt  # torch then calls no forward hook
                return super().forward(x, num_tokens_per_expert)

        experts = parallelize_module(Interrupted(5), mesh, ExpertParallel())
        x, counts = torch.linspace(0, 1, 24).view(3, 8), torch.tensor([1, 0, 1, 0, 1])
        with pytest.raises(KeyboardInterrupt):
            experts(x, counts)
        experts.is_interrupted = False
        torch.testing.assert_close(experts(x, counts), Experts(5)(x, counts))
        assert isinstance(experts.weight, DTensor)
        assert experts.num_experts == 5

    run_ranks(2, body, timeout=60)


@pytest.mark.parametrize("counts", [[1, 1, 0, 0], [3, -1, 0, 0], [2, 0]], ids=["sum", "negative", "too few"])
def test_counts_that_fit_on_one_rank_alone_are_an_error_on_both(counts):
    def body(rank):
        experts = parallelize_module(Experts(4), sw.init_device_mesh("cpu", (2,)), ExpertParallel())
        fitting = torch.tensor([1, 1, 1, 0])
        text = r"\[ExpertParallel\] num_tokens_per_expert of shape" if rank else "shapes do not fit on rank 1"
        with pytest.raises(ValueError, match=text):
            experts(torch.ones(3, 8), torch.tensor(counts) if rank else fitting)
        assert experts(torch.ones(3, 8), fitting).shape == (3, 8)

    run_ranks(2, body, timeout=60)


def test_tokens_that_need_gradients_on_one_rank_alone_are_an_error():
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        experts = sw.ones(4, 3, 3, device_mesh=mesh, placements=[Shard(0)])
        tokens, ids = torch.ones(2, 3, requires_grad=rank == 1), torch.zeros(2, 1, dtype=torch.long)
        with pytest.raises(ValueError, match=r"requires_grad .*differ between ranks 0 and 1"):
            dispatch_tokens(tokens, ids, experts=experts)
        with pytest.raises(ValueError, match=r"requires_grad .*differ between ranks 0 and 1"):
            dispatch_tokens(tokens.detach(), ids, torch.ones(2, 1, requires_grad=rank == 0), experts=experts)
        with torch.no_grad():
            assert dispatch_tokens(tokens, ids, experts=experts).rows.shape == (4, 3)

    run_ranks(2, body, timeout=60)


# rows of rank 1, words of the error
MISFITS = [
    (
        lambda rows: torch.ones(9, 3),
        r"rows of shape \[9, 3\] do not match routed.rows of rank 1, which has 4 rows",
    ),
    (lambda rows: rows[0], r"rows of 1 dims do not match routed.rows of rank 1"),
    (lambda rows: rows[:, :2], r"rows are Float of 3 features on rank 0 and Float of 2 on rank 1"),
    (lambda rows: rows.bfloat16(), r"rows are Float of 3 features on rank 0 and BFloat16 of 3 on rank 1"),
]


@pytest.mark.parametrize(("rows_of_one", "words"), MISFITS)
def test_rows_that_do_not_fit_on_one_rank_are_an_error_on_both(rows_of_one, words):
    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        experts = sw.ones(4, 3, 3, device_mesh=mesh, placements=[Shard(0)])
        routed = dispatch_tokens(torch.ones(2, 3), torch.tensor([[0, 2], [1, 3]]), experts=experts)
        rows = routed.rows.to_local()
        with pytest.raises(ValueError, match=words):
            combine_tokens(rows_of_one(rows) if rank else rows, routed)
        assert combine_tokens(rows, routed).eq(2).all()

    run_ranks(2, body, timeout=20)


def test_gradients_come_from_rows_alone():
    """A rank without rows depends on nothing that takes a gradient, and takes part in the backward."""

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (3,))
        experts = sw.ones(3, 3, 3, device_mesh=mesh, placements=[Shard(0)])
        routed = dispatch_tokens(torch.ones(2, 3), torch.zeros(2, 1, dtype=torch.long), experts=experts)
        rows = routed.rows.to_local()
        weight = torch.ones(3, requires_grad=True)
        combined = combine_tokens(rows * weight if len(rows) else torch.zeros(0, 3), routed)
        combined.sum().backward()
        assert weight.grad is None if rank else weight.grad.eq(6).all()

    run_ranks(3, body, timeout=20)


class Doubled(nn.Module):
    """Some of its experts are in a submodule."""

    def __init__(self, n_experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_experts, 4, 4))
        self.second = nn.Module()
        self.second.weight = nn.Parameter(torch.randn(n_experts, 4, 4))

    def forward(self, x, num_tokens_per_expert):
        offs = num_tokens_per_expert.cumsum(0, dtype=torch.int32)
        return F.grouped_mm(F.grouped_mm(x, self.weight, offs=offs), self.second.weight, offs=offs)


@pytest.mark.parametrize("assign", [False, True])
def test_plain_values_are_loaded(assign):
    torch.manual_seed(0)
    given, x, counts = Doubled(3), torch.randn(4, 4), torch.tensor([1, 0, 3])
    expected = given(x, counts).detach()
    plain = {name: value.detach().clone() for name, value in given.state_dict().items()}

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        with torch.device("meta" if assign else "cpu"):
            model = Doubled(3)
        parallelize_module(model, mesh, ExpertParallel(input_layouts=Replicate()))
        placements = model.weight.placements
        model.load_state_dict(plain, assign=assign)
        for name, parameter in model.named_parameters():
            assert parameter.placements == placements
            assert torch.equal(parameter.full_tensor(), plain[name])
        torch.testing.assert_close(model(x, counts), expected)

    run_ranks(2, body)


def test_tokens_may_be_integers_whose_weights_are_trained():
    def body(rank):
        experts = sw.ones(4, 3, 3, device_mesh=sw.init_device_mesh("cpu", (2,)), placements=[Shard(0)])
        tokens, ids = torch.arange(6).view(2, 3), torch.tensor([[0, 3], [2, 1]])
        weights = torch.rand(2, 2, requires_grad=True)
        routed = dispatch_tokens(tokens, ids, weights, experts=experts)
        assert not routed.rows.requires_grad and routed.rows.dtype == torch.long
        (routed.weights * 3).sum().backward()
        assert torch.equal(weights.grad, torch.full((2, 2), 3.0))

    run_ranks(2, body, timeout=60)


class CountsThemselves(Experts):
    """The number of experts follows from their parameters."""

    def __init__(self, n_experts):
        nn.Module.__init__(self)
        self.weight = Experts(n_experts).weight

    @property
    def num_experts(self):
        return len(self.weight)


class Constant(CountsThemselves):
    num_experts = property(lambda self: 5)


def test_the_number_of_experts_may_be_a_property():
    x, counts = torch.linspace(0, 1, 24).view(3, 8), torch.tensor([1, 0, 1, 0, 1])

    def body(rank):
        mesh = sw.init_device_mesh("cpu", (2,))
        experts = parallelize_module(CountsThemselves(5), mesh, ExpertParallel())
        torch.testing.assert_close(experts(x, counts), CountsThemselves(5)(x, counts))
        constant = parallelize_module(Constant(5), mesh, ExpertParallel())
        with pytest.raises(AttributeError):
            constant(x, counts)
        assert isinstance(constant.weight, DTensor)

    run_ranks(2, body, timeout=60)
