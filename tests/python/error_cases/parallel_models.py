"""What parallelize_module, styles, model-parallel layers and shared attention refuse."""

from error_cases import case

TITLE = "Parallel models"
SETUP = """
from torch import nn
from shardwise import parallel

mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
grid = sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
x = torch.ones(3, 4)
d = sw.distribute_tensor(x, mesh, [Shard(0)])
"""
CASES = [
    case(
        "a plan for a module that is not there",
        'parallel.parallelize_module(model, mesh, {"layers.*.up": parallel.ColwiseParallel()})',
        ValueError,
    ),
    case("a plan that is no plan", 'parallel.parallelize_module(model, mesh, "colwise")', TypeError),
    case("a mesh of two dims", "parallel.parallelize_module(model[0], grid, parallel.ColwiseParallel())", ValueError),
    case(
        "a style for a module without weights",
        "parallel.parallelize_module(model[1], mesh, parallel.ColwiseParallel())",
        NotImplementedError,
    ),
    case(
        "a weight that only its library reads",
        """
        class Packed(nn.Parameter):  # such as bitsandbytes' Params4bit
            pass


        layer = nn.Linear(4, 4)
        layer.weight = Packed(torch.zeros(8, 1), requires_grad=False)
        parallel.parallelize_module(layer, mesh, parallel.ColwiseParallel())
        """,
        TypeError,
    ),
    case(
        "layouts of another number",
        "parallel.PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(Replicate(), Replicate()))",
        AssertionError,
    ),
    case(
        "more layouts than inputs",
        "parallel.parallelize_module(model, mesh, parallel.PrepareModuleInput(input_layouts=(Shard(0), Shard(0)), desired_input_layouts=(Replicate(), Replicate())))(x)",
        ValueError,
    ),
    case(
        "a layout for what is no tensor",
        "parallel.parallelize_module(nn.Identity(), mesh, parallel.PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate()))(3)",
        AssertionError,
    ),
    case("an input of another width", "parallel.ColumnParallelLinear(4, 6)(torch.ones(3, 5))", ValueError),
    case(
        "a part of another width",
        "parallel.RowParallelLinear(4, 6, input_is_parallel=True)(torch.ones(3, 4))",
        ValueError,
        is_of_rank=True,
    ),
    case("a stride of no blocks", "parallel.ColumnParallelLinear(4, 6, stride=0)", ValueError),
    case(
        "a stride on a mesh of two dims",
        "parallel.ColumnParallelLinear(4, 6, stride=3, mesh=grid, mesh_dim=1)",
        ValueError,
    ),
    case("a mesh dim that does not exist", "parallel.ColumnParallelLinear(4, 6, mesh=mesh, mesh_dim=1)", IndexError),
    case(
        "a bias that is not there",
        "parallel.ColumnParallelLinear(4, 6, bias=False, master_bias=torch.ones(6))",
        ValueError,
    ),
    case(
        "a master of another shape", "parallel.ColumnParallelLinear(4, 6, master_weight=torch.ones(3, 3))", ValueError
    ),
    case("a layer on another device", 'parallel.ColumnParallelLinear(4, 6, mesh=mesh, device="cuda")', ValueError),
    case("a padding row that does not exist", "parallel.ParallelEmbedding(10, 4, padding_idx=10)", IndexError),
    case("moves from another layout", "parallel.mp_gather(d, 1)", ValueError),
    case("a move along a dim that does not exist", "parallel.mp_scatter(x, 5, mesh)", IndexError),
    case("a move on a mesh dim that does not exist", "parallel.mp_scatter(x, 0, mesh, 3)", IndexError),
    case(
        "a reduction of the gradient of a DTensor",
        'parallel.mp_copy(sw.ones(3, device_mesh=mesh), reduce_op="max")',
        ValueError,
    ),
    case("a DTensor on another mesh", 'parallel.mp_reduce(d, sw.DeviceMesh("cpu", [1, 0]))', ValueError),
    case(
        "context parallelism of flex_attention",
        """
        from shardwise.experimental._attention import _ContextParallel
        _ContextParallel(seq_dim=2, attention_type=_ContextParallel.AttentionType.FLEX)
        """,
        NotImplementedError,
    ),
    case(
        "context parallelism along another dim",
        """
        from shardwise.experimental._attention import _ContextParallel
        _ContextParallel(seq_dim=1, attention_type=_ContextParallel.AttentionType.SDPA)
        """,
        NotImplementedError,
    ),
    case(
        "an unknown balancer of positions",
        """
        from shardwise.experimental._attention import _context_parallel_shard
        _context_parallel_shard(mesh, [torch.ones(4)], [0], load_balancer=object())
        """,
        NotImplementedError,
    ),
    case(
        "a mask of flex_attention that is to be sharded",
        """
        from torch.nn.attention.flex_attention import create_block_mask
        from shardwise.experimental._attention import _context_parallel_shard
        mask = create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, device="cpu")
        _context_parallel_shard(mesh, [mask], [2])
        """,
        NotImplementedError,
    ),
    case(
        "positions that do not divide",
        """
        from shardwise.experimental._attention import _context_parallel_shard
        _context_parallel_shard(mesh, [torch.ones(5)], [0])
        """,
        ValueError,
    ),
    case(
        "causal attention with a mask",
        """
        q = torch.ones(1, 2, 4, 8)
        with sw.experimental.context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
            F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(4, 4), is_causal=True)
        """,
        ValueError,
    ),
    case(
        "sequences over a mesh of two dims",
        "with sw.experimental.context_parallel(grid, buffers=[x], buffer_seq_dims=[0]): pass",
        ValueError,
    ),
    case(
        "fewer dims than buffers",
        "with sw.experimental.context_parallel(mesh, buffers=[x], buffer_seq_dims=[]): pass",
        ValueError,
    ),
    case(
        "a buffer that is a DTensor",
        "with sw.experimental.context_parallel(mesh, buffers=[d], buffer_seq_dims=[0]): pass",
        ValueError,
    ),
    case(
        "a buffer without that dim",
        "with sw.experimental.context_parallel(mesh, buffers=[x], buffer_seq_dims=[4]): pass",
        ValueError,
    ),
    case(
        "buffers to keep that are not shared",
        "with sw.experimental.context_parallel(mesh, buffers=[x], buffer_seq_dims=[0], no_restore_buffers={torch.ones(1)}): pass",
        ValueError,
    ),
    case(
        "clipping to norms that are not finite",
        "p = nn.Parameter(d * 1)\np.grad = d / 0\ntorch.nn.utils.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)",
        RuntimeError,
    ),
    case("a layer of a negative width", "parallel.ColumnParallelLinear(4, -6)", ValueError),
    case(
        "logits of a number",
        "parallel.VocabParallelCrossEntropy(mesh=mesh)(torch.tensor(1.0), torch.tensor(0))",
        ValueError,
    ),
    case("parts of several shapes", "parallel.mp_gather(torch.ones(3, 2 + rank), 0, mesh)", ValueError),
    case(
        "parts of several dtypes",
        "parallel.mp_gather(torch.ones(3).to([torch.float32, torch.float64][rank]), 0, mesh)",
        ValueError,
    ),
    case("an unknown distribution of weights", 'parallel.ColumnParallelLinear(4, 6, init_type="gauss")', ValueError),
    case(
        "labels that are not this rank's",
        """
        logits = sw.distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
        with parallel.loss_parallel():
            F.cross_entropy(logits, torch.zeros(4, dtype=torch.int64))
        """,
        ValueError,
    ),
    case(
        "an input by its name",
        "parallel.parallelize_module(nn.Linear(4, 4), mesh, parallel.ColwiseParallel())(input=x)",
        ValueError,
    ),
    case(
        "attention of DTensors within shared sequences",
        """
        q = torch.ones(1, 2, 4, 8)
        whole = sw.distribute_tensor(q, mesh, [Shard(2)])
        with sw.experimental.context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
            F.scaled_dot_product_attention(whole, whole, whole)
        """,
        ValueError,
    ),
    case(
        "a mask of other columns",
        """
        q = torch.ones(1, 2, 4, 8)
        with sw.experimental.context_parallel(mesh, buffers=[q], buffer_seq_dims=[2]):
            F.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(4, 3))
        """,
        ValueError,
    ),
    case(
        "sequences that a rank cannot tell apart",
        "with sw.experimental.context_parallel(mesh, buffers=[torch.ones(3), torch.ones(4)], buffer_seq_dims=[0, 0]): pass",
        ValueError,
    ),
    case(
        "clipping to the norm of gradients of which one rank lacks some",
        "parameters = [nn.Parameter(d * 1), nn.Parameter(d * 1)]\nparameters[0].grad = d\n"
        "if mesh.get_rank() == 1:\n    parameters[1].grad = d\ntorch.nn.utils.clip_grad_norm_(parameters, 1.0)",
        ValueError,
    ),
    case(
        "clipping to the norm of gradients that no rank has all of",
        """
        parameters = [nn.Parameter(sw.ones(2, device_mesh=sw.DeviceMesh("cpu", [each]))) for each in range(2)]
        for p in parameters:
            p.grad = p.detach()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        """,
        ValueError,
        is_of_rank=True,
    ),
    case(
        "clipping beside gradients of other ranks",
        """
        far = nn.Parameter(sw.ones(2, device_mesh=sw.DeviceMesh("cpu", [0])))
        far.grad = far.detach()
        near = nn.Parameter(torch.ones(2))
        near.grad = torch.ones(2)
        torch.nn.utils.clip_grad_norm_([far, near], 1.0)
        """,
        ValueError,
        only_on=1,
    ),
    case(
        "an unknown rotation of keys",
        'from shardwise.experimental._attention import set_rotate_method\nset_rotate_method("circle")',
        NotImplementedError,
    ),
    case(
        "an unknown reduction of losses",
        'parallel.VocabParallelCrossEntropy(reduction="max")(x, torch.zeros(3, dtype=torch.int64))',
        ValueError,
    ),
]
