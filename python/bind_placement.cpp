#include "placements/split.h"
#include "python/casters.h"
#include "python/package.h"
#include "text/check.h"

#include <ATen/ops/constant_pad_nd.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

/// The classes that users see: one per kind, so that isinstance and pattern matching work.
struct PyShard : Placement {};
struct PyBlockShard : PyShard {};
struct PyReplicate : Placement {};
struct PyPartial : Placement {};
struct PyEnumerableShard : Placement {};
struct PyRaggedShard : Placement {};

template <class Kind>
Kind as(Placement placement) {
  Kind result;
  static_cast<Placement&>(result) = std::move(placement);
  return result;
}

/// The constructor's arguments, with which a placement is pickled.
struct Arguments {
  py::tuple replicate() const { return py::tuple(); }
  py::tuple partial(Reduce reduce) const { return py::make_tuple(to_string(reduce)); }
  py::tuple shard(int64_t dim, c10::IntArrayRef sizes) const {
    if (sizes.empty()) return py::make_tuple(dim);
    return py::make_tuple(dim, sizes);
  }
  py::tuple block_shard(int64_t dim, int64_t block) const { return py::make_tuple(dim, block); }
  py::tuple strided_shard(int64_t dim, int64_t factor) const { return py::make_tuple(dim, factor); }
  py::tuple enumerable(c10::ArrayRef<ShardMetadata> pieces) const { return py::make_tuple(py::cast(pieces.vec())); }
  py::tuple ragged(c10::IntArrayRef dims, c10::IntArrayRef units) const { return py::make_tuple(dims, units); }
};

/// The placement as an object of its class.
struct Classified {
  const Placement& placement;

  py::object replicate() const { return py::cast(as<PyReplicate>(placement)); }
  py::object partial(Reduce) const { return py::cast(as<PyPartial>(placement)); }
  py::object shard(int64_t, c10::IntArrayRef) const { return py::cast(as<PyShard>(placement)); }
  py::object block_shard(int64_t, int64_t) const { return py::cast(as<PyBlockShard>(placement)); }
  py::object strided_shard(int64_t dim, int64_t factor) const { return package().strided_shard(dim, factor); }
  py::object enumerable(c10::ArrayRef<ShardMetadata>) const { return py::cast(as<PyEnumerableShard>(placement)); }
  py::object ragged(c10::IntArrayRef, c10::IntArrayRef) const { return py::cast(as<PyRaggedShard>(placement)); }
};

using WithFactor = std::pair<Placement, int64_t>;

/// Converts one of torch's own placements by its class name and attributes, because no C++ type is shared with torch. nullopt if `object` is none.
std::optional<WithFactor> maybe_from_torch(py::handle object) {
  const py::handle type = py::type::handle_of(object);
  const auto name = py::str(type.attr("__name__")).cast<std::string>();
  if (name != "Shard" && name != "Replicate" && name != "Partial" && name != "_StridedShard") return std::nullopt;
  if (!py::str(type.attr("__module__")).cast<std::string>().starts_with("torch.")) return std::nullopt;
  if (name == "Replicate") return WithFactor{Placement::replicate(), 1};
  if (name == "Partial")
    return WithFactor{Placement::partial(reduce_from_string(object.attr("reduce_op").cast<std::string>())), 1};
  const int64_t split_factor = name == "_StridedShard" ? object.attr("split_factor").cast<int64_t>() : 1;
  return WithFactor{Placement::shard(object.attr("dim").cast<int64_t>()), split_factor};
}

/// torch's own hash if torch has the placement, so that equal placements of both libraries are found in each other's sets.
Py_hash_t hash_of(const Placement& placement) {
  if (placement.is_whole()) return py::hash(py::int_(-1));
  if (placement.is_chunk()) return py::hash(py::int_(placement.dim()));
  if (const auto reduce = placement.terms()) return 1 + py::hash(py::str(std::string(to_string(*reduce))));
  return static_cast<Py_hash_t>(placement.hash());
}

