"""What fully_shard, its modules and torch's own data parallelism refuse."""

from error_cases import case

TITLE = "Fully sharded models"
SETUP = """
from torch import nn

mesh = sw.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
model = sw.fully_shard(nn.Linear(4, 4), mesh=mesh)


class Packed(torch.Tensor):
    @staticmethod
    def __new__(cls, values, given=None, made=None):
        return torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype)

    def __init__(self, values, given=None, made=None):
        self.values_, self.given, self.made = values, given, made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(args[0].values_, *args[1:]), args[0].given, args[0].made)
    def fsdp_pre_all_gather(self, mesh):
        return self.given(self.values_)

    def fsdp_post_all_gather(self, gathered, metadata, param_dtype, *, out=None):
        return self.made(gathered)


def packed(given, made=None):
    layer = nn.Linear(4, 4, bias=False)
    layer.weight = nn.Parameter(Packed(layer.weight.detach(), given, made))
    return sw.fully_shard(layer, mesh=mesh)
"""
CASES = [
    case("a module twice", "sw.fully_shard(model, mesh=mesh)", AssertionError),
    case("a module without a forward", "sw.fully_shard(nn.ModuleList([nn.Linear(2, 2)]), mesh=mesh)", ValueError),
    case("no module", 'sw.fully_shard("model", mesh=mesh)', TypeError),
    case("no modules", "sw.fully_shard([], mesh=mesh)", ValueError),
    case(
        "an inner module after the outer one",
        "outer = sw.fully_shard(nn.Sequential(nn.Linear(2, 2)), mesh=mesh)\nsw.fully_shard(outer[0], mesh=mesh)",
        ValueError,
    ),
    case(
        "a parameter that another group has",
        "pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))\npair[1].weight = pair[0].weight\n"
        "sw.fully_shard(pair[0], mesh=mesh)\nsw.fully_shard(pair, mesh=mesh)",
        ValueError,
    ),
    case(
        "a mesh of three dims",
        'cube = sw.init_device_mesh("cpu", (2, 1, 1), mesh_dim_names=("a", "b", "c"))\nsw.fully_shard(nn.Linear(2, 2), mesh=cube)',
        ValueError,
    ),
    case(
        "parameters that are on the mesh already",
        "sw.fully_shard(sw.distribute_module(nn.Linear(2, 2), mesh), mesh=mesh)",
        ValueError,
    ),
    case(
        "parameters on a mesh without a common root",
        'grid = sw.init_device_mesh("cpu", (1, 2), mesh_dim_names=("rep", "tp"))\n'
        'sw.fully_shard(sw.distribute_module(nn.Linear(2, 2), grid["tp"]), mesh=mesh)',
        ValueError,
    ),
    case(
        "parts of given sizes along dim 0",
        'grid = sw.init_device_mesh("cpu", (1, 2), mesh_dim_names=("rep", "tp"))\nlayer = nn.Linear(2, 4)\n'
        'layer.weight = nn.Parameter(sw.distribute_tensor(layer.weight.detach(), grid["tp"], [Shard(0, sizes=[1, 3])]))\n'
        'sw.fully_shard(layer, mesh=grid["rep"], shard_placement_fn=lambda parameter: Shard(0))',
        ValueError,
    ),
    case(
        "a module that another one shares",
        "shared = nn.Linear(4, 4)\npair = nn.Sequential(nn.Sequential(shared), nn.Sequential(shared))\n"
        "sw.fully_shard(pair[0], mesh=mesh)\nsw.fully_shard(pair, mesh=mesh)(torch.ones(2, 4))",
        ValueError,
    ),
    case(
        "a call on a rank that is not on the mesh",
        'sw.fully_shard(nn.Linear(2, 2), mesh=sw.DeviceMesh("cpu", [0]))(torch.ones(2, 2))',
        ValueError,
        only_on=1,
    ),
    case(
        "resharding to a number of ranks that does not divide",
        "sw.fully_shard(nn.Linear(2, 2), mesh=mesh, reshard_after_forward=3)",
        ValueError,
    ),
    case(
        "resharding to what is no number of ranks",
        'sw.fully_shard(nn.Linear(2, 2), mesh=mesh, reshard_after_forward="half")',
        ValueError,
    ),
    case(
        "a dim to shard that a parameter lacks",
        "sw.fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda parameter: Shard(1))",
        IndexError,
    ),
    case(
        "a placement of a parameter that is no Shard",
        "sw.fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda parameter: Replicate())",
        ValueError,
    ),
    case(
        "a shard_placement_fn that gives no placement",
        "sw.fully_shard(nn.Linear(2, 2), mesh=mesh, shard_placement_fn=lambda parameter: 1)",
        ValueError,
    ),
    case("a policy that is none", "sw.fully_shard(nn.Linear(2, 2), mesh=mesh, mp_policy=torch.bfloat16)", TypeError),
    case("an offload policy that is none", "sw.fully_shard(nn.Linear(2, 2), mesh=mesh, offload_policy=3)", TypeError),
    case("resharding that is no bool", "model.set_reshard_after_forward(2)", ValueError),
    case("to gather ahead what is not sharded", "model.set_modules_to_forward_prefetch([nn.ReLU()])", ValueError),
    case("to share streams with what is not sharded", "sw.fsdp.share_comm_ctx([model, nn.ReLU()])", ValueError),
    case("another all-gather", "model.set_custom_all_gather(print)", NotImplementedError),
    case("another reduce-scatter", "model.set_custom_reduce_scatter(print)", NotImplementedError),
    case("symmetric memory", "model.set_symm_mem_for_comm()", NotImplementedError),
    case("a number of buffers that is no number", "model.set_reduce_scatter_max_input_buffers(True)", TypeError),
    case("no buffers", "model.set_reduce_scatter_max_input_buffers(0)", ValueError),
    case(
        "a stream beside replicas",
        'grid = sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("rep", "dp"))\n'
        "sw.fully_shard(nn.Linear(2, 2), mesh=grid).set_all_reduce_hook(print, stream=object())",
        ValueError,
    ),
    case("a method that is not there", 'sw.fsdp.register_fsdp_forward_method(model, "generate")', ValueError),
    case("a copy of the module", "import copy\ncopy.deepcopy(model)", AssertionError),
    case("a batch that is a DTensor", "model(sw.distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))", ValueError),
    case(
        "a parameter that is a sum",
        """
        grid = sw.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
        layer = nn.Linear(4, 4, bias=False)
        layer.weight = nn.Parameter(sw.DTensor.from_local(torch.ones(4, 4), grid["tp"], [Partial()]))
        sw.fully_shard(layer, mesh=grid["dp"])
        """,
        ValueError,
    ),
    case(
        "parameters on meta",
        'with torch.device("meta"):\n    empty = nn.Linear(4, 4)\nsw.fully_shard(empty, mesh=mesh)(torch.ones(2, 4))',
        ValueError,
    ),
    case(
        "another layout in the place of a part",
        "model.weight = nn.Parameter(sw.distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)]))\nmodel(torch.ones(2, 4))",
        ValueError,
    ),
    case(
        "DistributedDataParallel of DTensors",
        "nn.parallel.DistributedDataParallel(sw.distribute_module(nn.Linear(4, 4), mesh))",
        TypeError,
        of_processes=True,
    ),
    case(
        "DistributedDataParallel of a fully sharded module",
        "nn.parallel.DistributedDataParallel(model)",
        TypeError,
        of_processes=True,
    ),
    case(
        "a class without operators of its own",
        """
        class Tagged(torch.Tensor):
            fsdp_pre_all_gather = Packed.fsdp_pre_all_gather

        layer = nn.Linear(4, 4, bias=False)
        layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Tagged))
        sw.fully_shard(layer, mesh=mesh)
        """,
        TypeError,
    ),
    case(
        "fsdp_pre_all_gather with other arguments",
        """
        class Other(Packed):
            def fsdp_pre_all_gather(self, mesh, module):
                return (self.values_,), None

        layer = nn.Linear(4, 4, bias=False)
        layer.weight = nn.Parameter(Other(layer.weight.detach()))
        sw.fully_shard(layer, mesh=mesh)
        """,
        TypeError,
    ),
    case("fsdp_pre_all_gather without metadata", "packed(lambda values: (values,)).unshard()", TypeError),
    case(
        "fsdp_pre_all_gather with a sparse tensor",
        "packed(lambda values: ((values.to_sparse(),), None)).unshard()",
        TypeError,
    ),
    case(
        "fsdp_pre_all_gather with a tensor on another device",
        'packed(lambda values: ((values.to("meta"),), None)).unshard()',
        ValueError,
    ),
    case(
        "fsdp_pre_all_gather with other tensors on another rank",
        "packed(lambda values: ((values,) * (1 + mesh.get_rank()), None)).unshard()",
        ValueError,
    ),
    case(
        "fsdp_pre_all_gather with other sizes than before",
        """
        rows = [1, 2]
        model = packed(lambda values: ((values[: rows[-1]],), None), lambda gathered: (torch.zeros(4, 4), ()))
        model.unshard()
        model.reshard()
        rows.append(1)
        model.unshard()
        """,
        ValueError,
    ),
    case(
        "fsdp_post_all_gather with another shape",
        "packed(lambda values: ((values,), None), lambda gathered: (gathered[0][:1], ())).unshard()",
        ValueError,
    ),
    case(
        "fsdp_post_all_gather with a tensor alone",
        "packed(lambda values: ((values,), None), lambda gathered: gathered[0]).unshard()",
        TypeError,
    ),
]
