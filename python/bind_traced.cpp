// Functions by which python/shardwise/_tracing.py takes distributed tensors apart and puts them together, for torch's tracers.
#include "python/casters.h"
#include "python/package.h"
#include "python/scope.h"
#include "runtime/api/gradient_layout.h"
#include "runtime/api/gradients.h"
#include "runtime/api/local_form.h"
#include "runtime/comm/tracing.h"
#include "runtime/dispatch/copied_view.h"
#include "runtime/dispatch/view_call.h"
#include "runtime/redistribute/leaf_hooks.h"
#include "runtime/redistribute/traced_step.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/ScalarOps.h>
#include <ATen/ops/empty_strided.h>

namespace shardwise {
namespace {

/// Everything about a distributed tensor except its values. Guards of graphs compare it.
struct TensorLayout {
  SpecPtr spec;
  const LocalForm* form;  // of to_local()
  // How to make a view that a traced program returns, and its offset from the first element of the tensor that it views.
  ViewPathPtr path = {};
  int64_t offset = 0;
  bool is_symbolic = false;       // sizes of dims that are whole on each rank are those of the pieces
  std::weak_ptr<void> kept = {};  // by a layer, see LeafHooks

  /// A graph does not depend on how a view was made.
  bool operator==(const TensorLayout& other) const {
    if (is_symbolic || other.is_symbolic) return fits_graphs_of(other);
    return spec == other.spec && form == other.form && kept.lock() == other.kept.lock();  // interned
  }
  /// Compares all but the sizes of dims that are whole on each rank: guards of tensors compare sizes.
  bool fits_graphs_of(const TensorLayout& other) const {
    return form == other.form && kept.lock() == other.kept.lock() &&
           (spec == other.spec || with_whole_sizes(spec, other.spec->sizes()) == other.spec);
  }
  size_t n_pieces() const { return spec->boxes().size(); }

  /// The tensor with these pieces on this rank, aliased, without history. `is_traced`: used if there are no pieces, which would tell otherwise.
  at::Tensor wrap(const std::vector<at::Tensor>& pieces, bool is_traced = false) const {
    TORCH_CHECK_VALUE(pieces.size() == n_pieces(), "[unflatten] got ", pieces.size(), " pieces for ", to_string(*spec),
                      ", but this rank has ", n_pieces(), ". Pass the tensors named by __tensor_flatten__().");
    const SpecPtr own = is_symbolic ? with_sizes_of(spec, pieces.at(0)) : spec;
    for (size_t i = 0; i < pieces.size(); ++i)
      TORCH_CHECK_VALUE(sizes_of(pieces[i]) == own->boxes()[i].sizes, "[unflatten] a piece of sizes ",
                        sizes_of(pieces[i]), " does not fit ", to_string(*own), ", which has ", own->boxes()[i].sizes,
                        " on this rank. Pass the tensors named by __tensor_flatten__().");
    at::Tensor tensor = shardwise::wrap(own, Shards(pieces.begin(), pieces.end()));
    if (form) keep_local_form(tensor, form);
    set_path(*maybe_dtensor(tensor), path);
    tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
    if (const auto of_leaf = kept.lock(); of_leaf && (is_traced || shardwise::is_traced(*maybe_dtensor(tensor))))
      leaf_hooks().give(tensor, of_leaf);
    if (pieces.empty() && is_traced) tensor.unsafeGetTensorImpl()->set_python_dispatch(true);
    return tensor;
  }

