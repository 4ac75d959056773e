"""What operators refuse."""

from error_cases import case

TITLE = "Operators"
SETUP = """
mesh = sw.init_device_mesh("cpu", (2,))
rank = mesh.get_rank()
x = torch.ones(6, 2)
d = sw.distribute_tensor(x, mesh, [Shard(0)])
ids = sw.distribute_tensor(torch.tensor([0, 1]), mesh, [Replicate()])
"""
CASES = [
    case("a plain tensor beside a DTensor", "d + x", ValueError),
    case(
        "a plain initial state",
        "torch.gru_cell(d, torch.zeros(6, 3), sw.ones(9, 2, device_mesh=mesh), sw.ones(9, 3, device_mesh=mesh))",
        ValueError,
    ),
    case(
        "tensors on two meshes", 'd + sw.distribute_tensor(x, sw.DeviceMesh("cpu", [1, 0]), [Shard(0)])', RuntimeError
    ),
    case("tensors with values and on meta", 'd + sw.distribute_tensor(x.to("meta"), mesh, [Shard(0)])', ValueError),
    case("shapes that do not go together", "d @ d", RuntimeError),
    case(
        "a dtype that the kernel refuses, where a rank has no rows",
        "sw.distribute_tensor(x.long(), mesh, [Shard(0, sizes=[6, 0])]).softmax(1)",
        NotImplementedError,
        in_torchs_words=True,
    ),
    case(
        "the maximum of nothing",
        "sw.zeros(0, 3, device_mesh=mesh, placements=[Shard(0)]).amax(0)",
        IndexError,
        in_torchs_words=True,
    ),
    case("a write to an expanded tensor", "d[:1].expand(3, 2).add_(1)", RuntimeError),
    case("memory in pieces, which would have to grow", "d.resize_(7, 6)", NotImplementedError),
    case("the memory of a plain tensor", "d.set_(x)", TypeError),
    case("a storage in place of a DTensor's memory", "d.set_(x.untyped_storage())", NotImplementedError),
    case(
        "the gradient of a view that was given other memory",
        "base = sw.ones(4, 4, device_mesh=mesh, requires_grad=True)\nview = base[1:3]\nwith torch.no_grad():\n    view.set_(base * 1)\nview.sum().backward()",
        ValueError,
    ),
    case(
        "distributed gradients with a hidden batch dim",
        "d.requires_grad_()\ntorch.autograd.grad(d * d, d, torch.stack([d, d]).detach(), is_grads_batched=True)",
        NotImplementedError,
    ),
    case(
        "gradients with a hidden batch dim",
        "d.requires_grad_()\ntorch.autograd.grad(d.full_tensor(), d, torch.ones(2, 6, 2), is_grads_batched=True)",
        NotImplementedError,
    ),
    case("an index out of range", "d[7]", IndexError, in_torchs_words=True),
    case("several places in a number", "d.sum().index_select(0, ids)", RuntimeError, in_torchs_words=True),
    case("running maxima of complex numbers", "d.to(torch.complex64).cummax(0)", NotImplementedError),
    case("group norm of integers", "torch.nn.functional.group_norm(d.long(), 1)", NotImplementedError),
    case(
        "classes that are no integers", "torch.nn.functional.nll_loss(d, d[:, 0])", RuntimeError, in_torchs_words=True
    ),
    case(
        "a loss by class of integers",
        "torch.nn.functional.nll_loss(d.long(), sw.zeros(6, device_mesh=mesh, dtype=torch.int64))",
        NotImplementedError,
    ),
    case(
        "weights of classes of another dtype",
        "torch.nn.functional.nll_loss(d, sw.zeros(6, device_mesh=mesh, dtype=torch.int64), sw.ones(2, device_mesh=mesh, dtype=torch.float64))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "a convolution of bools",
        "torch.nn.functional.conv1d(d[:, None].bool(), sw.ones(1, 1, 1, device_mesh=mesh, dtype=torch.bool))",
        NotImplementedError,
    ),
    case(
        "a convolution to no channels",
        "torch.nn.functional.conv1d(d[:, None], sw.ones(0, 1, 1, device_mesh=mesh))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "a convolution of other channels",
        "torch.nn.functional.conv1d(d[:, None], sw.ones(1, 2, 1, device_mesh=mesh))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "a convolution with nothing",
        "torch.nn.functional.conv1d(d[:, None], sw.ones(1, 1, 0, device_mesh=mesh))",
        RuntimeError,
    ),
    case("a norm of nothing", "torch.linalg.vector_norm(d[:0], -1)", RuntimeError, in_torchs_words=True),
    case("a norm of an empty dim", "torch.linalg.vector_norm(d[:0], -1, 0)", RuntimeError, in_torchs_words=True),
    case("an index of a number", "d.sum()[0]", IndexError, in_torchs_words=True),
    case("ids of an index out of range", "d[sw.distribute_tensor(torch.tensor([9]), mesh, [Replicate()])]", IndexError),
    case("too many indices", "d[ids, ids, ids]", IndexError, in_torchs_words=True),
    case(
        "a mask of another shape", "d[sw.ones(5, device_mesh=mesh, dtype=torch.bool)]", IndexError, in_torchs_words=True
    ),
    case("indices of floats", "torch.ops.aten.index(d, [sw.ones(2, device_mesh=mesh)])", IndexError),
    case("split sizes that do not add up", "d.split([1, 2])", ValueError),
    case("a mean of integers", "d.long().mean()", RuntimeError),
    case("select of a number", "d.sum().select(0, 0)", IndexError),
    case("a norm of integers", "torch.linalg.vector_norm(d.long())", RuntimeError),
    case("a trace of a vector", "d[:, 0].trace()", RuntimeError, in_torchs_words=True),
    case("a dot product of matrices", "torch.dot(d, d)", RuntimeError, in_torchs_words=True),
    case(
        "a group norm without groups",
        "torch.native_group_norm(d[..., None], None, None, 6, 2, 1, 0, 1e-5)",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "groups that do not divide the channels",
        "torch.native_group_norm(d[..., None], None, None, 6, 2, 1, 3, 1e-5)",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("a dropout probability above 1", "F.dropout(d, 1.5)", ValueError, in_torchs_words=True),
    case("probabilities that are integers", "torch.bernoulli(d.long())", NotImplementedError),
    case(
        "a convolution without channels",
        "F.conv1d(sw.ones(4, 0, 5, device_mesh=mesh, placements=[Shard(0)]), sw.ones(2, 0, 3, device_mesh=mesh))",
        NotImplementedError,
    ),
    case("a probability above 1", "torch.bernoulli(d * 2)", RuntimeError),
    case("a negative rate", "torch.poisson(-d)", RuntimeError, in_torchs_words=True),
    case("a negative deviation", "d.clone().normal_(0, -1)", RuntimeError, in_torchs_words=True),
    case("too many samples", "torch.multinomial(d, 9)", RuntimeError, in_torchs_words=True),
    case(
        "a label that is no class",
        "F.cross_entropy(sw.ones(2, 3, device_mesh=mesh, placements=[Shard(0)]), sw.distribute_tensor(torch.tensor([0, 5]), mesh, [Replicate()]))",
        IndexError,
        in_torchs_words=True,
    ),
    case(
        "label smoothing above 1",
        "F.cross_entropy(sw.ones(2, 3, device_mesh=mesh), ids, label_smoothing=2.0)",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("half a step", "sw.linspace(0, 1, 2.5, device_mesh=mesh)", TypeError),
    case("a quantile that is no share", "torch.quantile(d, 1.5)", RuntimeError, in_torchs_words=True),
    case(
        "quantiles that are no shares",
        "torch.quantile(d, sw.full((2,), -1.0, device_mesh=mesh))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("classes below the labels", "F.one_hot(ids, 1)", RuntimeError),
    case("a negative class", "F.one_hot(ids - 1)", RuntimeError),
    case("a mask of floats", "d.masked_fill(d, 0.0)", RuntimeError, in_torchs_words=True),
    case(
        "too few values for a mask",
        "d.masked_scatter(d > 0, sw.ones(3, device_mesh=mesh))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "a sparse gradient of gather",
        """
        w = d.detach().requires_grad_()
        torch.gather(w, 0, ids[None], sparse_grad=True).sum().backward()
        """,
        NotImplementedError,
    ),
    case(
        "attention that is causal and masked",
        "q = sw.ones(1, 2, 4, 8, device_mesh=mesh)\nF.scaled_dot_product_attention(q, q, q, attn_mask=sw.ones(4, 4, device_mesh=mesh), is_causal=True)",
        ValueError,
    ),
    case(
        "heads that do not go together",
        "F.scaled_dot_product_attention(sw.ones(1, 3, 4, 8, device_mesh=mesh), sw.ones(1, 2, 4, 8, device_mesh=mesh), sw.ones(1, 2, 4, 8, device_mesh=mesh), enable_gqa=True)",
        ValueError,
    ),
    case(
        "keys of other heads for a fused kernel",
        "q, k = sw.ones(1, 3, 4, 8, device_mesh=mesh), sw.ones(1, 2, 4, 8, device_mesh=mesh)\ntorch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k)",
        ValueError,
    ),
    case(
        "a mask that does not fit the scores",
        "q = sw.ones(1, 2, 4, 8, device_mesh=mesh)\ntorch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q, attn_mask=sw.ones(4, 3, device_mesh=mesh))",
        ValueError,
    ),
    case(
        "heads that do not divide the features",
        "q, w, b = sw.ones(2, 4, 8, device_mesh=mesh), sw.ones(24, 8, device_mesh=mesh), sw.ones(24, device_mesh=mesh)\ntorch._native_multi_head_attention(q, q, q, 8, 3, w, b, w[:8], b[:8])",
        ValueError,
    ),
    case(
        "nested tensors of an encoder",
        "layer = torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)\nencoder = sw.distribute_module(torch.nn.TransformerEncoder(layer, 1, mask_check=False).eval(), mesh)\nwith torch.no_grad():\n    encoder(sw.ones(2, 4, 8, device_mesh=mesh), src_key_padding_mask=torch.zeros(2, 4, dtype=torch.bool))",
        NotImplementedError,
    ),
    case("a source of another size", "torch.slice_scatter(d, sw.ones(5, 2, device_mesh=mesh), 0, 0, 2)", RuntimeError),
    case(
        "a source of another dtype",
        "torch.index_add(d, 0, ids, sw.ones(2, 2, device_mesh=mesh, dtype=torch.float64))",
        RuntimeError,
    ),
    case(
        "a result of another dtype",
        "torch.add(d, d, out=sw.zeros(6, 2, device_mesh=mesh, dtype=torch.int64))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("strides that reach beyond the tensor", "d.as_strided((9, 9), (9, 1))", ValueError),
    case(
        "a sparse tensor in an operator without an answer",
        "DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Replicate()]).softmax(0)",
        NotImplementedError,
    ),
    case(
        "a sum over one dim of a sparse tensor",
        "DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Replicate()]).sum(0)",
        NotImplementedError,
    ),
    case(
        "indices outside of a sparse tensor",
        "torch.sparse_coo_tensor(sw.full((1, 1), 7, device_mesh=mesh), sw.ones(1, device_mesh=mesh), (5,))",
        IndexError,
    ),
    case(
        "values of a tensor that is not coalesced",
        "i = sw.zeros(1, 2, device_mesh=mesh, dtype=torch.int64)\ntorch.sparse_coo_tensor(i, sw.ones(2, device_mesh=mesh), (5,)).values()",
        ValueError,
    ),
    case(
        "an index_put of another dtype",
        "d.index_put((ids,), sw.ones(2, 2, device_mesh=mesh, dtype=torch.float64))",
        IndexError,
        in_torchs_words=True,
    ),
    case(
        "an index_put of another shape",
        "d.index_put((ids,), sw.ones(3, 2, device_mesh=mesh))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "indices that do not broadcast",
        "d[ids, sw.zeros(3, device_mesh=mesh, dtype=torch.int64)]",
        IndexError,
        in_torchs_words=True,
    ),
    case("an index of two dims", "torch.index_select(d, 0, ids[None])", IndexError, in_torchs_words=True),
    case(
        "an index of floats",
        "torch.index_add(d, 0, ids.float(), sw.ones(2, 2, device_mesh=mesh))",
        TypeError,
        in_torchs_words=True,
    ),
    case(
        "a source of another shape",
        "torch.index_add(d, 0, ids, sw.ones(3, 2, device_mesh=mesh))",
        IndexError,
        in_torchs_words=True,
    ),
    case(
        "filling with a vector",
        "torch.index_fill(d, 0, ids, sw.ones(2, device_mesh=mesh))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("taking by floats", "torch.take(d, d)", RuntimeError, in_torchs_words=True),
    case("taking from nothing", "torch.take(sw.zeros(0, device_mesh=mesh), ids)", IndexError, in_torchs_words=True),
    case("putting another dtype", "d.put(ids, ids)", RuntimeError, in_torchs_words=True),
    case(
        "putting another number of elements",
        "d.put(ids, sw.ones(3, device_mesh=mesh))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("scattering another dtype by a mask", "d.masked_scatter(d > 0, ids)", RuntimeError),
    case("classes of floats", "F.one_hot(d)", RuntimeError, in_torchs_words=True),
    case(
        "classes of nothing",
        "F.one_hot(sw.zeros(0, device_mesh=mesh, dtype=torch.int64))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("statistics that are not there", "F.batch_norm(d, None, None)", RuntimeError, in_torchs_words=True),
    case("attention of vectors", "F.scaled_dot_product_attention(d[0], d[0], d[0])", ValueError),
    case("distances of vectors", "torch.cdist(d[0], d[0])", RuntimeError, in_torchs_words=True),
    case("renorm of a vector", "torch.renorm(d[0], 2, 0, 1.0)", RuntimeError, in_torchs_words=True),
    case("renorm by a negative order", "torch.renorm(d, -1, 0, 1.0)", RuntimeError, in_torchs_words=True),
    case("renorm to a negative norm", "torch.renorm(d, 2, 0, -1.0)", RuntimeError, in_torchs_words=True),
    case("a product of a number", "torch.matmul(d.sum(), d)", RuntimeError, in_torchs_words=True),
    case("feature dropout of a vector", "torch.feature_dropout(d[0], 0.5, True)", RuntimeError, in_torchs_words=True),
    case("bounds of rrelu", "torch.rrelu(d, 0.5, 0.1, True)", RuntimeError, in_torchs_words=True),
    case("deviations below 0", "torch.normal(d, -d)", RuntimeError, in_torchs_words=True),
    case("samples of integers", "torch.multinomial(d.long(), 1)", RuntimeError, in_torchs_words=True),
    case("samples of three dims", "torch.multinomial(d[None], 1)", RuntimeError, in_torchs_words=True),
    case("no samples", "torch.multinomial(d, 0)", RuntimeError, in_torchs_words=True),
    case("weights below 0", "torch.multinomial(-d, 1)", RuntimeError, in_torchs_words=True),
    case("weights of 0", "torch.multinomial(d * 0, 1)", RuntimeError, in_torchs_words=True),
    case(
        "labels of another shape",
        "F.nll_loss(d, sw.zeros(3, device_mesh=mesh, dtype=torch.int64))",
        ValueError,
        in_torchs_words=True,
    ),
    case("probabilities of integers", "F.cross_entropy(d, d.long())", RuntimeError, in_torchs_words=True),
    case(
        "ignored classes of probabilities", "F.cross_entropy(d, d, ignore_index=1)", RuntimeError, in_torchs_words=True
    ),
    case(
        "a cumulative sum of another dtype",
        "torch.cumsum_(d.clone(), 0, dtype=torch.int64) if False else d.clone().cumsum_(0, dtype=torch.int64)",
        RuntimeError,
    ),
    case("parts of size 0", "d.split(0)", ValueError),
    case(
        "a row that is not there",
        "torch.select_scatter(d, sw.ones(2, device_mesh=mesh), 0, 9)",
        IndexError,
        in_torchs_words=True,
    ),
    case(
        "a diagonal of one dim",
        "torch.diagonal_scatter(d, sw.ones(2, device_mesh=mesh), 0, 1, 1)",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "a diagonal of another length",
        "torch.diagonal_scatter(d, sw.ones(3, device_mesh=mesh))",
        RuntimeError,
    ),
    case("fewer strides than sizes", "d.as_strided((3, 2), (1,))", RuntimeError),
    case(
        "GradScaler's scale of integers",
        "torch._amp_foreach_non_finite_check_and_unscale_([d.long()], torch.zeros(1), torch.ones(1))",
        RuntimeError,
        in_torchs_words=True,
    ),
    case(
        "GradScaler's numbers as DTensors",
        "torch._amp_foreach_non_finite_check_and_unscale_([d.clone()], sw.zeros(1, device_mesh=mesh), sw.ones(1, device_mesh=mesh))",
        ValueError,
    ),
    case(
        "GradScaler's numbers of two elements",
        "torch._amp_foreach_non_finite_check_and_unscale_([d.clone()], torch.zeros(2), torch.ones(2))",
        RuntimeError,
    ),
    case(
        "unscaling a maximum",
        "torch._amp_foreach_non_finite_check_and_unscale_([DTensor.from_local(x.clone(), mesh, [Partial('max')])], torch.zeros(1), torch.ones(1))",
        ValueError,
    ),
    case("a view in a list to be written to", "torch._foreach_add_([d.view(3, 4)], 1)", ValueError),
    case(
        "unscaling a view",
        "torch._amp_foreach_non_finite_check_and_unscale_([d.view(3, 4)], torch.zeros(1), torch.ones(1))",
        ValueError,
    ),
    case(
        "a number that a rank beside plain tensors does not know",
        'torch._foreach_mul([torch.ones(2)], sw.ones((), device_mesh=sw.DeviceMesh("cpu", [0])))',
        NotImplementedError,
        only_on=1,
    ),
    case(
        "a result that depends on values, on a rank outside the mesh",
        'torch.unique(sw.ones(3, device_mesh=sw.DeviceMesh("cpu", [0])))',
        NotImplementedError,
        only_on=1,
    ),
    case("too many indices, by the operator", "torch.ops.aten.index(d, [ids, ids, ids])", IndexError),
    case(
        "an unknown reduction of rows",
        'torch.index_reduce(d, 0, ids, sw.ones(2, 2, device_mesh=mesh), "sum")',
        RuntimeError,
    ),
    case("selecting by floats", "torch.masked_select(d, d)", RuntimeError),
    case(
        "an instance norm without statistics",
        "torch.instance_norm(d[None], None, None, None, None, False, 0.1, 1e-5, False)",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("a linear layer of a number", "torch.ops.aten.linear(d.sum(), d)", RuntimeError, in_torchs_words=True),
    case(
        "noise of another shape",
        "torch.ops.aten.rrelu_with_noise(d, sw.zeros(3, device_mesh=mesh), 0.1, 0.3, True)",
        RuntimeError,
        in_torchs_words=True,
    ),
    case("complex deviations", "torch.normal(d, d + 0j)", RuntimeError, in_torchs_words=True),
    case("a cumulative sum of bools", "torch.cumsum(d > 0, 0, dtype=torch.bool)", NotImplementedError),
    case("an index out of range, by select", "d.select(0, 9)", IndexError),
    case(
        "indices and values of other numbers",
        "torch.sparse_coo_tensor(sw.zeros(1, 1, device_mesh=mesh, dtype=torch.int64), sw.ones(2, device_mesh=mesh), (5,))",
        ValueError,
    ),
    case(
        "plain values of distributed indices",
        "torch.sparse_coo_tensor(sw.zeros(1, 2, device_mesh=mesh, dtype=torch.int64), torch.ones(2), (5,))",
        ValueError,
    ),
    case(
        "indices of one dim",
        "torch.sparse_coo_tensor(sw.zeros(2, device_mesh=mesh, dtype=torch.int64), sw.ones(2, device_mesh=mesh), (5,))",
        ValueError,
    ),
    case(
        "indices of one dim, without a size",
        "torch.sparse_coo_tensor(sw.zeros(2, device_mesh=mesh, dtype=torch.int64), sw.ones(2, device_mesh=mesh))",
        ValueError,
    ),
    case(
        "entries of other dims",
        "torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors(2, 0, (5, 5), sw.zeros(1, 2, device_mesh=mesh, dtype=torch.int64), sw.ones(2, device_mesh=mesh), layout=torch.sparse_coo, dtype=torch.float32, device=torch.device('cpu'))",
        ValueError,
    ),
    case(
        "a sparse tensor without a size, on a rank outside the mesh",
        """
        one = sw.DeviceMesh("cpu", [0])
        torch.sparse_coo_tensor(sw.zeros(1, 2, device_mesh=one, dtype=torch.int64), sw.ones(2, device_mesh=one))
        """,
        NotImplementedError,
        only_on=1,
    ),
    case("more sparse dims than dims", "d.to_sparse(3)", ValueError),
    case(
        "sparse rows of pieces that split columns",
        """
        pieces = [ShardMetadata((0, 0), (6, 1), 0), ShardMetadata((0, 1), (6, 1), 1)]
        sw.distribute_tensor(x, mesh, [EnumerableShard(pieces)]).to_sparse(1)
        """,
        NotImplementedError,
    ),
    case("a sparse layout of rows", "d.to_sparse(layout=torch.sparse_csr)", NotImplementedError),
    case("another layout of a sparse tensor", "d.to_sparse().to_sparse(layout=torch.sparse_csr)", NotImplementedError),
    case(
        "a sparse sum that is to be coalesced",
        "DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Partial()])._coalesced_(True)",
        ValueError,
    ),
    case("a norm of a sparse tensor that counts zeros", "torch.linalg.vector_norm(d.to_sparse(), -1)", ValueError),
    case(
        "a write to a sparse sum", "DTensor.from_local(torch.eye(2).to_sparse(), mesh, [Partial()]).sqrt_()", ValueError
    ),
    case("sparse tensors of two shapes", "d.to_sparse() * d[:1].expand(2, 6, 2)", NotImplementedError),
    case(
        "fewer sparse dims of a sparse tensor, by the operator",
        "torch.ops.aten._to_sparse(d.to_sparse(), 1)",
        ValueError,
    ),
    case(
        "labels of other dims",
        "F.nll_loss(sw.ones(2, 3, 4, 4, device_mesh=mesh), sw.zeros(2, 4, device_mesh=mesh, dtype=torch.int64))",
        RuntimeError,
    ),
    case(
        "a forward-mode derivative of a backward",
        """
        import torch.autograd.forward_ad as forward_ad
        weight = torch.nn.Parameter(sw.ones(2, 2, device_mesh=mesh))
        with forward_ad.dual_level():
            F.linear(forward_ad.make_dual(d, d), weight).sum().backward()
        """,
        NotImplementedError,
        of_processes=True,
    ),
    case(
        "a base that was cut in place, and the gradient of a view of it",
        "base = sw.ones(4, 4, device_mesh=mesh, requires_grad=True) * 1\nview = base[1:3]\nbase.as_strided_((2, 2), (4, 1))\nview.sum().backward()",
        ValueError,
    ),
    case(
        "class weights of two dims",
        "F.nll_loss(d, sw.zeros(6, device_mesh=mesh, dtype=torch.int64), weight=d)",
        RuntimeError,
        in_torchs_words=True,
    ),
]
