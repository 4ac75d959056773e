"""Seeing and steering what operators do: explain(), register_rule(), communication_policy()."""

import io
import sys
import threading
import warnings

import pytest
import torch

import shardwise as sw
from shardwise import Partial, Replicate, Shard
from shardwise.testing import run_ranks


def on_ranks(check) -> None:
    run_ranks(4, lambda rank: check(sw.init_device_mesh("cpu", (4,))))


def test_explain_tells_rule_layouts_and_bytes(capsys):
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
        w = sw.distribute_tensor(torch.ones(8, 2), mesh, [Shard(0)])
        assert torch.equal((x @ w).full_tensor(), torch.full((8, 2), 8.0))
        return sw.explain(lambda: torch.relu(torch.relu(x @ w)))

    record, relu, again = run_ranks(4, lambda rank: check(sw.init_device_mesh("cpu", (4,))))[0]
    assert record.op == "shardwise::matmul" and relu.op == "aten::relu" and relu.rule == "pointwise"
    assert record.given == ["[Shard(0)]", "[Shard(0)]"] and record.used == ["[Shard(1)]", "[Shard(0)]"]
    assert record.results == ["[Partial(sum)]"] and record.bytes_received == 6 * 2 * 4
    assert relu.given == ["[Partial(sum)]"] and relu.used == relu.results != relu.given and relu.bytes_received > 0
    assert again.used == again.given
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("operator", "as given", "aten::relu"))


def test_explain_prints_plain_lines_to_output_that_takes_no_others(monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)

    def body(rank):
        a = sw.ones(2, 8, device_mesh=sw.init_device_mesh("cpu", (1,)), placements=[Shard(1)])
        sw.explain(lambda: a @ a.t())

    run_ranks(1, body)
    written.flush()
    assert ".mk,.kn->.mn" in written.buffer.getvalue().decode("ascii")


def test_explain_names_what_is_replicated():
    def check(mesh):
        x = sw.distribute_tensor(torch.eye(6), mesh, [Shard(0)])
        (record,) = sw.explain(torch.ops.aten.geqrf, x)
        assert record.rule == "none: replicated" and record.used == ["[Replicate()]"] and record.bytes_received > 0

    on_ranks(check)


def test_hidden_communication_can_be_forbidden():
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
        y = sw.distribute_tensor(torch.ones(8, 8), mesh, [Shard(1)])
        with sw.communication_policy("error"):
            assert (x + x).placements == (Shard(0),)
            with pytest.raises(ValueError, match=r"\[aten::add.Tensor\] moves .* on its own"):
                x + y
            with sw.communication_policy("allow"):
                assert torch.equal((x + y).full_tensor(), torch.full((8, 8), 2.0))
            moved = y.redistribute(placements=[Shard(0)])
            assert torch.equal((x + moved).full_tensor(), torch.full((8, 8), 2.0))
            assert sw.distribute_tensor(torch.ones(4), mesh, [Replicate()]).sum().item() == 4
            with pytest.raises(ValueError, match="moves"):
                x.sum().item()

    on_ranks(check)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.flip(0),
        lambda x: x.topk(2, 0),
        lambda x: x.cumsum(0),
        lambda x: x.roll(3, 0),
        lambda x: x.argmax(0),
        lambda x: x.var(0),
        lambda x: x.softmax(0),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
    ],
)
def test_kernels_of_their_own_are_forbidden_and_named_too(call):
    def check(mesh):
        x = sw.distribute_tensor(torch.rand(64, 64), mesh, [Shard(0)])
        with sw.communication_policy("error"), pytest.raises(ValueError, match=r"::.* moves .* on its own"):
            call(x)
        with sw.CommDebugMode() as comm:
            call(x)
        assert comm.events and all(event.op.startswith(("aten::", "shardwise::")) for event in comm.events)

    on_ranks(check)


def test_halos_and_selected_rows_are_communication_too():
    def check(mesh):
        image = sw.distribute_tensor(torch.rand(1, 1, 8, 8), mesh, [Shard(2)])
        kernel = sw.distribute_tensor(torch.rand(1, 1, 3, 3), mesh, [sw.Replicate()])
        with sw.CommDebugMode() as comm:
            torch.nn.functional.conv2d(image, kernel, padding=1)
        assert comm.events
        refused = pytest.raises(ValueError, match=r"convolution.* on its own")
        with sw.CommDebugMode() as comm, sw.communication_policy("error"), refused:
            torch.nn.functional.conv2d(image, kernel, padding=1)
        assert not comm.events

    on_ranks(check)


