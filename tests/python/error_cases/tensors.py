"""What from_local, distribute_tensor, factories and modules refuse."""

from error_cases import case

TITLE = "Making distributed tensors"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
x = torch.ones(6, 2)
d = sw.distribute_tensor(x, mesh, [Shard(0)])
"""
CASES = [
    case("values given to the class", "DTensor(torch.ones(3))", TypeError),
    case(
        "what another rank saved of its own part",
        "rebuild, saved = d.__reduce_ex__(4)\nrebuild(*saved[:-1], saved_by=1 - rank)",
        ValueError,
        is_of_rank=True,
    ),
    case("a function of Python for each element", "d.apply_(lambda element: element + 1)", NotImplementedError),
    case("a function of Python for each two elements", "d.map_(d, lambda a, b: a + b)", NotImplementedError),
    case("a local tensor that is a DTensor", "DTensor.from_local(d, mesh, [Shard(0)])", RuntimeError),
    case(
        "a local piece of another shape",
        "DTensor.from_local(x, mesh, [Shard(0)], shape=(7, 2), stride=(2, 1))",
        ValueError,
        is_of_rank=True,
    ),
    case(
        "a shape of other dims",
        "DTensor.from_local(x, mesh, [Shard(0)], shape=(12,), stride=(1,))",
        ValueError,
    ),
    case("a stride of other dims", "DTensor.from_local(x, mesh, [Shard(0)], shape=(12, 2), stride=(1,))", ValueError),
    case(
        "pieces that differ between ranks, of which Shard(0) makes equal ones",
        "DTensor.from_local(torch.ones(rank + 1), mesh, [Shard(0)], run_check=True)",
        ValueError,
    ),
    case(
        "a gradient on one rank only",
        "DTensor.from_local(torch.ones(2, requires_grad=rank == 1), mesh, [Replicate()], run_check=True)",
        ValueError,
    ),
    case(
        "run_check of a sparse tensor",
        "DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Replicate()], run_check=True)",
        NotImplementedError,
    ),
    case(
        "an autograd function whose gradient is a plain tensor",
        """
        class Doubled(torch.autograd.Function):
            forward = staticmethod(lambda ctx, x: x * 2)
            backward = staticmethod(lambda ctx, gradient: torch.full(gradient.shape, 2.0))

        Doubled.apply(d.detach().requires_grad_()[:4]).sum().backward()
        """,
        TypeError,
    ),
    case("a piece on another device", 'DTensor.from_local(x, sw.DeviceMesh("meta", [0, 1]), [Shard(0)])', ValueError),
    case(
        "a number in place of a tensor", "DTensor.from_local(3, mesh, [Replicate()])", TypeError, in_torchs_words=True
    ),
    case(
        "the gradient of a maximum whose owner is unknown",
        """
        largest = DTensor.from_local(torch.ones(6, 2, requires_grad=True), mesh, [Partial("max")])
        largest.redistribute(placements=[Replicate()]).sum().backward()
        """,
        NotImplementedError,
    ),
    case(
        "a shape of the whole tensor that differs between ranks",
        "sw.distribute_tensor(torch.ones(4 + rank, 2), mesh, [Shard(0)])",
        ValueError,
    ),
    case(
        "dtypes that differ between ranks",
        "sw.distribute_tensor(torch.ones(4).to([torch.float32, torch.int64][rank]), mesh, [Shard(0)])",
        ValueError,
    ),
    case(
        "a tensor with a history of gradients",
        "sw.distribute_tensor(torch.ones(3, requires_grad=True) * 2, mesh, [Shard(0)])",
        RuntimeError,
    ),
    case(
        "a history of gradients on one rank",
        """
        tensor = torch.ones(3, requires_grad=True) * 2 if rank == 1 else torch.ones(3)
        sw.distribute_tensor(tensor, mesh, [Shard(0)])
        """,
        ValueError,
    ),
    case("a source that is no member", "sw.distribute_tensor(x, mesh, [Shard(0)], src_data_rank=2)", ValueError),
    case(
        "values on a rank that does not count",
        'sw.distribute_tensor(torch.ones(4, device="meta" if rank == 0 else "cpu"), mesh, [Shard(0)])',
        ValueError,
    ),
    case(
        "a sparse tensor to be sharded", "sw.distribute_tensor(torch.eye(2).to_sparse(), mesh, [Shard(0)])", ValueError
    ),
    case("a Partial to fill", "sw.ones(3, device_mesh=mesh, placements=[Partial()])", ValueError),
    case("a Partial to draw", "sw.rand(3, device_mesh=mesh, placements=[Partial()])", ValueError),
    case("integers to draw", "sw.rand(3, device_mesh=mesh, dtype=torch.int64)", TypeError),
    case(
        "a layout of memory that cannot be distributed",
        "sw.zeros(3, device_mesh=mesh, layout=torch.sparse_coo)",
        ValueError,
    ),
    case("to_local of a plain tensor", "DTensor.to_local(x)", TypeError),
    case("the memory of a sharded tensor", "d.data_ptr()", ValueError, is_of_rank=True),
    case("a deep copy of a result", "import copy\ncopy.deepcopy(d.detach().requires_grad_() * 2)", RuntimeError),
    case(
        "a module distributed twice",
        "sw.distribute_module(sw.distribute_module(torch.nn.Linear(2, 2), mesh), mesh)",
        RuntimeError,
    ),
    case(
        "an input_fn of one argument",
        "sw.distribute_module(torch.nn.Linear(2, 2), mesh, input_fn=lambda values: values)",
        ValueError,
    ),
    case(
        "plain arguments that differ between ranks",
        """
        model = sw.distribute_module(torch.nn.Linear(2, 2), mesh)
        model(torch.full((3, 2), float(rank)))
        """,
        ValueError,
    ),
    case("a number given to from_torch", "sw.from_torch(3)", TypeError),
    case("a plain tensor given to to_torch", "sw.to_torch(x)", TypeError),
    case("to_torch of ranks that are threads", "sw.to_torch(d)", ValueError, of_threads=True),
    case(
        "a FakeTensor",
        "from torch._subclasses.fake_tensor import FakeTensorMode\nwith FakeTensorMode() as mode:\n    fake = torch.ones(2)\nsw.distribute_tensor(fake, mesh, [Shard(0)])",
        TypeError,
    ),
    case(
        "fewer pieces of a spec than a dtype",
        "from torch.distributed.tensor import DTensor as TorchDTensor\nDTensor.from_local(TorchDTensor, mesh, [Shard(0)])",
        TypeError,
        in_torchs_words=True,
    ),
    case("a checkpoint of a sum", "DTensor.from_local(x, mesh, [Partial()]).__create_chunk_list__()", ValueError),
    case(
        "meta on one rank only",
        "DTensor.from_local(torch.ones(2, device='meta' if rank else 'cpu'), mesh, [Shard(0)], run_check=True)",
        ValueError,
    ),
    case(
        "pieces of other sizes than the shape says",
        "DTensor.from_local(torch.ones(rank + 1, 2), mesh, [Shard(0, sizes=[2, 1])], shape=(3, 2), stride=(2, 1), run_check=True)",
        ValueError,
    ),
    case(
        "shapes that differ between ranks",
        "DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)], shape=(4 + rank, 2), run_check=True)",
        ValueError,
    ),
    case(
        "a spec without a tensor's facts",
        "from shardwise._dtensor_spec import DTensorSpec\nDTensor(torch.ones(3, 2), DTensorSpec(mesh, (Shard(0),)))",
        ValueError,
    ),
    case(
        "the shape of a spec that does not know it",
        "from shardwise._dtensor_spec import DTensorSpec\nDTensorSpec(mesh, (Shard(0),)).shape",
        ValueError,
    ),
    case(
        "a spec that names a mesh dim twice",
        "from shardwise._dtensor_spec import DTensorSpec\nDTensorSpec.from_dim_map(mesh, [0, -1], [0])",
        ValueError,
    ),
    case(
        "a dim_map of a dim that is sharded twice",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        sw.distribute_tensor(x, grid, [Shard(0), Shard(0)])._spec.dim_map
        """,
        ValueError,
    ),
    case(
        "a view whose source was written to",
        "view = d.view(3, 4)\nd.add_(1)\nview.to_local()",
        ValueError,
    ),
    case(
        "a FakeTensorMode around DTensors",
        "from torch._subclasses.fake_tensor import FakeTensorMode\nwith FakeTensorMode():\n    d + d",
        NotImplementedError,
    ),
    case("a number given to a function of tensors", "DTensor.full_tensor(3)", TypeError, in_torchs_words=True),
    case(
        "torch's DTensor as a local tensor",
        "theirs = sw.to_torch(d)\nDTensor.from_local(theirs, mesh, [Shard(0)])",
        TypeError,
        of_processes=True,
    ),
    case(
        "torch's form of uneven shards",
        "sw.to_torch(sw.distribute_tensor(x, mesh, [Shard(0, sizes=[1, 5])]))",
        ValueError,
        of_processes=True,
    ),
    case(
        "torch's form of a sparse tensor",
        "sw.to_torch(DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Replicate()]))",
        ValueError,
        of_processes=True,
    ),
    case(
        "torch's form of shards on ranks that fall",
        'sw.to_torch(sw.distribute_tensor(x, sw.DeviceMesh("cpu", [1, 0]), [Shard(0)]))',
        ValueError,
        of_processes=True,
    ),
    case(
        "torch's FSDP of parameters that are DTensors",
        """
        from torch.distributed.fsdp import fully_shard
        fully_shard(sw.distribute_module(torch.nn.Linear(2, 2), mesh))
        """,
        TypeError,
        of_processes=True,
    ),
    case(
        "ZeroRedundancyOptimizer of DTensors",
        """
        from torch.distributed.optim import ZeroRedundancyOptimizer
        ZeroRedundancyOptimizer([torch.nn.Parameter(d)], torch.optim.SGD, lr=0.1)
        """,
        TypeError,
        of_processes=True,
    ),
    case("a collective of torch's on a DTensor", "torch.distributed.all_reduce(d)", TypeError, of_processes=True),
    case(
        "a full state dict of what a rank has no part of",
        """
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
        model = sw.distribute_module(torch.nn.Linear(2, 2), sw.DeviceMesh("cpu", [0]))
        get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        """,
        ValueError,
        only_on=1,
        of_processes=True,
    ),
    case(
        "a ShardedTensor of replicas",
        "from shardwise.sharded_tensor import to_sharded_tensor\nto_sharded_tensor(sw.distribute_tensor(x, mesh, [Replicate()]))",
        ValueError,
    ),
    case(
        "a ShardedTensor on fewer ranks",
        """
        from shardwise.sharded_tensor import from_sharded_tensor, to_sharded_tensor
        from_sharded_tensor(to_sharded_tensor(d), sw.DeviceMesh("cpu", [0]))
        """,
        ValueError,
        of_processes=True,
    ),
    case(
        "a ShardedTensor of unknown ranks",
        """
        from shardwise.sharded_tensor import from_sharded_tensor, to_sharded_tensor
        theirs = to_sharded_tensor(d)
        theirs.metadata().shards_metadata[1].placement = None
        from_sharded_tensor(theirs, mesh)
        """,
        ValueError,
        of_processes=True,
    ),
    case(
        "TorchRec's tensors without process groups",
        "from shardwise.interop import from_torchrec\nfrom_torchrec({})",
        ValueError,
        of_threads=True,
    ),
    case(
        "TorchRec's tensors on a mesh of two dims",
        'from shardwise.interop import from_torchrec\nfrom_torchrec({}, sw.init_device_mesh("cpu", (2, 1)))',
        ValueError,
        of_processes=True,
    ),
    case(
        "TorchRec's tensors on a mesh without this rank",
        'from shardwise.interop import from_torchrec\nfrom_torchrec({}, sw.DeviceMesh("cpu", [0]))',
        ValueError,
        of_processes=True,
        only_on=1,
    ),
    case(
        "TorchRec's tensors that differ between ranks",
        'from shardwise.interop import from_torchrec\nfrom_torchrec({"table": torch.ones(3 + rank, 2)})',
        ValueError,
        of_processes=True,
    ),
]
