"""What placements and layouts refuse."""

from error_cases import case

TITLE = "Placements and layouts"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
x = torch.ones(6, 2)
"""
CASES = [
    case("more placements than mesh dims", "sw.distribute_tensor(x, mesh, [Shard(0), Shard(1)])", ValueError),
    case("a tensor dim that does not exist", "sw.distribute_tensor(x, mesh, [Shard(2)])", IndexError),
    case("a negative dim that does not exist", "sw.distribute_tensor(x, mesh, [Shard(-3)])", IndexError),
    case("sizes that do not add up", "sw.distribute_tensor(x, mesh, [Shard(0, sizes=[1, 2])])", ValueError),
    case("more sizes than ranks", "sw.distribute_tensor(x, mesh, [Shard(0, sizes=[1, 2, 3])])", ValueError),
    case("more elements than can be counted", "sw.Layout((2**32, 2**32), (2,), [Shard(0)])", ValueError),
    case(
        "a piece beyond the indices that there are",
        "EnumerableShard([ShardMetadata((2**63 - 1, 0), (1, 2), 0)])",
        ValueError,
    ),
    case("negative sizes", "Shard(0, sizes=[7, -1])", ValueError),
    case("empty sizes", "Shard(0, sizes=[])", ValueError),
    case("a block without elements", "sw.BlockShard(0, block=0)", ValueError),
    case("an unknown reduction", 'Partial("median")', ValueError),
    case("text in place of a placement", 'sw.distribute_tensor(x, mesh, ["Shard(0)"])', TypeError),
    case("a placement without its list", "sw.distribute_tensor(x, mesh, Shard(0))", TypeError),
    case(
        "a placement of torch's without its list",
        "sw.distribute_tensor(x, mesh, torch.distributed.tensor.Shard(1))",
        TypeError,
    ),
    case(
        "pieces that overlap",
        """
        EnumerableShard([ShardMetadata((0, 0), (4, 2), 0), ShardMetadata((3, 0), (3, 2), 1)])
        """,
        ValueError,
    ),
    case(
        "pieces with a hole",
        """
        pieces = [ShardMetadata((0, 0), (4, 2), 0), ShardMetadata((5, 0), (1, 2), 1)]
        sw.distribute_tensor(x, mesh, [EnumerableShard(pieces)])
        """,
        ValueError,
    ),
    case(
        "a piece on a rank outside the mesh",
        "sw.distribute_tensor(x, mesh, [EnumerableShard([ShardMetadata((0, 0), (6, 2), 7)])])",
        ValueError,
    ),
    case(
        "a piece beyond the tensor",
        "sw.distribute_tensor(x, mesh, [EnumerableShard([ShardMetadata((0, 0), (7, 2), 0)])])",
        ValueError,
    ),
    case(
        "a piece of other dims",
        "sw.distribute_tensor(x, mesh, [EnumerableShard([ShardMetadata((0,), (6,), 0)])])",
        ValueError,
    ),
    case("offsets and sizes of other lengths", "EnumerableShard([ShardMetadata((0, 0), (4,), 0)])", ValueError),
    case(
        "pieces of several numbers of dims",
        "EnumerableShard([ShardMetadata((0, 0), (4, 2), 0), ShardMetadata((4,), (2,), 1)])",
        ValueError,
    ),
    case("a piece at a negative offset", "EnumerableShard([ShardMetadata((-1, 0), (4, 2), 0)])", ValueError),
    case(
        "an EnumerableShard on a mesh of two dims",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        sw.distribute_tensor(x, grid, [EnumerableShard([ShardMetadata((0, 0), (6, 2), 0)]), Replicate()])
        """,
        ValueError,
    ),
    case("negative local_units", "RaggedShard((0,), (3, -1))", ValueError),
    case("local_units that are all zero", "RaggedShard((0,), (0, 0))", ValueError),
    case("no local_units", "RaggedShard((0,), ())", ValueError),
    case("dims that are not the leading ones", "RaggedShard((1,), (1, 1))", ValueError),
    case("local_units for other ranks", "sw.distribute_tensor(x, mesh, [RaggedShard((0,), (1, 2, 3))])", ValueError),
    case("more flattened dims than the tensor has", "sw.Layout((6,), (2,), [RaggedShard((0, 1), (1, 1))])", IndexError),
    case("ranges of a number", "sw.Layout((), (2,), [RaggedShard((0,), (1, 1))])", IndexError),
    case(
        "ranges on two mesh dims",
        "sw.Layout((6, 2), (2, 1), [RaggedShard((0,), (1, 1)), RaggedShard((0,), (1,))])",
        ValueError,
    ),
    case(
        "a range without the shape of the tensor",
        "DTensor.from_local(torch.ones(6), mesh, [RaggedShard((0, 1), (1, 1))])",
        ValueError,
    ),
    case(
        "a range of another length",
        "DTensor.from_local(torch.ones(5), mesh, [RaggedShard((0, 1), (1, 1))], shape=(6, 2))",
        ValueError,
        is_of_rank=True,
    ),
    case(
        "a range that is not contiguous",
        "DTensor.from_local(torch.ones(12)[::2], mesh, [RaggedShard((0, 1), (1, 1))], shape=(6, 2))",
        ValueError,
        is_of_rank=True,
    ),
    case(
        "a range of a sparse tensor",
        "DTensor.from_local(torch.ones(6).to_sparse(), mesh, [RaggedShard((0, 1), (1, 1))], shape=(6, 2))",
        NotImplementedError,
    ),
    case("a layout of negative sizes", "sw.Layout((-1, 2), [0, 1], [Shard(0)])", ValueError),
    case("a layout on a mesh without ranks", "sw.Layout((6, 2), (0,), [Shard(0)])", ValueError),
    case("a layout on an empty mesh", "sw.Layout((6, 2), [], [Shard(0)])", TypeError),
    case("a layout on a mesh with a rank twice", "sw.Layout((6, 2), [[0, 0]], [Replicate(), Shard(0)])", ValueError),
    case("a layout with a negative rank", "sw.Layout((6, 2), [[0, -1]], [Replicate(), Shard(0)])", ValueError),
    case(
        "a picture in an unknown format", 'sw.debug.picture(sw.zeros(3, device_mesh=mesh), format="jpeg")', ValueError
    ),
    case(
        "splitting along a dim that does not exist",
        "Shard(2)._split_tensor(x, 2)",
        IndexError,
    ),
    case("splitting into another number of parts", "Shard(0, sizes=[4, 2])._split_tensor(x, 3)", ValueError),
    case("a part that does not exist", "Shard(0)._select_split_tensor(x, 2, 5)", IndexError),
    case(
        "sizes on a dim that is split against the order of mesh dims",
        """
        from shardwise.placement_types import _StridedShard
        grid = sw.init_device_mesh("cpu", (2, 1))
        sw.distribute_tensor(x, grid, [_StridedShard(0, split_factor=2), Shard(0, sizes=[6])])
        """,
        ValueError,
    ),
    case(
        "a split factor that no order of mesh dims has",
        """
        from shardwise.placement_types import _StridedShard
        grid = sw.init_device_mesh("cpu", (2, 1))
        sw.distribute_tensor(x, grid, [_StridedShard(0, split_factor=3), Shard(0)])
        """,
        ValueError,
    ),
    case(
        "a split of no parts",
        """
        from shardwise.placement_types import _StridedShard
        sw.Layout((6, 2), [0, 1], [_StridedShard(0, split_factor=0)])
        """,
        ValueError,
    ),
    case(
        "strided splits of two dims",
        """
        from shardwise.placement_types import _StridedShard
        sw.Layout((6, 2), (2, 1), [_StridedShard(0, split_factor=2), _StridedShard(1, split_factor=2)])
        """,
        ValueError,
    ),
    case(
        "the entries of a sparse tensor in strided parts on a mesh of two dims",
        """
        from shardwise.placement_types import _StridedShard
        grid = sw.init_device_mesh("cpu", (2, 1))
        whole = DTensor.from_local(torch.eye(4).to_sparse(), grid, [Replicate(), Replicate()])
        whole.redistribute(placements=[_StridedShard(0, split_factor=2), Replicate()])._values()
        """,
        NotImplementedError,
    ),
    case(
        "the sizes of a tensor whose pieces have other sizes on other ranks",
        """
        from shardwise._utils import compute_global_tensor_info
        compute_global_tensor_info(x, mesh, [RaggedShard((0,), (1, 1))])
        """,
        RuntimeError,
    ),
    case(
        "a local tensor of another size than a strided split gives",
        """
        from shardwise.placement_types import _StridedShard
        DTensor.from_local(torch.ones(5, 2), mesh, [_StridedShard(0, split_factor=2)], shape=(6, 2))
        """,
        ValueError,
        is_of_rank=True,
    ),
    case(
        "a layout of more ranks than there can be",
        "sw.Layout((6, 2), (100_000, 100_000), [Shard(0), Shard(1)])",
        ValueError,
    ),
    case(
        "a name that a module does not have",
        "from shardwise import placement_types\nplacement_types.Shart",
        AttributeError,
        in_torchs_words=True,
    ),
    case(
        "gradients split in another order than the tensor",
        """
        from shardwise.placement_types import _StridedShard
        grid = sw.init_device_mesh("cpu", (1, 2))
        whole = sw.distribute_tensor(x, grid, [Shard(0), Shard(0)])
        whole.to_local(grad_placements=[_StridedShard(0, split_factor=2), Shard(0)])
        """,
        ValueError,
    ),
    case(
        "pieces of sizes that form no tensor",
        """
        from shardwise._utils import compute_global_tensor_shape
        compute_global_tensor_shape((2 + mesh.get_local_rank(), 2), mesh, [Shard(1)])
        """,
        RuntimeError,
    ),
    case(
        "the one shape of several pieces",
        """
        from shardwise._utils import compute_local_shape_and_global_offset
        pieces = [ShardMetadata((row, 0), (2 - row // 4, 2), rank) for row, rank in ((0, 0), (2, 1), (4, 0), (5, 1))]
        compute_local_shape_and_global_offset((6, 2), mesh, [EnumerableShard(pieces)])
        """,
        ValueError,
    ),
]
