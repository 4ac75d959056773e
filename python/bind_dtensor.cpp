#include "python/casters.h"
#include "python/package.h"
#include "runtime/api/distribute_tensor.h"
#include "runtime/api/equal_values.h"
#include "runtime/api/local_form.h"
#include "runtime/api/module_values.h"
#include "runtime/api/random.h"
#include "runtime/api/redistribute.h"
#include "runtime/api/to_local.h"
#include "runtime/api/total_norm.h"
#include "runtime/comm/order_check.h"
#include "runtime/numbers/saved_elements.h"
#include "runtime/tensor/sparse.h"
#include "text/check.h"

#include <fmt/ranges.h>

namespace shardwise {

/// Placements for each of several tensors, or one sequence of them for all.
struct PlacementLists {
  std::vector<UserPlacements> lists;
  bool is_for_all = false;
};

}  // namespace shardwise

namespace pybind11::detail {

template <>
struct type_caster<shardwise::PlacementLists> {
  PYBIND11_TYPE_CASTER(shardwise::PlacementLists, const_name("Sequence[Sequence[Placement]] | Sequence[Placement]"));

  bool load(handle source, bool convert) {
    value.is_for_all = !is_list_of_lists(source);
    if (value.is_for_all) {
      make_caster<shardwise::UserPlacements> list;
      if (!list.load(source, convert)) return false;
      value.lists.push_back(cast_op<shardwise::UserPlacements&&>(std::move(list)));
      return true;
    }
    make_caster<std::vector<shardwise::UserPlacements>> lists;
    if (!lists.load(source, convert)) return false;
    value.lists = cast_op<std::vector<shardwise::UserPlacements>&&>(std::move(lists));
    return true;
  }

 private:
  static bool is_list_of_lists(handle source) {
    if (!PySequence_Check(source.ptr()) || PySequence_Size(source.ptr()) < 1) return false;
    return PySequence_Check(object(source[pybind11::int_(0)]).ptr()) != 0;
  }
};

}  // namespace pybind11::detail