def test_a_scope_belongs_to_the_threads_that_entered_it():
    shared = sw.communication_policy("error")
    with pytest.raises(ValueError, match="without __enter__"):
        shared.__exit__(None, None, None)
    turns = threading.Barrier(2)

    def on_rank(rank):
        x = sw.distribute_tensor(torch.rand(8, 8), sw.init_device_mesh("cpu", (2,)), [Shard(0)])
        with shared:
            turns.wait()
            if rank == 1:
                turns.wait()  # the other rank has left by now
                with pytest.raises(ValueError, match="on its own"):
                    x.flip(0)
        if rank == 0:
            turns.wait()

    run_ranks(2, on_rank)


def test_hidden_communication_can_be_warned_of():
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
        y = sw.distribute_tensor(torch.ones(8, 8), mesh, [Shard(1)])
        with sw.communication_policy("warn"):
            x + y

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        on_ranks(check)
    assert any("aten::add.Tensor] moves" in str(warning.message) for warning in seen)


def test_an_unknown_policy_is_an_error():
    with pytest.raises(ValueError, match='"never" is none of "allow", "warn", "error"'):
        sw.communication_policy("never")


library = torch.library.Library("shardwise_test", "DEF")
library.define("scaled_mm(Tensor a, Tensor b, float scale) -> Tensor")
library.impl("scaled_mm", lambda a, b, scale: (a @ b) * scale, "CPU")
library.define("products(Tensor a, Tensor b) -> Tensor")
library.impl("products", lambda a, b: a @ b, "CPU")
library.define("twice(Tensor a) -> Tensor")
library.impl("twice", lambda a: a * 2, "CPU")
library.impl("twice", lambda a: torch.empty_like(a), "Meta")
library.define("gate(Tensor x, Tensor y, Tensor z, float slope) -> Tensor")
library.impl("gate", lambda x, y, z, slope: x * (slope * y).sigmoid() + z, "CPU")
library.define("halved(Tensor a) -> Tensor")
library.impl("halved", lambda a: a / 2, "CPU")
library.impl("halved", lambda a: torch.empty_like(a), "Meta")


