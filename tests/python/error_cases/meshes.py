"""What meshes refuse."""

from error_cases import case

TITLE = "Meshes"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
grid = sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
"""
CASES = [
    case("text in place of a mesh", 'sw.zeros(3, device_mesh="cpu")', TypeError),
    case("no mesh", "sw.zeros(3)", RuntimeError),
    case("a rank twice", 'sw.DeviceMesh("cpu", [0, 0])', ValueError),
    case("a rank that the program does not have", 'sw.DeviceMesh("cpu", [0, 5])', ValueError),
    case("a mesh larger than the program", 'sw.init_device_mesh("cpu", (4,))', ValueError),
    case("one name for two dims", 'sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp",))', RuntimeError),
    case("one name for two dims of a DeviceMesh", 'sw.DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp",))', ValueError),
    case("a name twice", 'sw.init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "dp"))', RuntimeError),
    case("a name twice in a DeviceMesh", 'sw.DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp", "dp"))', ValueError),
    case("a slice of a mesh without names", 'mesh["tp"]', RuntimeError),
    case("a name that the mesh does not have", 'grid["pp"]', KeyError),
    case("a mesh dim named twice in a slice", 'grid["dp", "dp"]', ValueError),
    case("a mesh dim that does not exist", "mesh.size(3)", IndexError),
    case("a mesh dim by an unknown name", 'grid.size("pp")', KeyError),
    case("which mesh dim is meant", "grid.get_local_rank()", RuntimeError),
    case("which group is meant", "grid.get_group()", RuntimeError),
    case("a device with an index", 'sw.DeviceMesh("cuda:0", [0])', ValueError),
    case("a device with an index, by init_device_mesh", 'sw.init_device_mesh("cuda:0", (1,))', RuntimeError),
    case("flattening a mesh without names", 'sw.DeviceMesh("cpu", [[0, 1]])._flatten()', RuntimeError),
    case("flattening by a name that is taken", 'grid._flatten("dp")', ValueError),
    case("unflattening a dim that does not exist", 'grid._unflatten("pp", (2, 1), ("a", "b"))', ValueError),
    case("unflattening into other sizes", 'grid._unflatten("dp", (3, 1), ("a", "b"))', ValueError),
    case("unflattening without a name for each size", 'grid._unflatten("dp", (2, 1), ("a",))', RuntimeError),
    case(
        "unflattening a mesh without names",
        'sw.DeviceMesh("cpu", [[0, 1]])._unflatten(1, (2, 1), ("a", "b"))',
        RuntimeError,
    ),
    case(
        "joining slices of different meshes",
        """
        other = sw.init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "cp"))
        sw.DeviceMesh._concatenate([grid["dp"], other["cp"]])
        """,
        RuntimeError,
    ),
    case(
        "overrides for another number of dims",
        'sw.init_device_mesh("cpu", (2,), backend_override={3: "gloo"})',
        RuntimeError,
    ),
    case(
        "a mesh without groups that is to send",
        'sw.zeros(4, device_mesh=sw.DeviceMesh("cpu", [0, 1], _init_backend=False), placements=[Shard(0)]).sum().item()',
        ValueError,
    ),
    case(
        "groups of a mesh without groups", 'sw.DeviceMesh("cpu", [0, 1], _init_backend=False).get_group()', RuntimeError
    ),
    case("a mesh dim without ranks", 'sw.init_device_mesh("cpu", (2, 0))', ValueError),
    case(
        "a mesh in a thread that is no rank",
        """
        from concurrent.futures import ThreadPoolExecutor
        ThreadPoolExecutor().submit(sw.init_device_mesh, "cpu", (2,)).result()
        """,
        ValueError,
        of_threads=True,
    ),
    case("a place in a mesh without this rank", 'sw.DeviceMesh("cpu", [0]).get_local_rank()', ValueError, only_on=1),
    case(
        "overrides for another number of dims of a DeviceMesh",
        'sw.DeviceMesh("cpu", [0, 1], backend_override=(None, None))',
        ValueError,
    ),
    case(
        "flattening by the name of other ranks",
        'wide = sw.init_device_mesh("cpu", (2, 1, 1), mesh_dim_names=("dp", "cp", "tp"))\nwide["dp", "cp"]._flatten("all")\nwide["cp", "tp"]._flatten("all")',
        ValueError,
    ),
    case(
        "several groups without their ranks",
        'sw.DeviceMesh.from_group([mesh.get_group(), mesh.get_group()], "cpu")',
        ValueError,
        of_processes=True,
    ),
    case(
        "a group whose ranks do not ascend",
        """
        import torch.distributed as dist

        sw.DeviceMesh.from_group(dist.new_group([1, 0], sort_ranks=False), "cpu")
        """,
        ValueError,
        of_processes=True,
    ),
    case("a mesh that is left and was not entered", "mesh.__exit__(None, None, None)", ValueError),
    case(
        "one group for two mesh dims",
        'sw.DeviceMesh.from_group(mesh.get_group(), "cpu", [[0, 1]])',
        ValueError,
        of_processes=True,
    ),
    case(
        "a group of other ranks",
        'sw.DeviceMesh.from_group([mesh.get_group(), mesh.get_group()], "cpu", [[0, 1]])',
        ValueError,
        of_processes=True,
    ),
]
