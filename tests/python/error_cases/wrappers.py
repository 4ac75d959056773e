"""What LocalShardsWrapper and from_local of it refuse."""

from error_cases import case

TITLE = "Local shards"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
rows = torch.ones(3, 4)
wrapper = LocalShardsWrapper([rows], [(3 * rank, 0)])
"""
CASES = [
    case("offsets given twice", "LocalShardsWrapper([rows], [(0, 0)], local_offsets=[(0, 0)])", TypeError),
    case("no offsets", "LocalShardsWrapper([rows])", TypeError),
    case("a DTensor as a piece", "LocalShardsWrapper([sw.zeros(3, device_mesh=mesh)], [(0,)])", TypeError),
    case("a piece without dims", "LocalShardsWrapper([torch.tensor(1.0)], [()])", ValueError),
    case("offsets of other dims", "LocalShardsWrapper([rows], [(0,)])", ValueError),
    case("negative offsets", "LocalShardsWrapper([rows], [(0, -1)])", ValueError),
    case("pieces of several dtypes", "LocalShardsWrapper([rows, rows.double()], [(0, 0), (3, 0)])", ValueError),
    case("fewer offsets than pieces", "LocalShardsWrapper([rows, rows], [(0, 0)])", ValueError),
    case("pieces of one rank that overlap", "LocalShardsWrapper([rows, rows], [(0, 0), (2, 0)])", ValueError),
    case("a wrapper to be distributed", "sw.distribute_tensor(wrapper, mesh, [Shard(0)])", ValueError),
    case("a wrapper beside a plain tensor", "wrapper + rows", ValueError),
    case("a wrapper beside a DTensor", "wrapper + sw.zeros(6, 4, device_mesh=mesh)", ValueError),
    case(
        "wrappers of different offsets",
        "wrapper + LocalShardsWrapper([rows], [(3 * rank + 1, 0)])",
        ValueError,
        is_of_rank=True,
    ),
    case("an operator that needs the whole table", "wrapper.sum(0)", NotImplementedError),
    case("a comparison with a plain tensor", "torch.equal(wrapper, rows)", TypeError),
    case(
        "pieces of ranks that overlap",
        "DTensor.from_local(LocalShardsWrapper([rows], [(rank, 0)]), mesh, [Shard(0)])",
        ValueError,
    ),
    case(
        "pieces of ranks that leave a hole",
        "DTensor.from_local(LocalShardsWrapper([rows], [(5 * rank, 0)]), mesh, [Shard(0)])",
        ValueError,
    ),
    case("no pieces on any rank", "DTensor.from_local(LocalShardsWrapper([], []), mesh, [Shard(0)])", ValueError),
    case(
        "a wrapper on one rank and a tensor on the other",
        "DTensor.from_local(wrapper if rank == 0 else rows, mesh, [Shard(0)], run_check=True)",
        ValueError,
        is_of_rank=True,
    ),
    case(
        "pieces of several dtypes on the ranks",
        "DTensor.from_local(LocalShardsWrapper([rows.to([torch.float32, torch.float64][rank])], [(3 * rank, 0)]), mesh, [Shard(0)])",
        ValueError,
    ),
    case(
        "pieces of several numbers of dims on the ranks",
        "DTensor.from_local(LocalShardsWrapper([torch.ones([3] * (rank + 1))], [[0] * (rank + 1)]), mesh, [Shard(0)])",
        ValueError,
    ),
    case(
        "shapes given that differ",
        "DTensor.from_local(wrapper, mesh, [Shard(0)], shape=(6 + rank, 4), stride=(4, 1))",
        ValueError,
    ),
    case(
        "a piece beyond the given shape",
        "DTensor.from_local(wrapper, mesh, [Shard(0)], shape=(5, 4), stride=(4, 1))",
        ValueError,
    ),
    case("different pieces as replicas", "DTensor.from_local(wrapper, mesh, [Replicate()])", ValueError),
    case(
        "other pieces than the placements say",
        "DTensor.from_local(wrapper, mesh, [Shard(0, sizes=[4, 2])])",
        ValueError,
    ),
    case("more placements than mesh dims", "DTensor.from_local(wrapper, mesh, [Shard(0), Shard(1)])", ValueError),
    case("operators over lists of wrappers and tensors", "torch._foreach_add([wrapper], [rows])", ValueError),
    case(
        "other sizes than the wrapper's",
        "wrapper.new_zeros(9, 9) if False else torch.ops.aten.view(wrapper, [12])",
        ValueError,
    ),
    case("a method of wrappers given a tensor", "LocalShardsWrapper.local_shards(rows)", TypeError),
    case(
        "a deep copy of a result of wrappers",
        "import copy\ncopy.deepcopy(LocalShardsWrapper([rows.requires_grad_()], [(0, 0)]) * 2)",
        RuntimeError,
    ),
    case(
        "a wrapper as a piece of a wrapper",
        "LocalShardsWrapper([wrapper], [(0, 0)])",
        TypeError,
    ),
    case(
        "pieces on several devices on the ranks",
        'DTensor.from_local(LocalShardsWrapper([rows.to(["cpu", "meta"][rank])], [(3 * rank, 0)]), mesh, [Shard(0)])',
        ValueError,
    ),
    case(
        "pieces that two mesh dims cannot split so",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        uneven = LocalShardsWrapper([torch.ones(3, 4), torch.ones(3, 4)][: 2 - rank], [(0, 0), (6, 0)][: 2 - rank] if rank == 0 else [(3, 0)])
        DTensor.from_local(uneven, grid, [Shard(0), Replicate()])
        """,
        ValueError,
    ),
    case(
        "other pieces than an EnumerableShard says",
        """
        pieces = [ShardMetadata((0, 0), (4, 4), 0), ShardMetadata((4, 0), (2, 4), 1)]
        DTensor.from_local(wrapper, mesh, [EnumerableShard(pieces)])
        """,
        ValueError,
    ),
    case(
        "pieces elsewhere than the given shape puts them",
        "DTensor.from_local(LocalShardsWrapper([rows], [(3 - 3 * rank, 0)]), mesh, [Shard(0, sizes=[3, 3])], shape=(6, 4), stride=(4, 1))",
        ValueError,
        is_of_rank=True,
    ),
    case(
        "a shape that a rank outside the mesh does not know",
        'DTensor.from_local(wrapper if rank == 0 else LocalShardsWrapper([], []), sw.DeviceMesh("cpu", [0]), [Shard(0, sizes=[3])])',
        ValueError,
        only_on=1,
    ),
    case(
        "a tensor on one rank and a wrapper on the other",
        "DTensor.from_local(wrapper if rank == 1 else rows, mesh, [Shard(0)], run_check=True)",
        ValueError,
        is_of_rank=True,
    ),
    case(
        "torch's wrapper as a piece of a wrapper",
        """
        from torch.distributed.tensor._shards_wrapper import LocalShardsWrapper as TorchsWrapper
        LocalShardsWrapper([TorchsWrapper([rows], [(0, 0)])], [(0, 0)])
        """,
        TypeError,
    ),
]