@torch.library.custom_op("shardwise_test::tripled", mutates_args=())
def tripled(a: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(a.numpy() * 3)


def test_operators_of_other_libraries_are_gathered_without_a_rule():
    def check(mesh):
        dense = torch.arange(12.0).view(4, 3)
        x = sw.distribute_tensor(dense, mesh, [Shard(0)])
        result = torch.ops.shardwise_test.twice(x)
        assert isinstance(result, sw.DTensor) and torch.equal(result.full_tensor(), dense * 2)

    on_ranks(check)


def test_a_rule_in_notation_keeps_a_users_operator_sharded():
    sw.register_rule("shardwise_test::scaled_mm", "ij,jk->ik", linear="each")
    with pytest.raises(ValueError, match="has a rule already"):
        sw.register_rule("shardwise_test::scaled_mm", "ij,jk->ik")

    def check(mesh):
        a, b = torch.arange(15.0).view(5, 3), torch.arange(12.0).view(3, 4)
        expected = (a @ b) * 0.5
        for pa, pb, result in (
            (Shard(0, sizes=[2, 0, 3, 0]), Replicate(), Shard(0, sizes=[2, 0, 3, 0])),
            (Replicate(), Shard(1), Shard(1)),
            (Shard(1), Shard(0), Partial()),
        ):
            left, right = sw.distribute_tensor(a, mesh, [pa]), sw.distribute_tensor(b, mesh, [pb])
            with sw.communication_policy("error"):
                out = torch.ops.shardwise_test.scaled_mm(left, right, 0.5)
            assert out.placements == (result,) and torch.equal(out.full_tensor(), expected)

    on_ranks(check)


def test_a_rule_in_notation_may_have_batch_dims():
    sw.register_rule("shardwise_test::products", "…ij,…jk->…ik", linear="each")

    def check(mesh):
        # the shapes of the operands, and how they and the result are laid out
        for of_a, of_b, pa, pb, result in (
            ((6, 5, 3), (6, 3, 4), Shard(0), Shard(0), Shard(0)),
            ((6, 5, 3), (3, 4), Shard(0), Replicate(), Shard(0)),
            ((6, 5, 3), (6, 3, 4), Shard(1), Replicate(), Shard(1)),
            ((6, 5, 3), (6, 3, 4), Shard(2), Shard(1), Partial()),
            ((5, 3), (3, 4), Replicate(), Shard(1), Shard(1)),
        ):
            a, b = (torch.arange(float(torch.Size(shape).numel())).view(shape) for shape in (of_a, of_b))
            left, right = sw.distribute_tensor(a, mesh, [pa]), sw.distribute_tensor(b, mesh, [pb])
            with sw.communication_policy("error"):
                out = torch.ops.shardwise_test.products(left, right)
            assert out.placements == (result,) and torch.equal(out.full_tensor(), a @ b)

    on_ranks(check)


def test_a_pointwise_rule_holds_for_any_shapes_that_broadcast():
    sw.register_rule("shardwise_test::gate", "pointwise")
    sw.register_rule("shardwise_test::halved", lambda shapes: "pointwise" if len(shapes[0]) > 1 else None, linear="all")

    def check(mesh):
        gate, halved = torch.ops.shardwise_test.gate, torch.ops.shardwise_test.halved
        # the shapes of the operands, how the first is laid out
        for x, y, z, placement in (
            ((5, 3), (5, 3), (3,), Shard(0, sizes=[2, 0, 3, 0])),
            ((5, 3), (1, 3), (), Shard(1)),
            ((2, 5, 3), (5, 1), (3,), Shard(2)),
            ((2, 3), (2, 3), (3,), Shard(0)),  # two ranks have no row
        ):
            dense = [torch.arange(float(torch.Size(shape).numel())).view(shape) for shape in (x, y, z)]
            first = sw.distribute_tensor(dense[0], mesh, [placement])
            others = [sw.distribute_tensor(each, mesh, [Replicate()]) for each in dense[1:]]
            with sw.communication_policy("error"):
                out = gate(first, *others, 0.5)
            assert out.placements == first.placements and torch.equal(out.full_tensor(), gate(*dense, 0.5))
        terms = sw.DTensor.from_local(torch.ones(5, 3), mesh, [Partial()])
        with sw.communication_policy("error"):
            assert halved(terms).placements == (Partial(),)
        assert torch.equal(halved(terms).full_tensor(), torch.full((5, 3), 2.0))
        assert halved(sw.ones(4, device_mesh=mesh, placements=[Shard(0)])).placements == (Replicate(),)

    on_ranks(check)


def test_a_rule_may_be_a_function_of_the_shapes():
    sw.register_rule("shardwise_test::tripled", lambda shapes: "ij->ij" if len(shapes[0]) == 2 else None, linear="all")

    def check(mesh):
        matrix = sw.distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        row = sw.distribute_tensor(torch.ones(4), mesh, [Shard(0)])
        assert torch.equal(tripled(row).full_tensor(), torch.full((4,), 3.0)) and tripled(row).placements == (
            Replicate(),
        )
        assert torch.equal(tripled(matrix).full_tensor(), torch.full((4, 3), 3.0))

    on_ranks(check)


@pytest.mark.parametrize(
    ("op", "rule", "words"),
    [
        ("shardwise_test::absent", "i->i", "torch knows no operator shardwise_test::absent"),
        ("aten::add.Tensor", "i,i->i", "Shardwise already handles"),
        ("shardwise_test::twice", "i", 'has no "->"'),
        ("shardwise_test::twice", "i->i,i", "has 1 outputs, but"),
        ("shardwise_test::twice", "i1->i", '"i1" in "i1->i" is no term. Use letters a to z, _ for a dim'),
    ],
)
def test_bad_rules_are_errors(op, rule, words):
    with pytest.raises(ValueError, match=words):
        sw.register_rule(op, rule)


def test_a_pointwise_rule_has_no_letters():
    with pytest.raises(ValueError, match="whole='i' names letters"):
        sw.register_rule("shardwise_test::twice", "pointwise", whole="i")