  /// The values of `tensor` in this layout, strides included. Collective if the layout differs.
  at::Tensor take(const at::Tensor& tensor) const {
    const SpecPtr own = is_symbolic ? with_whole_sizes(spec, tensor.sizes()) : spec;
    const at::Tensor moved = laid_out_as(tensor, *own);
    const auto* const impl = maybe_dtensor(moved);
    const Shards& given = impl->local_tensors();
    if (impl->holds_subclass()) return moved;
    std::vector<at::Tensor> pieces;
    for (size_t i = 0; i < given.size(); ++i) {
      const Box& box = own->boxes()[i];
      const Dims strides = dense_strides(box.sizes, own->strides());
      const bool fits = given[i].strides() == c10::IntArrayRef(strides) && given[i].scalar_type() == spec->dtype();
      const auto options = given[i].options().dtype(spec->dtype());
      pieces.push_back(fits ? given[i] : at::empty_strided(box.sizes, strides, options).copy_(given[i]));
    }
    return wrap(pieces);
  }
};

/// `tensor` in the layout of its gradient. For a Partial tensor that is replicated; most often it is `tensor` itself.
at::Tensor as_gradient(const at::Tensor& tensor) {
  const SpecPtr spec = spec_of(tensor)->reduced();
  return spec == spec_of(tensor) ? tensor : laid_out_as(tensor.detach(), *spec);
}

/// The layout of `tensor`. In graphs parameters are taken apart before operators see them, so the gradient layout of a leaf, which operators
/// otherwise set, is set here.
TensorLayout tensor_layout_of(const at::Tensor& tensor) {
  DTensorImpl& impl = impl_of(tensor);
  const SpecPtr& spec = impl.spec();
  const bool is_symbolic = impl.symbols() != nullptr;
  const std::weak_ptr<void> kept = leaf_hooks().of(tensor);
  if (is_traced(impl))
    return {spec,          impl.local_form(),
            path_of(impl), is_symbolic || impl.has_symbolic_sizes_strides() ? 0 : impl.storage_offset(),
            is_symbolic,   kept};
  if (wants_gradient_layout(impl)) lay_out_gradient(impl);
  return {.spec = spec, .form = impl.local_form(), .kept = kept};
}

/// The piece itself, not an alias, because tracers identify tensors by object.
at::Tensor piece_at(const at::Tensor& tensor, size_t i) { return impl_of(tensor).local_tensors().at(i); }

/// Call this after a graph wrote to the pieces of `tensor`. Collective over the source's mesh for a copied view.
void note_graph_write(const at::Tensor& tensor) {
  const DTensorImpl& impl = impl_of(tensor);
  {
    const MemoryWrite write = impl.begin_write();
  }
  after_write(impl);
}

/// `number` as a tensor that does not determine the dtype of an operator's result.
at::Tensor wrapped_number(const Number& number) {
  const OutsideTracers outside;
  at::Tensor tensor = c10::scalar_to_tensor(scalar_of(number));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

using PieceMeta = std::tuple<Dims, Dims, at::ScalarType, c10::Device>;

/// (sizes, strides, dtype, device) of this rank's pieces of the results of the step with this text.
std::vector<PieceMeta> pieces_of_step(const std::string& what) {
  std::vector<PieceMeta> result;
  for (const SpecPtr& spec : results_of_step(what))
    for (const Box& box : spec->boxes())
      result.emplace_back(box.sizes, dense_strides(box.sizes, spec->strides()), spec->dtype(), spec->mesh()->device());
  return result;
}

constexpr SymbolHooks kSymbolHooks{
    .values =
        [](c10::SymIntArrayRef sizes) {
          const py::gil_scoped_acquire gil;
          return package().symbol_values(sizes.vec()).cast<Dims>();
        },
    .fix =
        [](c10::SymIntArrayRef sizes) {
          const py::gil_scoped_acquire gil;
          package().fix_symbols(sizes.vec());
        },
    .without_symbols =
        [](const at::Tensor& piece) {
          const py::gil_scoped_acquire gil;
          return package().without_symbols(piece).cast<at::Tensor>();
        },
    .evaluate =
        [](c10::SymIntArrayRef sizes, c10::SymIntArrayRef symbols, c10::IntArrayRef values) {
          const py::gil_scoped_acquire gil;
          return package().evaluate_symbols(sizes.vec(), symbols.vec(), values.vec()).cast<Dims>();
        }};

}  // namespace

void bind_traced(py::module_& module) {
  using torch::wrap_pybind_function;
  set_symbol_hooks(kSymbolHooks);
  py::class_<TensorLayout>(
      module, "TensorLayout",
      "The layout, mesh, strides and dtype of a distributed tensor, for which a graph is compiled.")
      .def_property_readonly("n_pieces", &TensorLayout::n_pieces, "How many this rank has.")
      .def_property_readonly(
          "dtype", [](const TensorLayout& self) { return self.spec->dtype(); }, "Of the elements.")
      .def_property_readonly(
          "device", [](const TensorLayout& self) { return self.spec->mesh()->device(); }, "Where pieces are.")
      .def("wrap", wrap_pybind_function(&TensorLayout::wrap),
           "The DTensor of these pieces, aliased, without history. `is_traced`: used if there are no pieces.",
           py::arg("pieces"), py::arg("is_traced") = false)
      .def("take", wrap_pybind_function(&TensorLayout::take),
           "The values of a DTensor in this layout. Collective if the layout differs.", py::arg("tensor"))
      .def(py::self == py::self)
      .def("fits_graphs_of", &TensorLayout::fits_graphs_of,
           "Whether a graph for the other layout is one for this, given equal sizes.", py::arg("other"))
      .def("__deepcopy__", [](const TensorLayout& self, const py::object&) { return self; })  // it is immutable
      .def("__hash__",
           [](const TensorLayout& self) {
             return std::hash<const void*>()(self.spec->mesh().get());
           })  // sizes may differ
      .def("__repr__", [](const TensorLayout& self) { return to_string(*self.spec); });
  define_with_gil(module, "as_gradient", &as_gradient, "A DTensor in the layout of its gradient.", py::arg("tensor"));
  define_with_gil(module, "layout_of", &tensor_layout_of, "Everything of a DTensor but its values.", py::arg("tensor"));
  define_with_gil(module, "piece_at", &piece_at, "This rank's i-th piece itself.", py::arg("tensor"), py::arg("i"));
  define(module, "note_graph_write", &note_graph_write, "Counts a write of a graph to the pieces of a DTensor.",
         py::arg("tensor"));
  define(module, "view_again", &view_again, "The view of `base` that a compiled program returned as `view`.",
         py::arg("base"), py::arg("view"));
  define_with_gil(module, "wrapped_number", &wrapped_number, "A number as an operand next to tensors.",
                  py::arg("number"));
  bind_scope<KeepsSymbols, std::string, size_t, std::vector<c10::SymInt>>(
      module, "KeepsSymbols",
      "A `with` block in which reads of sizes as numbers fix no symbols. `sizes`: an argument of the operator `op`.")
      .def(py::init<std::string, size_t, std::vector<c10::SymInt>>(), py::arg("op") = "", py::arg("argument") = 0,
           py::arg("sizes") = std::vector<c10::SymInt>());
  define_with_gil(
      module, "has_symbols",
      [](const at::Tensor& tensor) { return is_dtensor(tensor) && impl_of(tensor).symbols() && has_symbols(tensor); },
      "Whether `tensor` is a traced DTensor and its sizes are symbols.", py::arg("tensor"));
  define_with_gil(
      module, "keeps_symbols", [](const std::string& op) { return RuleTable::global().keeps_symbols(op); },
      "Whether operator `op` keeps symbols of sizes, besides pointwise ones.", py::arg("op"));
  define_with_gil(module, "pieces_of_step", &pieces_of_step,
                  "(sizes, strides, dtype, device) of the pieces that the step with this text gives.", py::arg("what"));
}

}  // namespace shardwise
