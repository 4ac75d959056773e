"""What moves and plans refuse."""

from error_cases import case

TITLE = "Moves and plans"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
x = torch.ones(6, 2)
d = sw.distribute_tensor(x, mesh, [Shard(0)])
layout = sw.Layout((6, 2), [0, 1], [Shard(0)])
"""
CASES = [
    case("no placements to move to", "d.redistribute()", RuntimeError),
    case("an unknown objective", 'd.redistribute(placements=[Shard(0)], objective="speed")', ValueError),
    case("links of another mesh", "d.redistribute(placements=[Replicate()], links=[(1, 1), (1, 1)])", ValueError),
    case(
        "a link without bandwidth",
        'd.redistribute(placements=[Replicate()], objective="time", links=[(1, 0)])',
        ValueError,
    ),
    case("a negative cap", "d.redistribute(placements=[Replicate()], memory_cap=-1)", ValueError),
    case(
        "a plan between other sizes",
        "sw.plan_redistribution(layout, sw.Layout((6, 3), [0, 1], [Shard(0)]))",
        ValueError,
    ),
    case("fewer lists of placements than tensors", "sw.redistribute_many([d, d], [[Shard(0)]])", ValueError),
    case("a plain tensor among many", "sw.redistribute_many([d, x], [Shard(0)])", TypeError),
    case("a placement without its list, for many", "sw.redistribute_many([d], Shard(0))", TypeError),
    case("a negative size of buckets", "sw.redistribute_many([d], [Replicate()], bucket_bytes=-1)", ValueError),
    case(
        "a sparse tensor on another mesh",
        'DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Replicate()]).redistribute(sw.DeviceMesh("cpu", [1, 0]), [Replicate()])',
        NotImplementedError,
    ),
    case(
        "a forbidden message",
        """
        partial = DTensor.from_local(x, mesh, [Partial()])
        with sw.communication_policy("error"):
            torch.relu(partial)
        """,
        ValueError,
    ),
    case("an unknown policy", 'sw.communication_policy("never")', ValueError),
    case(
        "values of a tensor on meta",
        'sw.distribute_tensor(torch.ones(4, device="meta"), mesh, [Shard(0)]).full_tensor().to("cpu")',
        NotImplementedError,
        in_torchs_words=True,
    ),
    case(
        "an item of a tensor on meta",
        'sw.distribute_tensor(torch.ones(4, device="meta"), mesh, [Shard(0)]).sum().item()',
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "an average of integers",
        "DTensor.from_local(torch.ones(4, dtype=torch.int64), mesh, [Partial('avg')]).full_tensor()",
        TypeError,
    ),
    case(
        "a reduction of bits",
        "DTensor.from_local(torch.ones(4, dtype=torch.complex64), mesh, [Partial('max')]).full_tensor()",
        TypeError,
    ),
    case("a move to another kind of device", 'd.redistribute(sw.DeviceMesh("cuda", [0, 1]), [Shard(0)])', ValueError),
    case(
        "values of a DTensor on meta",
        'sw.distribute_tensor(torch.ones(4, device="meta"), mesh, [Shard(0)]).to("cpu")',
        NotImplementedError,
    ),
    case(
        "a move between slices of a mesh",
        """
        grid = sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        sw.ones(4, device_mesh=grid["tp"]).redistribute(mesh, [Shard(0)])
        """,
        ValueError,
        is_of_rank=True,
    ),
    case(
        "numbers that differ between slices of a mesh",
        """
        grid = sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
        d * sw.full((), float(mesh.get_rank()), device_mesh=grid["tp"])
        """,
        ValueError,
    ),
    case(
        "a maximum of sparse parts",
        "DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Replicate()]).redistribute(placements=[Partial('max')])",
        ValueError,
    ),
    case(
        "values of a tensor without memory",
        'sw.zeros(4, device_mesh=mesh).copy_(sw.zeros(4, device_mesh=mesh).to("meta"))',
        NotImplementedError,
    ),
]