void check_part(int64_t index, int64_t n_parts) {
  SW_CHECK_INDEX(index >= 0 && index < n_parts, "[placements] part {} of {} does not exist. Use one in [0, {}).", index,
                 n_parts, n_parts);
}

/// (size, offset) of the part at `index` of torch.chunk's split of `length` elements in `n_parts`.
std::pair<int64_t, int64_t> part_of_split(int64_t length, int64_t n_parts, int64_t index) {
  check_part(index, n_parts);
  const Interval part = detail::split_at({.range = {0, length}}, Placement::shard(0), n_parts, index).range;
  return {part.length(), part.begin};
}

at::Tensor padded_at_end(const at::Tensor& tensor, int64_t dim, int64_t length) {
  Dims padding(2 * (tensor.dim() - dim), 0);  // pairs, from the last dim on
  padding.back() = length;
  return length == 0 ? tensor : at::constant_pad_nd(tensor, padding);
}

/// The part of `tensor` for each of `n_parts` ranks, empty if there is none, and the padding of each. With padding all parts are as long as the longest.
std::pair<std::vector<at::Tensor>, Numbers> split_tensor(const Placement& shard, const at::Tensor& tensor,
                                                         int64_t n_parts, bool with_padding, bool contiguous) {
  const int64_t n_dims = tensor.dim(), dim = shard.with_dim_from_zero(n_dims).dim();
  SW_CHECK_INDEX(shard.fits_dims(n_dims), "[placements] {} splits a tensor of {} dims. Use a dim in [{}, {}).",
                 to_string(shard), n_dims, -n_dims, n_dims);
  SW_CHECK_VALUE(shard.sizes().empty() || static_cast<int64_t>(shard.sizes().size()) == n_parts,
                 "[placements] {} has extents for {} ranks. Split in as many parts, not in {}.", to_string(shard),
                 shard.sizes().size(), n_parts);
  const Dims sizes = part_sizes(shard, tensor.size(dim), n_parts);
  const int64_t longest = sizes.empty() ? 0 : *std::ranges::max_element(sizes);
  std::pair<std::vector<at::Tensor>, Numbers> result;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    at::Tensor part = tensor.narrow(dim, begin, size);
    if (with_padding) {
      part = padded_at_end(part, dim, longest - size);
      result.second.push_back(longest - size);
    }
    result.first.push_back(contiguous ? part.contiguous() : part);
    begin += size;
  }
  return result;
}

at::Tensor select_part(const Placement& shard, const at::Tensor& tensor, int64_t n_parts, int64_t index,
                       bool with_padding, bool contiguous, bool clone) {
  const std::vector<at::Tensor> parts = split_tensor(shard, tensor, n_parts, with_padding, contiguous && !clone).first;
  check_part(index, n_parts);
  return clone ? parts[index].clone() : parts[index];
}

void bind_shard_metadata(py::module_& module) {
  py::class_<ShardMetadata>(
      module, "ShardMetadata",
      R"(One piece of an EnumerableShard: the box that begins at `offsets`, with `sizes` (in elements, one per tensor dim), on the global `rank`.

>>> piece = sw.ShardMetadata(offsets=(2, 0), sizes=(3, 4), rank=1)
>>> piece
ShardMetadata(offsets=[2, 0], sizes=[3, 4], rank=1)
>>> piece.offsets, piece.sizes, piece.rank
((2, 0), (3, 4), 1))")
      .def(py::init([](Dims offsets, Dims sizes, int64_t rank) {
             return ShardMetadata{std::move(offsets), std::move(sizes), rank};
           }),
           py::arg("offsets"), py::arg("sizes"), py::arg("rank"))
      .def_property_readonly("offsets", [](const ShardMetadata& self) { return c10::IntArrayRef(self.offsets); })
      .def_property_readonly("sizes", [](const ShardMetadata& self) { return c10::IntArrayRef(self.sizes); })
      .def_readonly("rank", &ShardMetadata::rank)
      .def(py::self == py::self)
      .def("__hash__", [](const ShardMetadata& self) { return py::hash(py::str(to_string(self))); })
      .def("__repr__", [](const ShardMetadata& self) { return to_string(self); })
      .def("__reduce__", [](const py::object& self) {
        const auto& piece = self.cast<const ShardMetadata&>();
        return py::make_tuple(py::type::of(self), py::make_tuple(c10::IntArrayRef(piece.offsets),
                                                                 c10::IntArrayRef(piece.sizes), piece.rank));
      });
}

}  // namespace

