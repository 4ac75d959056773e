"""What suggest() refuses before it searches."""

from error_cases import case

TITLE = "Search for a plan"
SETUP = """
model, batch = torch.nn.Linear(8, 8), torch.zeros(4, 8)
"""
CASES = [
    case("no model", "sw.suggest(batch, batch, ranks=2)", TypeError),
    case("a model without parameters", "sw.suggest(torch.nn.ReLU(), batch, ranks=2)", ValueError),
    case(
        "a model that is sharded already",
        """
        mesh = sw.init_device_mesh("cpu", (2,))
        sw.suggest(sw.distribute_module(model, mesh), batch, ranks=2)
        """,
        ValueError,
    ),
    case("neither ranks nor a mesh", "sw.suggest(model, batch)", ValueError),
    case("a job without ranks", "sw.suggest(model, batch, ranks=0)", ValueError),
    case("more ranks than the mesh", 'sw.suggest(model, batch, ranks=8, mesh={"shard": 2, "tp": 2})', ValueError),
    case("a mesh dim of another name", 'sw.suggest(model, batch, mesh={"dp": 4})', ValueError),
    case("no memory", "sw.suggest(model, batch, ranks=2, memory=0)", ValueError),
    case("a device without a rate", "sw.suggest(model, batch, ranks=2, flops=0)", ValueError),
    case("fewer samples than ranks that divide them", 'sw.suggest(model, batch, mesh={"shard": 8})', ValueError),
    case("a batch without tensors", "sw.suggest(model, 3, ranks=2)", ValueError),
]
