"""Functions of DTensors, compiled: ranks are processes, and each launch runs several parts of compile_program.py."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torchrun import TORCHS, expect_all_well, forked_python

import shardwise as sw
from shardwise import Shard
from shardwise.testing import run_ranks


def on_ranks(check, n_ranks):
    run_ranks(n_ranks, lambda rank: check(sw.init_device_mesh("cpu", (n_ranks,))))


PARTS = (
    "pointwise_and_products,steps_that_need_values,bags,bags_of_a_module,fused_optimizers,partial_results,few_moves,gradient_reduced_once,profiles,moves_without_messages,selections,statistics,methods,recompiles,writes_and_views,strided_parts,breaks,placements_after_a_break,"
    "plain_tensors,ranks_outside,attention,groups_of_meshes,marked_sizes"
)


def test_graphs_give_what_dense_programs_give(tmp_path):
    expect_all_well("compile_program.py", 3, PARTS, tmp_path, timeout=600)


def test_the_first_operator_of_a_program_may_be_a_move(tmp_path):
    expect_all_well("compile_program.py", 3, "methods", tmp_path, timeout=600)


def test_meshes_of_two_dims(tmp_path):
    expect_all_well("compile_program.py", 4, "two_mesh_dims,layers_share_graphs", tmp_path, timeout=600)


def test_inductor_and_training_a_tensor_parallel_layer(tmp_path):
    expect_all_well("compile_program.py", 2, "inductor,late_waits,tensor_parallel", tmp_path, timeout=900)


def test_make_fx_traces_operators_on_dtensors():
    def check(mesh):
        x = sw.distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        graph = make_fx(lambda x: (x * 2).sum())(x)
        assert torch.ops.aten.mul.Tensor in {node.target for node in graph.graph.nodes}
        assert graph(x).item() == 24

    on_ranks(check, 1)


def test_make_fx_traces_a_program_that_makes_its_dtensors(tmp_path):
    """In a process of its own: nothing else has told torch about moves."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, torch.distributed as dist, shardwise as sw\n"
        "from torch.fx.experimental.proxy_tensor import make_fx\n"
        "from torch.testing._internal.distributed.fake_pg import FakeStore\n"
        "dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=2)\n"
        "mesh = sw.init_device_mesh('cpu', (2,))\n"
        "def moved(x):\n"
        "    return sw.DTensor.from_local(x, mesh, [sw.Shard(0)]).redistribute(placements=[sw.Shard(1)]).to_local().sum()\n"
        "graph = make_fx(moved, tracing_mode='fake')(torch.ones(4, 3))\n"
        "assert torch.ops.shardwise.start_move.default in {node.target for node in graph.graph.nodes}\n"
        "assert graph(torch.ones(4, 3)).item() == 8  # the other rank does not exist\n"
    )
    result = forked_python(program, imported=TORCHS)
    assert result.returncode == 0, result.stderr


def test_what_needs_values_is_refused_while_a_program_is_traced():
    def check(mesh):
        table = sw.distribute_tensor(torch.ones(4, 3), mesh, [Shard(0)])
        ids = sw.distribute_tensor(torch.tensor([1, 2]), mesh, [Shard(0)])
        with FakeTensorMode() as mode:
            fake_table, fake_ids = mode.from_tensor(table), mode.from_tensor(ids)
            assert (fake_table * 2).placements == (Shard(0),)
            for needs_values in (
                lambda: torch.multinomial(fake_table, 1),
                lambda: torch.nn.functional.embedding(fake_ids, fake_table, scale_grad_by_freq=True),
                lambda: fake_table[fake_table > 0],
                lambda: fake_ids.nonzero(),
            ):
                with pytest.raises(NotImplementedError, match=r"cannot be part of a graph"):
                    needs_values()

    on_ranks(check, 1)