std::pair<Placement, int64_t> to_written(py::handle object) {
  if (auto placement = held_by<Placement>(object)) return {*std::move(placement), 1};
  if (auto placement = maybe_from_torch(object)) return *std::move(placement);
  if (py::hasattr(object, "real_obj"))
    return to_written(object.attr("real_obj"));  // a tracer's: torch passes it across a graph break
  C10_THROW_ERROR(TypeError,
                  fmt::format("[placements] {} is no placement. Use Shard, Replicate, Partial, RaggedShard or "
                              "EnumerableShard.",
                              py::repr(object).cast<std::string>()));
}

Placement to_placement(py::handle object) {
  auto [placement, split_factor] = to_written(object);
  SW_CHECK_VALUE(split_factor == 1,
                 "[placements] {} splits a dim that a later mesh dim has already split, but no mesh is given here. Use "
                 "Shard, with placements for a mesh whose dims are in the order of the splits.",
                 py::repr(object).cast<std::string>());
  return placement;
}

void refuse_bare_placement(py::handle object) {
  if (!py::isinstance<Placement>(object) && !maybe_from_torch(object)) return;
  const std::string text = to_string(to_written(object).first);
  C10_THROW_ERROR(TypeError, fmt::format("[placements] {0} is a single placement. Give a sequence with one placement "
                                         "per mesh dim: [{0}] on a mesh of one dim.",
                                         text));
}

py::object from_placement(const Placement& placement) { return placement.visit(Classified{placement}); }

py::object from_written(const Placement& placement, int64_t split_factor) {
  if (split_factor == 1) return from_placement(placement);
  return from_placement(Placement::strided_shard(placement.dim(), split_factor));
}

