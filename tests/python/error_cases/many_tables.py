"""What DistributedEmbedding refuses."""

from error_cases import case

TITLE = "Many tables"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
user = sw.TableConfig("user", 100, 8)
item = sw.TableConfig("item", 50, 8, combiner="mean")
words = sw.TableConfig("words", 20, 4, combiner="none")
layer = sw.DistributedEmbedding([user, item, words])
ids = torch.tensor([1, 2, 3])
"""
CASES = [
    case("fewer inputs than features", "layer([ids, ids])", ValueError),
    case("a feature that is not there", 'layer({"user": ids, "item": ids, "word": ids})', ValueError),
    case("inputs that are no list", "layer(3)", TypeError),
    case("ids that are no tensor", "layer([ids, ids, 'ids'])", TypeError),
    case("offsets that are no tensor", "layer([ids, (ids, [0]), ids])", TypeError),
    case("ids of floats", "layer([ids.float(), ids, ids])", TypeError),
    case("an id out of range on one rank", "layer([ids + 99 * rank, ids, ids])", IndexError),
    case("a negative id", "layer([ids, ids - 2, ids])", IndexError),
    case(
        "ids of a DTensor",
        "layer([sw.distribute_tensor(ids, mesh, [Shard(0)]), ids, ids])",
        TypeError,
    ),
    case(
        "a mesh without this rank",
        'sw.DistributedEmbedding([user], mesh=sw.DeviceMesh("cpu", [0]))',
        ValueError,
        only_on=1,
    ),
    case("sparse ids", "layer([ids.to_sparse(), ids, ids])", TypeError),
    case("ids of three dims", "layer([ids, ids.view(1, 1, 3), ids])", ValueError),
    case("offsets of floats", "layer([ids, (ids, torch.tensor([0.0])), ids])", TypeError),
    case("offsets that begin late", "layer([ids, (ids, torch.tensor([1, 3])), ids])", ValueError),
    case("offsets that fall", "layer([ids, (ids, torch.tensor([0, 2, 1, 3])), ids])", ValueError),
    case("offsets of two dims", "layer([ids, (ids, torch.zeros(1, 2, dtype=torch.int64)), ids])", ValueError),
    case(
        "lengths that add up to less", "layer([ids, sw.RaggedIds(ids, lengths=torch.tensor([1, 1])), ids])", ValueError
    ),
    case(
        "lengths that add up to more", "layer([ids, sw.RaggedIds(ids, lengths=torch.tensor([2, 2])), ids])", ValueError
    ),
    case("a negative length", "layer([ids, sw.RaggedIds(ids, lengths=torch.tensor([-1, 4])), ids])", ValueError),
    case("lengths of floats", "layer([ids, sw.RaggedIds(ids, lengths=torch.tensor([3.0])), ids])", TypeError),
    case("lengths of two dims", "layer([ids, sw.RaggedIds(ids, lengths=torch.tensor([[3]])), ids])", ValueError),
    case(
        "offsets and lengths",
        "layer([ids, sw.RaggedIds(ids, offsets=torch.tensor([0, 3]), lengths=torch.tensor([3])), ids])",
        ValueError,
    ),
    case(
        "weights of rows that are not combined",
        "layer([ids, ids, sw.RaggedIds(ids, weights=torch.ones(3))])",
        ValueError,
    ),
    case(
        "weights of another shape",
        "layer([ids, sw.RaggedIds(ids, offsets=torch.tensor([0, 3]), weights=torch.ones(2)), ids])",
        ValueError,
    ),
    case(
        "weights of another dtype",
        "layer([ids, sw.RaggedIds(ids, offsets=torch.tensor([0, 3]), weights=torch.ones(3).double()), ids])",
        TypeError,
    ),
    case("a feature without ids", "layer([ids, None, ids])", ValueError),
    case(
        "a lookup that one rank drops",
        "lookup = layer.start([ids, ids, ids])\nif rank == 0:\n    lookup.wait()\nlayer([ids, ids, ids])",
        ValueError,
    ),
    case(
        "a fused optimizer of one rank",
        "optimizer = sw.optim.FusedSGD(layer.parameters(), lr=0.1)\nif rank == 1:\n    optimizer.close()\nlayer([ids, ids, ids])",
        ValueError,
    ),
    case("waiting twice", "lookup = layer.start([ids, ids, ids])\nlookup.wait()\nlookup.wait()", RuntimeError),
    case("a table that is no table", 'sw.DistributedEmbedding(["user"])', TypeError),
    case(
        "an embedding with max_norm", "sw.DistributedEmbedding([torch.nn.Embedding(10, 4, max_norm=1.0)])", ValueError
    ),
    case("a name with a dot", 'sw.DistributedEmbedding([sw.TableConfig("a.b", 10, 4)])', ValueError),
    case("gradients of an unknown kind", 'sw.DistributedEmbedding([user], gradients="max")', ValueError),
    case("input names of another number", 'sw.DistributedEmbedding([user], input_names=["a", "b"])', ValueError),
    case(
        "an input of a table that is not there", "sw.DistributedEmbedding([user], input_table_map=[0, 3])", ValueError
    ),
    case(
        "an input of a name that is not there", 'sw.DistributedEmbedding([user], input_table_map=["users"])', ValueError
    ),
    case("a table without an input", "sw.DistributedEmbedding([user, item], input_table_map=[0])", ValueError),
    case(
        "concatenating rows that are not combined",
        "sw.DistributedEmbedding([user, words], concatenate=True)",
        ValueError,
    ),
    case(
        "concatenating several dtypes",
        'sw.DistributedEmbedding([user, sw.TableConfig("t", 9, 4, dtype="float64")], concatenate=True)',
        TypeError,
    ),
    case(
        "concatenating with dp_input=False",
        "sw.DistributedEmbedding([user], concatenate=True, dp_input=False)",
        ValueError,
    ),
    case(
        "a plan and options of plans",
        'sw.DistributedEmbedding([user], plan=sw.plan_embeddings([user], 2), strategy="basic")',
        TypeError,
    ),
    case("a plan for other ranks", "sw.DistributedEmbedding([user], plan=sw.plan_embeddings([user], 4))", ValueError),
    case("a plan of other tables", "sw.DistributedEmbedding([user], plan=sw.plan_embeddings([item], 2))", ValueError),
    case("a mesh of two dims", 'sw.DistributedEmbedding([user], mesh=sw.init_device_mesh("cpu", (2, 1)))', ValueError),
    case("a table of integers", 'sw.DistributedEmbedding([sw.TableConfig("t", 9, 4, dtype="int8")])', TypeError),
    case("a storage that is no storage", 'sw.DistributedEmbedding([user], storage={"user": "/tmp"})', TypeError),
    case(
        "a storage of a table that is not there",
        'sw.DistributedEmbedding([user], storage={"users": sw.FileStorage("/tmp", cache_rows=10)})',
        ValueError,
    ),
    case(
        "a storage without a cache",
        'sw.DistributedEmbedding([user], storage={"user": sw.FileStorage("/tmp")})',
        ValueError,
    ),
    case(
        "a storage in no folder",
        'sw.DistributedEmbedding([user], storage={"user": sw.FileStorage("/nowhere", cache_rows=10)})',
        ValueError,
    ),
    case(
        "a storage of a replicated table",
        'sw.DistributedEmbedding([user], data_parallel_threshold=10_000, storage={"user": sw.FileStorage("/tmp", cache_rows=10)})',
        ValueError,
    ),
    case(
        "a cache that is too small",
        'sw.DistributedEmbedding([user], storage={"user": sw.FileStorage("/tmp", cache_rows=2)})([torch.arange(50)])',
        ValueError,
    ),
    case("hot rows that nobody counts", 'layer.hot_rows("user", 3)', RuntimeError),
    case("counting no rows", "layer.count_rows(0)", ValueError),
    case(
        "weights of other tables",
        "import numpy as np\nlayer.set_weights([np.zeros((1, 1), dtype=np.float32)] * 3)",
        ValueError,
    ),
    case("fewer weights than tables", "layer.set_weights([])", ValueError),
    case("a state dict of other tables", 'layer.load_state_dict({"tables.other": torch.ones(3, 2)})', RuntimeError),
    case("a state dict that is to be assigned", "layer.load_state_dict(layer.state_dict(), assign=True)", ValueError),
    case("a table of the layer on another device", 'layer.to("meta")', NotImplementedError),
    case("a table of the layer in another dtype", "layer.double()", NotImplementedError),
    case(
        "samples of several numbers to concatenate",
        "sw.DistributedEmbedding([user, item], concatenate=True)([ids, ids[:2]])",
        ValueError,
    ),
    case(
        "rows for all ranks",
        "sw.DistributedEmbedding([user], dp_input=False, row_slice_threshold=10)([ids])",
        ValueError,
    ),
    case(
        "inputs of another number with dp_input=False",
        "sw.DistributedEmbedding([user, item], dp_input=False)([ids])",
        ValueError,
    ),
    case(
        "ids that a rank with columns lacks",
        "sw.DistributedEmbedding([user, item], dp_input=False)([None, None])",
        ValueError,
    ),
    case(
        "samples of several numbers with dp_input=False",
        "sw.DistributedEmbedding([user, item], dp_input=False)([ids if rank == 0 else ids[:2], ids if rank == 0 else ids[:2]])",
        ValueError,
    ),
    case(
        "ragged rows with dp_input=False",
        "sw.DistributedEmbedding([words], dp_input=False)([sw.RaggedIds(ids, offsets=torch.tensor([0, 1, 3]))])",
        ValueError,
    ),
    case(
        "a storage named twice",
        'sw.DistributedEmbedding([user], storage={"user": sw.FileStorage("/tmp", cache_rows=10), 0: sw.FileStorage("/tmp", cache_rows=10)})',
        ValueError,
    ),
    case("no tables to concatenate", "sw.DistributedEmbedding([], concatenate=True)", ValueError),
    case(
        "a second derivative of lookups",
        "g = torch.autograd.grad(layer([ids, ids, ids])[0].square().sum(), layer.tables['user'], create_graph=True)[0]\ng.sum().backward()",
        NotImplementedError,
    ),
    case(
        "a second derivative of lookups with weights",
        """
        weights = torch.ones(3, requires_grad=True)
        sums = layer([sw.RaggedIds(ids, torch.tensor([0, 3]), weights=weights), ids, ids])[0]
        torch.autograd.grad(sums.sum(), weights, create_graph=True)[0].sum().backward()
        """,
        NotImplementedError,
    ),
    case(
        "samples of several numbers on one rank with dp_input=False",
        'sw.DistributedEmbedding([sw.TableConfig(name, 10, 8) for name in "abcd"], dp_input=False)([ids, ids, ids[:2], ids[:2]])',
        ValueError,
    ),
    case(
        "weights that want a gradient with dp_input=False",
        "sw.DistributedEmbedding([item], dp_input=False)([sw.RaggedIds(ids, offsets=torch.tensor([0, 3]), weights=torch.ones(3, requires_grad=True))])",
        ValueError,
    ),
    case(
        "samples of a replicated table with dp_input=False",
        "sw.DistributedEmbedding([user, sw.TableConfig('day', 7, 8)], dp_input=False, data_parallel_threshold=100)([torch.arange(4), ids])",
        ValueError,
    ),
    case(
        "a table that is not the layer's own any more",
        "layer.tables['user'] = torch.nn.Parameter(layer.tables['user'].detach().clone())\nlayer([ids, ids, ids])",
        ValueError,
    ),
    case("ids of a feature that are a list", "layer([ids, sw.RaggedIds([1, 2]), ids])", TypeError),
    case("nested ids that are not jagged", "layer([ids, torch.nested.nested_tensor([ids, ids[:1]]), ids])", TypeError),
    case(
        "a copy of tables in files",
        'import copy\ncopy.deepcopy(sw.DistributedEmbedding([user], storage={"user": sw.FileStorage("/tmp", cache_rows=10)}))',
        NotImplementedError,
    ),
    case(
        "a table in files whose optimizer needs whole rows",
        """
        wide = sw.DistributedEmbedding([user], storage={"user": sw.FileStorage("/tmp", cache_rows=10)})
        optimizer = sw.optim.FusedLAMB(wide.parameters(), lr=0.1)
        wide([ids])[0].sum().backward()
        """,
        NotImplementedError,
    ),
    case(
        "a table in files whose optimizer rounds at random",
        """
        half = sw.DistributedEmbedding([sw.TableConfig("user", 100, 8, dtype="bfloat16")], storage={"user": sw.FileStorage("/tmp", cache_rows=10)})
        optimizer = sw.optim.FusedSGD(half.parameters(), lr=0.1, stochastic_rounding=True)
        half([ids])[0].sum().backward()
        """,
        NotImplementedError,
    ),
]