namespace shardwise {
namespace {

/// to_local() or full_tensor().
template <at::Tensor (*read)(const at::Tensor& tensor, std::optional<Placements> grad_placements)>
at::Tensor py_read(const at::Tensor& tensor, const MaybePlacements& grad_placements) {
  const Spec& spec = *spec_of(tensor);
  return read(tensor, placements_on(spec.mesh(), grad_placements, spec.dim()));
}

/// from_local() of a tensor of any class; to_local() gives the same object back.
at::Tensor from_given(const at::Tensor& local, PlacedOn placed, const FromLocalOptions& options) {
  at::Tensor result =
      from_local(converted_by(local, package().as_local), placed.mesh, std::move(placed.placements), options);
  auto* const impl = maybe_dtensor(result);
  if (impl->given().defined()) impl->set_given(local);  // the tensor of another library that the piece was made from
  return result;
}

at::Tensor py_from_local(const at::Tensor& local, const MaybeMesh& mesh, MaybePlacements placements, bool run_check,
                         std::optional<Dims> shape, std::optional<Dims> stride,
                         const MaybePlacements& grad_placements) {
  const int64_t n_dims = shape ? static_cast<int64_t>(shape->size()) : local.dim();
  PlacedOn placed = placed_or_replicated(mesh, std::move(placements), n_dims);
  auto of_grad = placements_on(placed.mesh, grad_placements, n_dims);
  return from_given(local, std::move(placed), {run_check, std::move(shape), std::move(stride), std::move(of_grad)});
}

/// The tensor of which each rank has the plain `local` and that a module gets or gives. Pieces are equal in size, except along the features.
at::Tensor from_module(const at::Tensor& local, PlacedOn placed, std::optional<int64_t> n_features,
                       bool is_layer_input) {
  FromLocalOptions options{.adds_gradients = is_layer_input};
  if (n_features && local.dim() > 0 && shards_features(placed.placements.at(0), local.dim())) {
    options.shape = sizes_of(local);
    options.shape->back() = *n_features;
  }
  if (is_layer_input && checks_order() && placed.placements == Placements(placed.mesh->ndim()))
    SW_CHECK_VALUE(is_equal_on_all(local, placed.mesh),
                   "[parallelize_module] a layer expects its plain input of shape [{}] to be equal on all ranks, but "
                   "it is not. Give the same batch to all of them, or set how it is split: input_layouts=Shard(0).",
                   fmt::join(local.sizes(), ", "));
  return from_given(local, std::move(placed), options);
}

at::Tensor py_lay_out(const at::Tensor& tensor, const MeshPtr& mesh, MaybePlacements placements,
                      MaybePlacements desired, bool use_local, std::optional<int64_t> n_features, bool is_layer_input) {
  at::Tensor whole = tensor;
  if (placements && !is_dtensor(tensor))
    whole = from_module(tensor, placed_on_mesh(mesh, *std::move(placements), tensor.dim()), n_features, is_layer_input);
  const MeshPtr& own = spec_of(whole)->mesh();
  return laid_out(whole, desired ? std::optional(placements_on(own, desired, whole.dim())->at(0)) : std::nullopt,
                  use_local);
}

at::Tensor py_redistribute(const at::Tensor& tensor, const MaybeMesh& mesh, MaybePlacements placements, bool async_op,
                           std::optional<at::ScalarType> forward_dtype, std::optional<at::ScalarType> backward_dtype,
                           const std::string& objective, const MaybeLinks& links, int64_t memory_cap) {
  // a RuntimeError, as torch's
  TORCH_CHECK(placements, "[redistribute] got no placements. Give one per mesh dim: placements=[Shard(0)].");
  PlacedOn placed =
      placed_on_mesh(mesh ? *mesh : user_layout_of(*spec_of(tensor)).mesh, *std::move(placements), tensor.dim());
  return redistribute(tensor, placed.mesh, std::move(placed.placements),
                      {plan_options("redistribute", objective, links, memory_cap), async_op},
                      {forward_dtype, backward_dtype});
}

std::vector<at::Tensor> py_redistribute_many(const std::vector<at::Tensor>& tensors, const PlacementLists& placements,
                                             const std::string& objective, const MaybeLinks& links, int64_t memory_cap,
                                             int64_t bucket_bytes) {
  const PlanOptions options = plan_options("redistribute_many", objective, links, memory_cap);
  const auto& lists = placements.lists;
  std::vector<Placements> to;
  for (size_t i = 0; i < (placements.is_for_all ? tensors.size() : lists.size()); ++i) {
    const UserPlacements& list = lists[placements.is_for_all ? 0 : i];
    if (i < tensors.size())
      to.push_back(*placements_on(spec_of(tensors[i])->mesh(), list, tensors[i].dim()));
    else
      to.push_back(list.placements);  // redistribute_many reports that there are too many
  }
  return redistribute_many(tensors, to, options, bucket_bytes);
}

at::Tensor py_distribute_tensor(const at::Tensor& tensor, const MaybeMesh& mesh, MaybePlacements placements,
                                std::optional<int64_t> src_data_rank) {
  PlacedOn placed = placed_or_replicated(mesh, std::move(placements), tensor.dim());
  return distribute_tensor(converted_by(tensor, package().as_whole), placed.mesh, std::move(placed.placements),
                           src_data_rank);
}

at::Tensor py_from_pieces(std::vector<at::Tensor> pieces, const MeshPtr& given, UserPlacements written,
                          const Dims& shape, const Dims& stride, at::ScalarType dtype, const std::string& form,
                          int64_t sparse_dim, bool is_meta, std::optional<int64_t> saved_by) {
  auto [mesh, placements] = placed_on_mesh(given, std::move(written), static_cast<int64_t>(shape.size()));
  const bool is_on_meta = pieces.empty() ? is_meta : pieces[0].is_meta();
  auto spec = Spec::intern(is_on_meta ? mesh->on_meta() : mesh, shape, std::move(placements), stride, dtype);
  if (saved_by) check_loadable(*spec, *saved_by);
  if (pieces.empty() && sparse_dim > 0) return wrap_sparse(std::move(spec), {}, {sparse_dim});
  at::Tensor tensor = from_pieces(std::move(pieces), spec);
  keep_local_form(tensor, local_form_named(form));
  return tensor;
}

std::string local_form_of(const at::Tensor& tensor) {
  const LocalForm* form = impl_of(tensor).local_form();
  return form ? form->name() : "";
}

std::vector<at::Tensor> py_distribute_tensors(std::vector<at::Tensor> tensors, const MeshPtr& mesh,
                                              std::vector<Placements> placements,
                                              std::optional<int64_t> src_data_rank) {
  for (at::Tensor& tensor : tensors) tensor = converted_by(tensor, package().as_whole);
  return distribute_tensors(tensors, mesh, std::move(placements), src_data_rank);
}

std::vector<std::tuple<int64_t, Dims, Dims>> boxes_of_all(const at::Tensor& tensor) {
  const Layout& layout = spec_of(tensor)->layout();
  std::vector<std::tuple<int64_t, Dims, Dims>> result;
  for (const int64_t rank : layout.grid().ranks)
    for (Box& box : layout.boxes(rank)) result.emplace_back(rank, std::move(box.offsets), std::move(box.sizes));
  return result;
}

using Make = at::Tensor (*)(c10::IntArrayRef, const MeshPtr&, Placements, at::ScalarType);

template <Make make>
at::Tensor py_make(const Dims& size, at::ScalarType dtype, const MaybeMesh& mesh, MaybePlacements placements,
                   bool requires_grad) {
  PlacedOn placed = placed_or_replicated(mesh, std::move(placements), static_cast<int64_t>(size.size()));
  return make(size, placed.mesh, std::move(placed.placements), dtype).set_requires_grad(requires_grad);
}

at::Tensor py_full(const Dims& size, const Number& value, at::ScalarType dtype, const MaybeMesh& mesh,
                   MaybePlacements placements, bool requires_grad) {
  PlacedOn placed = placed_or_replicated(mesh, std::move(placements), static_cast<int64_t>(size.size()));
  return full(size, scalar_of(value), placed.mesh, std::move(placed.placements), dtype)
      .set_requires_grad(requires_grad);
}

constexpr const char* kRedistribute =
    R"(The same values with other `placements`, one per mesh dim; differentiable. If this tensor has them already, the result is a view of it.

- `device_mesh`: another mesh of the same world, of any ranks in any shape and order. Ranks outside it then hold nothing.
- `async_op`: returns while the last messages are on their way; the first use of the result waits for them.
- `forward_dtype`: the dtype of the result; values are cast before they are sent. `backward_dtype`: the dtype in which gradients are sent back;
  they arrive in this tensor's dtype.
- `objective`: "bytes": a rank receives each byte of its new part that it does not hold, once. "time": the least time by `links`.
- `links`: (latency in us, GB/s) per mesh dim.
- `memory_cap`: the most bytes of message buffers that a rank may hold at once, in the backward too. Larger exchanges are split into rounds,
  each of at least one index of a box's longest dim. 0 is no limit.

plan_redistribution shows what would be sent. Collective over the ranks of both meshes. Raises ValueError or IndexError, before any message,
for placements that do not fit.

>>> x = sw.ones(10, 3, device_mesh=mesh, placements=[sw.Shard(0)])
>>> x.redistribute(placements=[sw.Shard(1)]).to_local().shape
torch.Size([10, 1]))";

constexpr const char* kRedistributeMany =
    R"(Redistributes several tensors together, each on its own mesh. Exchanges over the same ranks share messages, for up to `bucket_bytes` bytes of
whole tensors at a time. `placements`: one list for all tensors, or one list per tensor. The other options are those of redistribute.

Differentiable: the gradients are also sent back together. Collective over the meshes, in the same order on all ranks.
Raises ValueError or IndexError, before any message, for placements that do not fit.

>>> x = sw.ones(8, device_mesh=mesh, placements=[sw.Shard(0)])
>>> y = sw.zeros(6, 2, device_mesh=mesh, placements=[sw.Shard(1)])
>>> with sw.CommDebugMode() as comm:
...     moved = sw.redistribute_many([x, y], [sw.Replicate()])
>>> [z.placements for z in moved], comm.get_total_counts()
([(Replicate(),), (Replicate(),)], 1))";