void bind_placement(py::module_& module) {
  bind_shard_metadata(module);

  py::class_<Placement>(module, "Placement",
                        R"(How one mesh dim treats a tensor: the base of the five kinds.

>>> isinstance(sw.Shard(0), sw.Placement), isinstance(sw.Partial(), sw.Shard)
(True, False)
>>> sw.Shard(0) == sw.Shard(0), sw.Shard(0) == sw.Shard(0, sizes=[1, 2])
(True, False))")
      .def(
          "is_shard",
          [](const Placement& self, std::optional<int64_t> dim) {
            return self.divides() && !self.places_boxes() && self.dim() == dim.value_or(self.dim());
          },
          py::arg("dim") = py::none(), "Whether this is a Shard, and, if `dim` is given, of that tensor dim.")
      .def("is_replicate", &Placement::is_whole)
      .def(
          "is_partial",
          [](const Placement& self, const std::optional<std::string>& reduce_op) {
            return self.terms() && (!reduce_op || self.terms() == reduce_from_string(*reduce_op));
          },
          py::arg("reduce_op") = py::none(),
          "Whether this is a Partial, and, if `reduce_op` is given, with that reduction.")
      .def(py::self == py::self)
      .def("__eq__",
           [](const Placement& self, const py::object& other) -> py::object {
             const auto placement = maybe_from_torch(other);
             if (!placement) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
             return py::cast(placement->second == 1 && self == placement->first);
           })
      .def("__hash__", &hash_of)
      .def("__repr__", [](const Placement& self) { return to_string(self); })
      .def("__reduce__", [](const py::object& self) {
        return py::make_tuple(py::type::of(self), self.cast<const Placement&>().visit(Arguments()));
      });

  py::class_<PyShard, Placement>(
      module, "Shard",
      R"(Tensor dim `dim` is split along this mesh dim. Without `sizes` it is split as torch.chunk splits it: 10 rows over 4 ranks are 3, 3, 3 and 1.
`sizes`: the number of indices of each mesh coordinate; zeros are allowed, and the sum must be the size of the dim.

>>> sw.distribute_tensor(torch.arange(10), mesh, [sw.Shard(0)]).to_local()  # ranks have 3, 3, 3 and 1
tensor([0, 1, 2])
>>> sw.distribute_tensor(torch.arange(10), mesh, [sw.Shard(0, sizes=[1, 4, 0, 5])]).to_local()
tensor([0]))")
      .def(py::init([](int64_t dim, const std::optional<Numbers>& sizes) {
             return as<PyShard>(sizes ? Placement::shard(dim, *sizes) : Placement::shard(dim));
           }),
           py::arg("dim"), py::arg("sizes") = py::none())
      .def_property_readonly("dim", &Placement::dim)
      .def_property_readonly(
          "sizes",
          [](const Placement& self) { return self.sizes().empty() ? std::nullopt : std::optional(self.sizes()); },
          "The explicit extents, None for torch.chunk's split.")
      .def_static("local_shard_size_and_offset", &part_of_split, py::arg("curr_local_size"), py::arg("num_chunks"),
                  py::arg("rank"), "(size, offset) of part `rank` of torch.chunk's split in `num_chunks`.")
      // For programs that send parts themselves.
      .def("_split_tensor", torch::wrap_pybind_function(&split_tensor),
           "(the part of `tensor` for each of `num_chunks` ranks, by how much each was padded): padded to the longest "
           "unless told otherwise.",
           py::arg("tensor"), py::arg("num_chunks"), py::kw_only(), py::arg("with_padding") = true,
           py::arg("contiguous") = true)
      .def("_select_split_tensor", torch::wrap_pybind_function(&select_part),
           "The part of `tensor` for rank `index` of `num_chunks`.", py::arg("tensor"), py::arg("num_chunks"),
           py::arg("index"), py::kw_only(), py::arg("with_padding") = true, py::arg("contiguous") = true,
           py::arg("clone") = true);

  py::class_<PyBlockShard, PyShard>(
      module, "BlockShard",
      "Blocks of `block` indices along tensor dim `dim` are split among the ranks along this mesh dim as torch.chunk "
      "splits indices, and no block is cut: blocks of quantised weights, heads, or matrices that an optimizer "
      "orthogonalises. The last block may be short. Several mesh dims on one tensor dim keep the blocks whole, too.\n\n"
      "It is a Shard, whose `sizes` a tensor's placements show. Operators that keep the dim keep the blocks; where one "
      "changes the dim's size, the result is a Shard with sizes.\n\n"
      "Raises ValueError for a block below 1.\n\n"
      ">>> x = sw.distribute_tensor(torch.arange(10), mesh, [sw.BlockShard(0, block=4)])  # ranks have 4, 4, 2 and 0\n"
      ">>> x.to_local(), x.placements[0].sizes, (x + 1).placements\n"
      "(tensor([0, 1, 2, 3]), (4, 4, 2, 0), (BlockShard(0, block=4),))\n"
      ">>> x[:8].placements\n"
      "(Shard(0, sizes=[4, 4, 0, 0]),)")
      .def(py::init([](int64_t dim, int64_t block) { return as<PyBlockShard>(Placement::block_shard(dim, block)); }),
           py::arg("dim"), py::arg("block"))
      .def_property_readonly("block", &Placement::block);

  py::class_<PyReplicate, Placement>(module, "Replicate",
                                     "Every rank along this mesh dim has the same values.\n\n"
                                     ">>> x = sw.distribute_tensor(torch.arange(4.0), mesh, [sw.Replicate()])\n"
                                     ">>> x.to_local()\n"
                                     "tensor([0., 1., 2., 3.])")
      .def(py::init([] { return as<PyReplicate>(Placement::replicate()); }));

  py::class_<PyPartial, Placement> partial(
      module, "Partial",
      R"(Each rank along this mesh dim has one term; the tensor is the `reduce_op` (sum, avg, max, min or product) of the terms.

>>> x = sw.DTensor.from_local(torch.ones(3), mesh, [sw.Partial()])  # a term of one on each of four ranks
>>> (x + x).placements, (x + x).full_tensor()
((Partial(sum),), tensor([8., 8., 8.]))
>>> sw.DTensor.from_local(torch.tensor([float(rank)]), mesh, [sw.Partial("max")]).full_tensor()
tensor([3.]))");
  partial
      .def(py::init([](const std::string& reduce_op) {
             return as<PyPartial>(Placement::partial(reduce_from_string(reduce_op)));
           }),
           py::arg("reduce_op") = "sum")
      .def_property_readonly("reduce_op", [](const Placement& self) { return to_string(self.reduce()); });
  py::list all, linear;
  for (const Reduce reduce : {Reduce::kSum, Reduce::kAvg, Reduce::kMin, Reduce::kMax, Reduce::kProduct}) {
    all.append(to_string(reduce));
    if (is_linear(reduce)) linear.append(to_string(reduce));
  }
  partial.attr("ALL_REDUCE_OPS") = py::tuple(all);
  partial.attr("LINEAR_REDUCE_OPS") = py::tuple(linear);

  py::class_<PyEnumerableShard, Placement>(
      module, "EnumerableShard",
      R"(Boxes that tile the tensor, any number of them per rank, such as TorchRec's column-wise, table-wise and grid-wise shards. The boxes must not
overlap, and must cover the tensor. The mesh must have one dim.

>>> pieces = [sw.ShardMetadata((0, 0), (2, 6), 0), sw.ShardMetadata((2, 0), (3, 4), 1), sw.ShardMetadata((2, 4), (3, 2), 0)]
>>> x = sw.distribute_tensor(torch.arange(30.0).view(5, 6), mesh, [sw.EnumerableShard(pieces)])  # ranks 2 and 3: nothing
>>> x[4].full_tensor()
tensor([24., 25., 26., 27., 28., 29.]))")
      .def(py::init([](std::vector<ShardMetadata> shards) {
             return as<PyEnumerableShard>(Placement::enumerable(std::move(shards)));
           }),
           py::arg("shards"))
      .def_property_readonly("shards", [](const Placement& self) { return self.pieces().vec(); });

  py::class_<PyRaggedShard, Placement>(
      module, "RaggedShard",
      R"(Each rank has a contiguous range of the flattened leading `dims` (0, 1, ...), with all elements of the other dims. `local_units`: one number
per mesh coordinate, zeros allowed; the lengths of the ranges are proportional to them. Of `length` flattened elements, the range of
coordinate i begins at floor(length * sum(local_units[:i]) / sum(local_units)) and ends where the next range begins, so any length is allowed.

The local tensor is one contiguous buffer, [elements of the flattened dims, *the other dims]. Other mesh dims may replicate, shard or be
Partial. All Shards are applied first, and the ranges divide the box that remains, wherever the RaggedShard stands in the list.

Raises ValueError for dims that are not the leading ones, and for units that are negative or all zero.

>>> x = sw.distribute_tensor(torch.arange(20.0).view(4, 5), mesh, [sw.RaggedShard((0, 1), (2, 3, 0, 5))])
>>> x.to_local(), (x + 1).to_local()  # the first two tenths of 20 elements
(tensor([0., 1., 2., 3.]), tensor([1., 2., 3., 4.]))
>>> x.redistribute(placements=[sw.Shard(0)]).to_local()
tensor([[0., 1., 2., 3., 4.]]))")
      .def(py::init([](const Numbers& dims, const Numbers& local_units) {
             return as<PyRaggedShard>(Placement::ragged(dims, local_units));
           }),
           py::arg("dims"), py::arg("local_units"))
      .def_property_readonly("dims", [](const Placement& self) { return py::tuple(py::cast(self.flattened_dims())); })
      .def_property_readonly("local_units", &Placement::units);
}

}  // namespace shardwise
