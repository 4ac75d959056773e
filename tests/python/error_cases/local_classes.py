"""What local tensors of a class of their own refuse."""

from error_cases import case

TITLE = "Local tensors of a class of their own"
SETUP = """
import threading
from shardwise.checkpoint import inner_tensors
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


class Placed(Coded):
    shard_offsets = [(0, 0)]


class Sliced(Coded):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func is torch.ops.aten.slice.Tensor
        return cls((args[3] - args[2], 2))


class Packed(torch.Tensor):
    # numbers, and a scale for `block` rows; without blocks one for all

    @staticmethod
    def __new__(cls, numbers, scale, block=None):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape)

    def __init__(self, numbers, scale, block=None):
        self.numbers, self.scale, self.block = numbers, scale, block

    def __tensor_flatten__(self):
        return ["numbers", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func is torch.ops.aten.slice.Tensor
        x, dim, begin, end = args
        scale = x.scale[begin // x.block : end // x.block] if x.block else x.scale
        return cls(func(x.numbers, dim, begin, end), scale, x.block)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["numbers"], inner["scale"])


class Sized(Packed):
    def __tensor_flatten__(self):
        return ["numbers", "scale"], tuple(self.shape)


class Keyed(Packed):
    def __tensor_flatten__(self):
        return ["numbers", "scale"], threading.Lock()


coded = DTensor.from_local(Coded((3, 2)), mesh, [Shard(0)])
packed = DTensor.from_local(Packed(torch.ones(4, 2), torch.tensor([rank])), mesh, [Shard(0)])
keyed = DTensor.from_local(Keyed(torch.ones(4, 2), torch.ones(1)), mesh, [Shard(0)])
sized = DTensor.from_local(Sized(torch.ones(4, 2), torch.ones(1)), mesh, [Shard(0)])
"""
CASES = [
    case("an operator that the class refuses", "coded.exp()", NotImplementedError, in_torchs_words=True),
    case("an operator that gives another shape", "-coded", ValueError, is_of_rank=True),
    case(
        "a nested tensor",
        "DTensor.from_local(torch.nested.nested_tensor([torch.ones(2, 3)], layout=torch.jagged), mesh, [Shard(0)])",
        NotImplementedError,
    ),
    case("random numbers in its memory", "coded.uniform_()", NotImplementedError),
    case("a move", "coded.full_tensor()", NotImplementedError),
    case(
        "a move to another mesh",
        'coded.redistribute(sw.init_device_mesh("cpu", (2, 1)), [Shard(0), Replicate()])',
        NotImplementedError,
    ),
    case("a context that pickle does not take", "keyed.full_tensor()", NotImplementedError),
    case("a checkpoint of a context with an address", 'inner_tensors({"weight": keyed})', TypeError),
    case("a sum that moves", "DTensor.from_local(Coded((3, 2)), mesh, [Partial()]).full_tensor()", ValueError),
    case("a move to pieces", "coded.redistribute(placements=[RaggedShard((0,), (1, 2))])", ValueError),
    case(
        "a part in memory of its own, where the class copies nothing",
        "DTensor.from_local(Sliced((4, 2)), mesh, [Replicate()]).redistribute(placements=[Shard(0)])",
        NotImplementedError,
    ),
    case("parts that belong to no object", "packed.full_tensor()", ValueError),
    case("parts that only the class could join", "sized.full_tensor()", NotImplementedError),
    case(
        "objects of two classes",
        "DTensor.from_local((Packed if rank else Sized)(torch.ones(4, 2), torch.ones(1)), mesh, [Shard(0)]).full_tensor()",
        ValueError,
    ),
    case(
        "a quantised weight that is trained",
        """
        own = Packed(torch.ones(4, 2, dtype=torch.int8), torch.ones(1))
        DTensor.from_local(own, mesh, [Shard(0)]).requires_grad_() * 2
        """,
        ValueError,
    ),
    case("a checkpoint of a context with sizes", "inner_tensors(sized)", NotImplementedError),
    case("a checkpoint of two scales for all ranks", "inner_tensors(packed)", ValueError),
    case(
        "a checkpoint of blocks that differ",
        """
        block = 1 + rank
        own = Packed(torch.ones(4, 2), torch.ones(4 // block), block)
        inner_tensors(DTensor.from_local(own, mesh, [Shard(0)]))
        """,
        ValueError,
    ),
    case(
        "a checkpoint of scales that no slice tells apart",
        """
        own = Packed(torch.ones(4, 2), torch.ones(6), 1)
        inner_tensors(DTensor.from_local(own, mesh, [Shard(0)]))
        """,
        NotImplementedError,
    ),
    case(
        "a part, where the class takes none",
        "sw.distribute_tensor(Coded((6, 2)), mesh, [Shard(0)])",
        NotImplementedError,
        is_of_rank=True,
    ),
    case("a sum of them", "sw.distribute_tensor(Coded((6, 2)), mesh, [Partial()])", ValueError),
    case(
        "a plain tensor beside it",
        "DTensor.from_local(torch.ones(3, 2) if rank else Coded((3, 2)), mesh, [Shard(0)], run_check=True)",
        ValueError,
    ),
    case(
        "sizes that do not add up",
        "DTensor.from_local(Placed((3, 2)), mesh, [Shard(0)], shape=(7, 2), stride=(2, 1))",
        ValueError,
    ),
    case(
        "a shape of other dims",
        "DTensor.from_local(Placed((3, 2)), mesh, [Shard(0)], shape=(6,), stride=(1,))",
        ValueError,
    ),
    case(
        "sizes that differ along replicas",
        """
        grid = sw.init_device_mesh("cpu", (2, 1))
        DTensor.from_local(Placed((1 + rank, 2)), grid, [Replicate(), Shard(0)], shape=(2, 2), stride=(2, 1))
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