constexpr const char* kFullTensor =
    R"(The whole tensor, as a plain tensor on every rank of the mesh; differentiable. Each rank must have the same gradient of it, or gradients with
the placements `grad_placements`. Collective over the mesh: all values are gathered.

>>> x = sw.distribute_tensor(torch.arange(4), mesh, [sw.Shard(0)])
>>> x.full_tensor()
tensor([0, 1, 2, 3]))";

constexpr const char* kDistributeTensor =
    R"(Makes a DTensor from a whole tensor, a leaf. `placements`: one per mesh dim; default: all Replicate().

The values and requires_grad are those of the mesh's first rank, or of the rank at index `src_data_rank` of the mesh; it sends each
rank its part. With src_data_rank=None each rank takes its part of its own tensor, and nothing is sent.

If the source rank's tensor is on meta, the result is on meta, and no values are sent. If it has values, the other ranks may give tensors on
meta, of which only the shape is used.

Raises ValueError or IndexError, before any message, for placements that do not fit, and if the source rank's tensor is on meta while
another rank's has values. Raises RuntimeError for a tensor that requires a gradient and is not a leaf: use from_local and redistribute,
which pass the gradient on.

>>> x = sw.distribute_tensor(torch.arange(10.0), mesh, [sw.Shard(0)])  # rank 0's values
>>> x.to_local()
tensor([0., 1., 2.])
>>> x.full_tensor().sum()
tensor(45.))";

