"""What lookups in tables, and optimizers of tables, refuse."""

from error_cases import case

TITLE = "Lookups"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
table = torch.nn.Parameter(sw.rand(10, 4, device_mesh=mesh, placements=[Shard(0)]))
ids = sw.distribute_tensor(torch.tensor([1, 2, 3, 9]), mesh, [Shard(0)])
"""
CASES = [
    case("an id that is no row", "F.embedding(ids + 1, table)", IndexError),
    case(
        "a negative id on one rank",
        "F.embedding(DTensor.from_local(torch.tensor([-5 * rank]), mesh, [Shard(0)]), table)",
        IndexError,
    ),
    case("ids of floats", "F.embedding(ids.float(), table)", TypeError),
    case("a plain table beside ids of a DTensor", "F.embedding(ids, torch.ones(10, 4))", TypeError),
    case("plain ids beside a table", "F.embedding(torch.tensor([1]), table)", ValueError),
    case("a table of three dims", "F.embedding(ids, sw.ones(10, 4, 2, device_mesh=mesh))", ValueError),
    case(
        "a padding row that does not exist",
        "F.embedding(ids, table, padding_idx=10)",
        AssertionError,
        in_torchs_words=True,
    ),
    case("max_norm of zero", "torch.embedding_renorm_(table.detach(), ids, 0.0, 2.0)", ValueError),
    case("a negative norm_type", "torch.embedding_renorm_(table.detach(), ids, 1.0, -2.0)", ValueError),
    case(
        "max_norm of a table that is a sum",
        "F.embedding(ids, DTensor.from_local(torch.ones(10, 4), mesh, [Partial()]), max_norm=1.0)",
        ValueError,
    ),
    case(
        "replicated ids that differ between ranks",
        """
        differing = DTensor.from_local(torch.tensor([rank]), mesh, [Replicate()])
        with sw.lookup_exchange("all_to_all"):
            F.embedding(differing, table).to_local()
        """,
        ValueError,
    ),
    case(
        "bags without a beginning",
        "F.embedding_bag(ids, table, sw.distribute_tensor(torch.tensor([1, 2]), mesh, [Replicate()]))",
        ValueError,
    ),
    case(
        "offsets that fall",
        "F.embedding_bag(ids, table, sw.distribute_tensor(torch.tensor([0, 3, 1]), mesh, [Replicate()]))",
        ValueError,
    ),
    case(
        "an offset beyond the ids",
        "F.embedding_bag(ids, table, sw.distribute_tensor(torch.tensor([0, 9]), mesh, [Replicate()]))",
        ValueError,
    ),
    case(
        "offsets of floats",
        "F.embedding_bag(ids, table, sw.distribute_tensor(torch.tensor([0.0]), mesh, [Replicate()]))",
        TypeError,
    ),
    case(
        "offsets of two dims",
        "F.embedding_bag(ids, table, sw.distribute_tensor(torch.tensor([[0]]), mesh, [Replicate()]))",
        ValueError,
        in_torchs_words=True,
    ),
    case("ids of three dims in bags", "F.embedding_bag(ids.view(1, 2, 2), table)", ValueError, in_torchs_words=True),
    case(
        "weights of a mean",
        'F.embedding_bag(ids.view(2, 2), table, per_sample_weights=sw.ones(2, 2, device_mesh=mesh), mode="mean")',
        NotImplementedError,
        in_torchs_words=True,
    ),
    case(
        "weights of another shape",
        'F.embedding_bag(ids.view(2, 2), table, per_sample_weights=sw.ones(3, 2, device_mesh=mesh), mode="sum")',
        ValueError,
        in_torchs_words=True,
    ),
    case(
        "weights of another dtype",
        'F.embedding_bag(ids.view(2, 2), table, per_sample_weights=sw.ones(2, 2, device_mesh=mesh, dtype=torch.float64), mode="sum")',
        TypeError,
    ),
    case(
        "a second derivative of bags",
        "g = torch.autograd.grad(F.embedding_bag(ids.view(2, 2), table).square().sum(), table, create_graph=True)[0]\ng.sum().backward()",
        NotImplementedError,
    ),
    case(
        "a second derivative of bags with weights",
        """
        weights = sw.ones(2, 2, device_mesh=mesh).requires_grad_()
        bags = F.embedding_bag(ids.view(2, 2), table, per_sample_weights=weights, mode="sum")
        torch.autograd.grad(bags.sum(), weights, create_graph=True)[0].sum().backward()
        """,
        NotImplementedError,
    ),
    case(
        "an optimizer of a plain table", "sw.optim.FusedSGD([torch.nn.Parameter(torch.ones(3, 2))], lr=0.1)", TypeError
    ),
    case("an optimizer of a table without gradients", "sw.optim.FusedSGD([table.detach()], lr=0.1)", ValueError),
    case(
        "an optimizer of a vector",
        "sw.optim.FusedSGD([torch.nn.Parameter(sw.ones(3, device_mesh=mesh))], lr=0.1)",
        ValueError,
    ),
    case(
        "an optimizer of integers",
        "sw.optim.FusedSGD([torch.nn.Parameter(sw.ones(3, 2, device_mesh=mesh, dtype=torch.complex64))], lr=0.1)",
        TypeError,
    ),
    case(
        "an optimizer of ranges of rows on a mesh of several dims",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        ranges = sw.ones(10, 4, device_mesh=grid, placements=[RaggedShard((0,), (1, 1)), Replicate()])
        sw.optim.FusedSGD([torch.nn.Parameter(ranges)], lr=0.1)
        """,
        NotImplementedError,
    ),
    case(
        "a second optimizer",
        "first = sw.optim.FusedSGD([table], lr=0.1)\nsw.optim.FusedSGD([table], lr=0.1)",
        ValueError,
    ),
    case(
        "a copy of an optimizer",
        "import copy\noptimizer = sw.optim.FusedSGD([table], lr=0.1)\ncopy.deepcopy(optimizer)",
        TypeError,
    ),
    case(
        "a state of another optimizer",
        "import shardwise.optim\nfirst = sw.optim.FusedSGD([table], lr=0.1)\nstate = first.state_dict()\nfirst.close()\nsw.optim.FusedAdagrad([table], lr=0.1).load_state_dict(state)",
        ValueError,
    ),
    case(
        "a state of another shape",
        "import shardwise.optim\noptimizer = sw.optim.FusedAdagrad([table], lr=0.1)\nsaved = optimizer.state_dict()\nsaved['state'][0]['sum'] = torch.zeros(3)\noptimizer.load_state_dict(saved)",
        ValueError,
    ),
    case("quantising a plain table", "sw.quantize_rows(torch.ones(3, 2))", TypeError),
    case("quantising a vector", "sw.quantize_rows(sw.ones(3, device_mesh=mesh))", ValueError),
    case("quantising integers", "sw.quantize_rows(sw.ones(3, 2, device_mesh=mesh, dtype=torch.int64))", TypeError),
    case("quantising to 4 bits", "sw.quantize_rows(table.detach(), torch.uint8)", TypeError),
    case("quantising what is not finite", "sw.quantize_rows(table.detach() / 0)", ValueError),
    case(
        "quantising ranges on a mesh of several dims",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        sw.quantize_rows(sw.ones(10, 4, device_mesh=grid, placements=[RaggedShard((0, 1), (1, 2)), Replicate()]))
        """,
        NotImplementedError,
    ),
    case("quantising a sum", "sw.quantize_rows(DTensor.from_local(torch.ones(10, 4), mesh, [Partial()]))", ValueError),
    case(
        "quantising a table on meta",
        'sw.quantize_rows(sw.distribute_tensor(torch.ones(10, 4, device="meta"), mesh, [Shard(0)]))',
        ValueError,
    ),
    case(
        "bags of quantised rows from ids of three dims",
        "sw.quantize_rows(table.detach()).lookup_bags(ids.view(1, 2, 2))",
        ValueError,
    ),
    case(
        "ids that are not flat beside offsets",
        "torch.embedding_bag(table, ids.view(2, 2), sw.zeros(1, device_mesh=mesh, dtype=torch.int64))",
        ValueError,
    ),
    case(
        "a mode that does not exist",
        "torch.embedding_bag(table, ids, sw.zeros(1, device_mesh=mesh, dtype=torch.int64), False, 7)",
        ValueError,
    ),
    case(
        "a padding row of bags that does not exist",
        "torch.embedding_bag(table, ids, sw.zeros(1, device_mesh=mesh, dtype=torch.int64), False, 0, False, None, False, 99)",
        ValueError,
    ),
    case(
        "a last offset that is not there",
        "torch.embedding_bag(table, ids, sw.zeros(0, device_mesh=mesh, dtype=torch.int64), False, 0, False, None, True)",
        ValueError,
    ),
    case(
        "ids without bags",
        "torch.embedding_bag(table, ids, sw.zeros(0, device_mesh=mesh, dtype=torch.int64))",
        ValueError,
    ),
    case(
        "offsets of two dims, by the operator",
        "torch.embedding_bag(table, ids, sw.zeros(1, 1, device_mesh=mesh, dtype=torch.int64))",
        ValueError,
    ),
    case(
        "a table that was cast under its optimizer",
        "optimizer = sw.optim.FusedSGD([table], lr=0.1)\ntable.data = table.data.double()\nF.embedding(ids, table).sum().backward()",
        ValueError,
    ),
    case(
        "weights of a mean, by the operator",
        "torch.embedding_bag(table, ids, sw.zeros(1, device_mesh=mesh, dtype=torch.int64), False, 1, False, sw.ones(4, device_mesh=mesh))",
        ValueError,
    ),
    case(
        "weights of another shape, by the operator",
        "torch.embedding_bag(table, ids, sw.zeros(1, device_mesh=mesh, dtype=torch.int64), False, 0, False, sw.ones(3, device_mesh=mesh))",
        ValueError,
    ),
    case("a padding row that does not exist, by the operator", "torch.embedding(table, ids, 10)", ValueError),
    case(
        "norms of rows of integers",
        "torch.embedding_renorm_(sw.ones(10, 4, device_mesh=mesh, dtype=torch.int64), ids, 1.0, 2.0)",
        TypeError,
    ),
    case("a quantised table of one dim", "sw.QuantizedTable.zeros((3,), device_mesh=mesh)", ValueError),
    case(
        "a quantised table of integers",
        "sw.QuantizedTable.zeros((3, 2), device_mesh=mesh, dtype=torch.int64)",
        TypeError,
    ),
    case(
        "a quantised table that is a sum",
        "sw.QuantizedTable.zeros((3, 2), device_mesh=mesh, placements=[Partial()])",
        ValueError,
    ),
    case(
        "numbers of a quantised table that lack some",
        "sw.QuantizedTable.zeros((10, 4), device_mesh=mesh).load_state_dict({})",
        ValueError,
    ),
    case(
        "plain numbers of a quantised table",
        "small = sw.quantize_rows(table.detach())\nsmall.load_state_dict(small.state_dict() | {'scales': torch.ones(10)})",
        TypeError,
    ),
    case(
        "numbers of a quantised table of another dtype",
        "small = sw.quantize_rows(table.detach())\nsmall.load_state_dict(small.state_dict() | {'scales': sw.ones(10, device_mesh=mesh, dtype=torch.float64)})",
        TypeError,
    ),
    case(
        "numbers of a quantised table of another shape",
        "small = sw.quantize_rows(table.detach())\nsmall.load_state_dict(small.state_dict() | {'scales': sw.ones(9, device_mesh=mesh)})",
        ValueError,
    ),
    case(
        "numbers of a quantised table that are sums",
        "small = sw.quantize_rows(table.detach())\nsmall.load_state_dict(small.state_dict() | {'scales': DTensor.from_local(torch.ones(10), mesh, [Partial()])})",
        ValueError,
    ),
    case(
        "numbers of a quantised table that are not finite",
        "small = sw.quantize_rows(table.detach())\nsmall.load_state_dict(small.state_dict() | {'scales': sw.ones(10, device_mesh=mesh) / 0})",
        ValueError,
    ),
    case(
        "a forward-mode derivative of bags",
        """
        import torch.autograd.forward_ad as forward_ad
        with forward_ad.dual_level():
            F.embedding_bag(ids.view(2, 2), forward_ad.make_dual(table.detach(), table.detach()))
        """,
        NotImplementedError,
        of_processes=True,
    ),
    case(
        "a step of a table that the optimizer has no group of",
        """
        optimizer = sw.optim.FusedSGD([table], lr=0.1)
        optimizer.param_groups.clear()
        F.embedding(ids, table).sum().backward()
        """,
        RuntimeError,
    ),
    case(
        "an unknown mode of bags of quantised rows",
        'sw.quantize_rows(table.detach()).lookup_bags(ids.view(2, 2), mode="min")',
        ValueError,
    ),
]
