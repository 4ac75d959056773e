"""Numbers on one slice of a mesh next to tensors on another: their value where all have the same, else an error, and never a hang."""

import pytest
import torch

import shardwise as sw
from shardwise import DTensor, Partial, Replicate, Shard
from shardwise.testing import run_ranks

TIMEOUT = 30.0  # seconds, of what would wait forever


def on_square(check):
    def run(rank):
        check(rank, sw.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")))

    run_ranks(4, run, timeout=TIMEOUT)


def number(mesh, placement, value):
    """`value`, as a 0-dim tensor on `mesh`."""
    if placement.is_partial():
        value = value / mesh.size()
    return DTensor.from_local(torch.tensor(value), mesh, [placement])


USES = {
    "mul_": lambda a, s: a.mul_(s),
    "mul": lambda a, s: a * s,
    "add": lambda a, s: a + s,
    "number first": lambda a, s: s - a,
    "where": lambda a, s: torch.where(a > 1, a, s),
    "foreach": lambda a, s: torch._foreach_mul([a], s)[0],
    "copy_": lambda a, s: a.copy_(s),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
@pytest.mark.parametrize("placement", [Replicate(), Partial()], ids=str)
@pytest.mark.parametrize("names", [("dp", "tp"), ("tp", "dp"), ("all", "tp"), ("dp", "all")], ids="-".join)
def test_a_number_of_another_slice_is_its_value(use, placement, names):
    dense = torch.arange(4.0)
    expected = use(dense.clone(), torch.tensor(0.5))

    def check(rank, mesh):
        of_tensor, of_number = (mesh if name == "all" else mesh[name] for name in names)
        shardings = [Replicate(), Shard(0)] if of_tensor.ndim == 1 else [Replicate()]
        for sharding in shardings:
            a = sw.distribute_tensor(dense, of_tensor, [sharding] * of_tensor.ndim, src_data_rank=None)
            on_number = of_number if of_number.ndim == 1 else of_number["tp"]
            s = number(on_number, placement, 0.5)
            if of_number.ndim > 1:
                s = DTensor.from_local(s.full_tensor(), of_number, [Replicate()] * 2)
            torch.testing.assert_close(use(a, s).full_tensor(), expected)

    on_square(check)


def test_slices_whose_numbers_differ_are_an_error_on_all_ranks():
    def check(rank, mesh):
        a = sw.ones(4, device_mesh=mesh["dp"], placements=[Replicate()])
        s = DTensor.from_local(torch.tensor(0.5 + (rank >= 2)), mesh["tp"], [Replicate()])
        first, second = (0, 2) if rank in (0, 2) else (1, 3)
        with pytest.raises(
            ValueError, match=rf"ranks {first} and {second} of that mesh have different values for it, 0\.5 and 1\.5"
        ):
            a.mul_(s)
        assert a.to_local().tolist() == [1.0] * 4
        torch.testing.assert_close(a.mul_(s.to_local().item()).to_local(), torch.full((4,), 0.5 + (rank >= 2)))

    on_square(check)


def test_meshes_of_some_ranks_take_the_number_from_those_that_have_it():
    dtypes = (torch.float32, torch.complex128, torch.int64, torch.bool)

    def check(rank):
        meshes = [sw.DeviceMesh("cpu", ranks) for ranks in ([1, 3], [3, 0], [2], [0, 1, 2, 3])]
        for of_tensor in meshes:
            for of_number in meshes:
                for dtype in dtypes:
                    a = sw.ones(3, dtype=dtype, device_mesh=of_tensor, placements=[Replicate()])
                    s = sw.ones((), dtype=dtype, device_mesh=of_number, placements=[Replicate()])
                    result = a * s
                    if of_tensor.get_coordinate() is not None:
                        torch.testing.assert_close(result.to_local(), torch.ones(3, dtype=dtype))

    run_ranks(4, check, timeout=TIMEOUT)


def test_a_number_that_travels_is_communication():
    def check(rank, mesh):
        a = sw.ones(4, device_mesh=mesh["dp"], placements=[Replicate()])
        s = number(mesh["tp"], Replicate(), 0.5)
        with sw.communication_policy("error"), pytest.raises(ValueError, match="aten::mul"):
            a * s
        with sw.communication_policy("error"):  # all ranks of the tensor have it
            a * DTensor.from_local(torch.tensor(0.5), mesh, [Replicate()] * 2)

    on_square(check)


MOVES = {
    "between slices": ("dp", "tp"),
    "to a slice": ("all", "tp"),
    "from a slice": ("tp", "all"),
}


@pytest.mark.parametrize("names", MOVES.values(), ids=MOVES.keys())
def test_a_tensor_of_a_slice_does_not_move_to_another_mesh(names):
    """Each row of the mesh means another mesh by the same name."""

    def check(rank, mesh):
        source, target = (mesh if name == "all" else mesh[name] for name in names)
        x = sw.ones(4, device_mesh=source, placements=[Shard(0)] * source.ndim)
        replicas = [Replicate()] * target.ndim
        for is_async in (False, True):
            with pytest.raises(ValueError, match="the ranks disagree about the two meshes"):
                x.redistribute(target, replicas, async_op=is_async)
        with pytest.raises(RuntimeError, match="operands live on different meshes"):
            sw.zeros(4, device_mesh=target, placements=replicas).copy_(x)

    on_square(check)