constexpr const char* kLayOut =
    R"(An input or output of a module on a 1-D mesh: from_local() of a plain tensor with these placements, redistributed to the desired ones;
this rank's piece with use_local. `n_features`: the size of its last dim, if known. Layers that share an input reduce the sum of its gradients
once.)";

void bind_methods(py::module_& module) {
  const auto none = py::none();
  define(module, "from_local", &py_from_local, "DTensor.from_local with all its arguments.", py::arg("local_tensor"),
         py::arg("device_mesh") = none, py::arg("placements") = none, py::kw_only(), py::arg("run_check") = false,
         py::arg("shape") = none, py::arg("stride") = none, py::arg("grad_placements") = none);
  define(module, "lay_out", &py_lay_out, kLayOut, py::arg("tensor"), py::arg("device_mesh"), py::arg("placements"),
         py::arg("desired"), py::arg("use_local") = false, py::arg("n_features") = none,
         py::arg("is_layer_input") = false);
  define_with_gil(module, "to_local", &py_read<&to_local>, "DTensor.to_local with all its arguments.",
                  py::is_method(module), py::kw_only(), py::arg("grad_placements") = none);
  define(module, "redistribute", &py_redistribute, kRedistribute, py::is_method(module), py::arg("device_mesh") = none,
         py::arg("placements") = none, py::kw_only(), py::arg("async_op") = false, py::arg("forward_dtype") = none,
         py::arg("backward_dtype") = none, py::arg("objective") = "bytes", py::arg("links") = none,
         py::arg("memory_cap") = 0);
  define(module, "full_tensor", &py_read<&full_tensor>, kFullTensor, py::is_method(module), py::kw_only(),
         py::arg("grad_placements") = none);
}

void bind_factories(py::module_& module) {
  const auto def = [&](const char* name, auto function) {
    define(module, name, std::move(function), py::arg("size"), py::arg("dtype"), py::arg("device_mesh"),
           py::arg("placements"), py::arg("requires_grad"));
  };
  def("empty", &py_make<&empty>);
  def("rand", &py_make<&rand>);
  def("randn", &py_make<&randn>);
  define(module, "full", &py_full, py::arg("size"), py::arg("fill_value"), py::arg("dtype"), py::arg("device_mesh"),
         py::arg("placements"), py::arg("requires_grad"));
}

}  // namespace

DTensorImpl& impl_of(const at::Tensor& tensor) {
  spec_of(tensor);  // throws for a plain tensor
  return *maybe_dtensor(tensor);
}

at::Tensor converted_by(const at::Tensor& tensor, py::handle converter) {
  if (!tensor.key_set().has(c10::DispatchKey::Python)) return tensor;
  const py::gil_scoped_acquire gil;
  return converter(tensor).cast<at::Tensor>();
}

