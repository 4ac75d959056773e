"""What local tensors of a class of their own refuse."""

from error_cases import case

TITLE = "Local tensors of a class of their own"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()


class Coded(torch.Tensor):
    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.neg.default:
            return torch.zeros(1)
        raise NotImplementedError(f"Coded has no {func}")


coded = DTensor.from_local(Coded((3, 2)), mesh, [Shard(0)])
"""
CASES = [
    case("an operator that the class refuses", "coded.exp()", NotImplementedError, in_torchs_words=True),
    case("an operator that gives another shape", "-coded", ValueError, is_of_rank=True),
    case("a move", "coded.full_tensor()", NotImplementedError),
    case(
        "a part, where the class takes none",
        "sw.distribute_tensor(Coded((6, 2)), mesh, [Shard(0)])",
        NotImplementedError,
    ),
    case("a sum of them", "sw.distribute_tensor(Coded((6, 2)), mesh, [Partial()])", ValueError),
    case(
        "a comparison of values",
        "DTensor.from_local(Coded((3, 2)), mesh, [Shard(0)], run_check=True)",
        ValueError,
    ),
    case(
        "sizes that do not add up",
        "DTensor.from_local(Coded((3, 2)), mesh, [Shard(0)], shape=(7, 2), stride=(2, 1))",
        ValueError,
    ),
    case(
        "a shape of other dims",
        "DTensor.from_local(Coded((3, 2)), mesh, [Shard(0)], shape=(6,), stride=(1,))",
        ValueError,
    ),
    case(
        "sizes that differ along replicas",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        DTensor.from_local(Coded((1 + rank, 2)), grid, [Replicate(), Shard(0)], shape=(2, 2), stride=(2, 1))
        """,
        ValueError,
    ),
    case(
        "a parameter for fully_shard",
        """
        layer = torch.nn.Linear(2, 6, bias=False)
        layer.weight = torch.nn.Parameter(coded, requires_grad=False)
        sw.fully_shard(layer, mesh=mesh)
        """,
        TypeError,
    ),
]
