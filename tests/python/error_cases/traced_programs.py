"""What torch.compile, make_fx and torch.export cannot take into a graph."""

from error_cases import case

TITLE = "Traced programs"
SETUP = """
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

mesh = sw.init_device_mesh("cpu", (2,))
x = sw.ones(4, 3, device_mesh=mesh, placements=[Shard(0)])
names, layout = x.__tensor_flatten__()
tracing = FakeTensorMode()
"""
CASES = [
    case(
        "random numbers in a graph",
        "with tracing:\n    torch.multinomial(tracing.from_tensor(x), 1)",
        NotImplementedError,
    ),
    case(
        "a lookup in a graph",
        "with tracing:\n    F.embedding(tracing.from_tensor(sw.zeros(2, dtype=torch.long, device_mesh=mesh)), tracing.from_tensor(x), sparse=True)",
        NotImplementedError,
    ),
    case(
        "a result in a graph whose size depends on values",
        """
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        with FakeTensorMode(shape_env=ShapeEnv()) as mode:
            torch.bincount(mode.from_tensor(sw.zeros(4, dtype=torch.long, device_mesh=mesh)))
        """,
        NotImplementedError,
    ),
    case(
        "a move in a graph of whole DTensors",
        'make_fx(lambda x: x.redistribute(placements=[Shard(1)]), tracing_mode="fake")(x)',
        NotImplementedError,
        of_processes=True,
    ),
    case(
        "a step that no program of this process was traced with",
        'torch.ops.shardwise.start_move([torch.ones(2)], "[Shard(0)] -> [Shard(1)]")',
        ValueError,
    ),
    case(
        "another number of pieces than a layout has",
        "DTensor.__tensor_unflatten__({}, layout, x.shape, x.stride())",
        ValueError,
    ),
    case(
        "a piece of other sizes than a layout has",
        "DTensor.__tensor_unflatten__({names[0]: torch.ones(5)}, layout, x.shape, x.stride())",
        ValueError,
    ),
]