void bind_dtensor(py::module_& module) {
  const auto none = py::none();
  bind_methods(module);
  bind_factories(module);
  define(module, "redistribute_many", &py_redistribute_many, kRedistributeMany, py::arg("tensors"),
         py::arg("placements"), py::kw_only(), py::arg("objective") = "bytes", py::arg("links") = none,
         py::arg("memory_cap") = 0, py::arg("bucket_bytes") = kBucketBytes);
  define(module, "distribute_tensor", &py_distribute_tensor, kDistributeTensor, py::arg("tensor"),
         py::arg("device_mesh") = none, py::arg("placements") = none, py::kw_only(), py::arg("src_data_rank") = 0);
  define(module, "distribute_tensors", &py_distribute_tensors,
         "distribute_tensor() of each tensor to its own placements, in few messages.", py::arg("tensors"),
         py::arg("device_mesh"), py::arg("placements"), py::arg("src_data_rank") = 0);
  define(
      module, "from_pieces", &py_from_pieces,
      "A DTensor from this rank's pieces, in the order of its boxes. `sparse_dim`: of sparse ones; 0 for dense ones. "
      "`is_meta`: where there are no pieces to tell. `saved_by`: the rank that saved them, if it may be another.",
      py::arg("pieces"), py::arg("device_mesh"), py::arg("placements"), py::arg("shape"), py::arg("stride"),
      py::arg("dtype"), py::arg("local_form"), py::arg("sparse_dim") = 0, py::arg("is_meta") = false,
      py::arg("saved_by") = none);
  define_with_gil(module, "local_form_of", &local_form_of,
                  "The name of the form of to_local()'s result; \"\" for a plain tensor.", py::arg("tensor"));
  define_with_gil(module, "detached_pieces", &detached_pieces,
                  "This rank's pieces, aliased, without history. `reader` stands in the error for stale ones.",
                  py::arg("tensor"), py::arg("reader"));
  define_with_gil(
      module, "whole_piece", &whole_piece,
      "This rank's piece where it is the whole tensor, with its strides. Raises ValueError, naming `reader`, "
      "where it is not.",
      py::arg("tensor"), py::arg("reader"));
  define_with_gil(module, "to_pieces", &to_pieces, "This rank's pieces, aliased.", py::arg("tensor"));
  define_with_gil(
      module, "is_stale", [](const at::Tensor& tensor) { return impl_of(tensor).is_stale(); },
      "True for a view whose values came from other ranks, and whose source was written to since.", py::arg("tensor"));
  define(
      module, "note_write", [](const at::Tensor& tensor) { const MemoryWrite write = impl_of(tensor).begin_write(); },
      "Announces a write to the pieces of a tensor. Call it before the write, on all ranks alike.", py::arg("tensor"));
  define_with_gil(
      module, "boxes_of", [](const at::Tensor& tensor) { return spec_of(tensor)->boxes().vec(); },
      "(offsets, sizes) of this rank's pieces.", py::arg("tensor"));
  define_with_gil(module, "boxes_of_all", &boxes_of_all, "(rank, offsets, sizes) of every rank's pieces.",
                  py::arg("tensor"));
  define(
      module, "read_box",
      [](int file, int64_t begin, const Dims& sizes, const Dims& offsets, const at::Tensor& to) {
        return read_box(file, begin, sizes, offsets, to.sizes(), to.element_size(), static_cast<char*>(to.data_ptr()));
      },
      "Fills a contiguous CPU tensor with a box of the row-major tensor whose elements begin at byte `begin` of a "
      "file. "
      "Returns the number of bytes read.",
      py::arg("file"), py::arg("begin"), py::arg("sizes"), py::arg("offsets"), py::arg("to"));
  define_with_gil(
      module, "total_norm", &total_norm, py::arg("tensors"), py::arg("norm_type"),
      "The norm of all tensors as one vector: distributed ones of any meshes, and plain ones that are equal on "
      "all ranks.\nOne all-reduce, unless no mesh has the ranks of all others.");
}

}  // namespace shardwise
