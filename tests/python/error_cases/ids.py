"""What mappings of raw ids refuse."""

from error_cases import case

TITLE = "Raw ids"
SETUP = """
from shardwise.id_transform import ExactMapping, ModuloHash

mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
to_rows = ExactMapping(8, mesh, n_buckets=2)
ids = torch.tensor([2**40, 7])
table = sw.ones(8, 3, device_mesh=mesh)
"""
CASES = [
    case("a hash into no rows", "ModuloHash(0)(ids)", ValueError),
    case("a hash of floats", "ModuloHash(8)(ids.float())", TypeError),
    case("a hash of a sum", "ModuloHash(8)(DTensor.from_local(ids, mesh, [Partial()]))", ValueError),
    case("a mapping on a mesh of two dims", 'ExactMapping(8, sw.init_device_mesh("cpu", (2, 1)))', ValueError),
    case("a mapping to one row", "ExactMapping(1, mesh)", ValueError),
    case("more buckets than rows", "ExactMapping(8, mesh, n_buckets=8)", ValueError),
    case("a default row that is none", "ExactMapping(8, mesh, default_row=8)", ValueError),
    case("ids of floats", "to_rows(ids.float())", TypeError),
    case("more ids than a bucket holds", "to_rows(torch.arange(20))", ValueError),
    case(
        "training on one rank and evaluation on the other",
        "to_rows.train(rank == 0)\nto_rows(ids)",
        ValueError,
    ),
    case("rows of a table of another height", "to_rows.reset_rows(sw.ones(5, 3, device_mesh=mesh))", ValueError),
    case("an unknown distribution", 'to_rows.reset_rows(table, init="cauchy")', ValueError),
    case(
        "random numbers for rows of two dims",
        'to_rows.reset_rows(sw.ones(8, 3, 2, device_mesh=mesh), init="normal")',
        ValueError,
    ),
    case(
        "a state of another mapping",
        "to_rows.load_state_dict(ExactMapping(8, mesh, n_buckets=2, default_row=1).state_dict())\nto_rows(ids)",
        ValueError,
    ),
    case("a state of another dtype", "to_rows.counts = to_rows.counts.int()\nto_rows(ids)", ValueError),
    case(
        "a state that is corrupt",
        """
        to_rows(ids)
        to_rows.ids.copy_(to_rows.ids.flip(0))
        to_rows.last_used.fill_(0)
        to_rows(ids)
        """,
        ValueError,
    ),
    case("a mapping on other ranks", 'ExactMapping(8, sw.DeviceMesh("cpu", [0]))(ids)', ValueError, only_on=1),
    case(
        "ids on other ranks",
        'ExactMapping(8, mesh)(sw.ones(3, device_mesh=sw.DeviceMesh("cpu", [0]), dtype=torch.int64))',
        ValueError,
    ),
    case(
        "rows of an optimizer that does not have the table",
        "to_rows.reset_rows(table, torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))",
        ValueError,
    ),
]
