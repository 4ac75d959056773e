// The Python class of distributed tensors: how new tensors get it, its two methods that take a fast path, its properties, and steps of optimizers.
#include "python/casters.h"
#include "runtime/api/from_local.h"
#include "runtime/api/gradient_layout.h"
#include "runtime/api/to_local.h"
#include "runtime/comm/events.h"
#include "runtime/dispatch/view_call.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/reordered_mesh.h"
#include "runtime/tensor/version_counter.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

namespace shardwise {
namespace {

PyTypeObject* tensor_class = nullptr;
py::handle general_to_local, general_from_local;  // bound by bind_dtensor.cpp

/// Gives a new distributed tensor its Python object, of our class. Taking the GIL by PyGILState_Ensure() costs half as much as pybind11's guard.
void attach(const at::Tensor& tensor) {
  const PyGILState_STATE state = PyGILState_Ensure();
  auto* const impl = tensor.unsafeGetTensorImpl();
  const bool is_traced = impl->key_set().has(c10::DispatchKey::Python);
  PyObject* object = THPVariable_Wrap(tensor, tensor_class);
  impl->set_python_dispatch(is_traced);  // the class has a __torch_dispatch__, for traced tensors only
  Py_XDECREF(object);
  if (object) return PyGILState_Release(state);
  python_error error;
  error.persist();
  PyGILState_Release(state);
  throw error;
}

PyObject* no_torch_function = nullptr;

/// Looks up an attribute by C name. Before each call torch looks up "__torch_function__" of every operand this way, and our class has none. The
/// ordinary lookup takes a thousand instructions.
PyObject* attribute_by_c_name(PyObject* self, char* name) {
  if (Py_TYPE(self) == tensor_class && std::strcmp(name, "__torch_function__") == 0)
    return Py_NewRef(no_torch_function);
  const auto text = py::reinterpret_steal<py::object>(PyUnicode_FromString(name));
  return text ? PyObject_GetAttr(self, text.ptr()) : nullptr;
}

void set_attribute_by_c_name() {
  no_torch_function = py::object(py::module_::import("torch._C").attr("_disabled_torch_function_impl")).release().ptr();
  const py::object ours = py::handle(reinterpret_cast<PyObject*>(tensor_class)).attr("__torch_function__");
  if (ours.is(py::handle(no_torch_function))) tensor_class->tp_getattr = &attribute_by_c_name;
}

constexpr const char* kFromLocal =
    R"(Makes a DTensor of which `local_tensor` is this rank's piece. The piece is aliased, not copied; differentiable.

- `placements`: one per mesh dim; default: all Replicate().
- `shape`, `stride`: those of the whole tensor, in elements. Without them, all ranks are assumed to have pieces of the same sizes.
- `run_check`: the ranks compare shapes, dtypes and requires_grad, and replicas become equal to the first rank's. With `shape`, the pieces may
  have any sizes along sharded dims, and Shards without sizes get them. This communicates; without it a plain tensor sends nothing.
- `grad_placements`: the placements of the gradient; default: `placements`.

A LocalShardsWrapper has offsets: the ranks exchange them once, and the placements become exact. Then every rank of the mesh must give a
wrapper, an empty one if it has no piece: if a rank gives a plain tensor, the others wait for it until the time-out. With `shape` and exact
placements (Shards with sizes, or an EnumerableShard) nothing is exchanged, except under `run_check`.

If the pieces are on meta, so is the DTensor. Either all ranks' pieces are on meta, or none.

Raises ValueError if the piece does not have the sizes that the placements give this rank.

>>> x = sw.DTensor.from_local(torch.full((2, 3), float(rank)), mesh, [sw.Shard(0)])
>>> x.shape, x[:, 0].full_tensor()
(torch.Size([8, 3]), tensor([0., 0., 1., 1., 2., 2., 3., 3.])))";

constexpr const char* kToLocal =
    R"(This rank's piece, aliased: a write to it is a write to this tensor. Empty on a rank outside the mesh. If the tensor was made from a
LocalShardsWrapper, or if ranks hold several pieces, the result is a wrapper.

`grad_placements`: the placements of the piece's gradient; default: those of this tensor, with Replicate() for Partial.

Nothing is sent; an async move is waited for. Raises ValueError for a view whose values came from other ranks and whose base was written to
since.

>>> x = sw.ones(10, 3, device_mesh=mesh, placements=[sw.Shard(0)])
>>> x.to_local().shape  # this rank's rows, in the same memory
torch.Size([3, 3]))";

/// True if to_local() of `tensor` returns `piece` itself, which has a Python object, so that nothing is made and nothing can fail.
bool is_local_result(const at::Tensor& piece, const at::Tensor& tensor) {
  return !c10::GradMode::is_enabled() && piece.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() &&
         !tensor._fw_grad(0).defined() &&
         share_version_counter(*piece.unsafeGetTensorImpl(), *tensor.unsafeGetTensorImpl());
}

/// DTensor.to_local without arguments: a method slot that avoids pybind11's argument parsing, which is four fifths of the call. All other calls go to
/// the general binding.
PyObject* to_local_method(PyObject* self, PyObject* const* args, Py_ssize_t n_args, PyObject* names) {
  if (n_args == 0 && !names && (Py_TYPE(self) == tensor_class || THPVariable_Check(self))) {
    const at::Tensor& tensor = THPVariable_Unpack(self);
    const auto* impl = maybe_dtensor(tensor);
    if (impl && !impl->is_pending() && !impl->view_link() && !impl->local_form() && impl->local_tensors().size() == 1 &&
        impl->spec()->layout().has_one_box_each()) {
      const at::Tensor& piece = impl->local_tensors()[0];
      if (is_local_result(piece, tensor)) return THPVariable_Wrap(piece);
      HANDLE_TH_ERRORS
      return THPVariable_Wrap(to_piece(tensor));  // what to_local() gives here
      END_HANDLE_TH_ERRORS
    }
  }
  std::vector<PyObject*> all{self};
  all.insert(all.end(), args, args + n_args + (names ? PyTuple_GET_SIZE(names) : 0));
  return PyObject_Vectorcall(general_to_local.ptr(), all.data(), all.size() - (names ? PyTuple_GET_SIZE(names) : 0),
                             names);
}

/// The mesh and the placements of a from_local() call without further arguments; else nulls.
std::pair<PyObject*, PyObject*> mesh_and_placements(PyObject* const* args, Py_ssize_t n_args, PyObject* names) {
  constexpr std::pair<PyObject*, PyObject*> kMore{nullptr, nullptr};
  // Calls hold names as interned strings, of which there is one object each.
  static PyObject* const mesh_name = PyUnicode_InternFromString("device_mesh");
  static PyObject* const placements_name = PyUnicode_InternFromString("placements");
  static PyObject* const run_check_name = PyUnicode_InternFromString("run_check");
  if (n_args < 1 || n_args > 3 || !THPVariable_Check(args[0])) return kMore;
  if (THPVariable_Unpack(args[0]).key_set().has(c10::DispatchKey::Python)) return kMore;
  PyObject* mesh = n_args > 1 ? args[1] : Py_None;
  PyObject* placements = n_args > 2 ? args[2] : Py_None;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
    PyObject *const name = PyTuple_GET_ITEM(names, i), *const value = args[n_args + i];
    if (name == mesh_name && n_args < 2)
      mesh = value;
    else if (name == placements_name && n_args < 3)
      placements = value;
    else if (name != run_check_name || value != Py_False)
      return kMore;
  }
  return mesh == Py_None || placements == Py_None ? kMore : std::pair(mesh, placements);
}

/// nullopt if they are no mesh of ours or no placements: the general binding then converts them or raises.
std::optional<std::pair<MeshPtr, Placements>> converted(PyObject* mesh, PyObject* placements) {
  const auto held = held_by<std::shared_ptr<DeviceMesh>>(mesh);
  if (!held) return std::nullopt;
  try {
    return std::pair(*held, py::handle(placements).cast<Placements>());
  } catch (const std::exception&) {
    PyErr_Clear();
    return std::nullopt;
  }
}

/// DTensor.from_local without further arguments, and without pybind11's argument parsing, as to_local above. It keeps the GIL, which only waits for
/// messages release (runtime/comm/gil_release.h).
PyObject* from_local_method(PyObject*, PyObject* const* args, Py_ssize_t n_args, PyObject* names) {
  const auto [given_mesh, given_placements] = mesh_and_placements(args, n_args, names);
  if (given_mesh)
    if (auto layout = converted(given_mesh, given_placements)) {
      HANDLE_TH_ERRORS
      return THPVariable_Wrap(from_local(THPVariable_Unpack(args[0]), layout->first, std::move(layout->second), {}));
      END_HANDLE_TH_ERRORS
    }
  return PyObject_Vectorcall(general_from_local.ptr(), args, n_args, names);
}

constexpr const char* kPlacements = "The placements, one per mesh dim.";
constexpr const char* kDeviceMesh = "The mesh whose ranks hold the pieces.";

/// The placements and the mesh that users see of a Spec, as Python's objects. The mesh's object lives as long as others hold it.
struct SeenLayout {
  c10::weak_intrusive_ptr<Spec> spec;
  py::object placements, mesh_reference;
};

/// The layout of `spec`, which is kept for the next call. `mesh`: its mesh. With the GIL.
py::object seen_placements(const SpecPtr& spec, py::object* mesh = nullptr) {
  constexpr size_t kKept = 256;
  static auto* const kept =
      new std::array<std::optional<SeenLayout>, kKept>();  // until the process ends, as Python's objects
  std::optional<SeenLayout>& seen =
      (*kept)[reinterpret_cast<uintptr_t>(spec.get()) / alignof(std::max_align_t) % kKept];
  const bool is_known = seen && seen->spec._unsafe_get_target() == spec.get();
  if (is_known && mesh) *mesh = py::reinterpret_borrow<py::object>(PyWeakref_GetObject(seen->mesh_reference.ptr()));
  if (is_known && !(mesh && mesh->is_none())) return seen->placements;
  const UserLayout layout = user_layout_of(*spec);
  const py::object found = from_mesh(layout.mesh), placements = py::cast(layout.placements);
  seen = SeenLayout{c10::weak_intrusive_ptr<Spec>(spec), placements, py::weakref(found)};
  if (mesh) *mesh = found;
  return placements;
}

PyObject* get_placements(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  return seen_placements(spec_of(THPVariable_Unpack(self))).release().ptr();
  END_HANDLE_TH_ERRORS
}

PyObject* get_device_mesh(PyObject* self, void*) {
  HANDLE_TH_ERRORS
  py::object mesh;
  seen_placements(spec_of(THPVariable_Unpack(self)), &mesh);
  return mesh.release().ptr();
  END_HANDLE_TH_ERRORS
}

/// True if the piece of `tensor` may stand for it next to the piece of `leader` in an elementwise function. The answer is the same on all
/// ranks of the mesh: layouts in pieces take the operators, which may send.
bool has_piece_for(DTensorImpl& tensor, const DTensorImpl& leader) {
  const Spec &spec = *tensor.spec(), &leading = *leader.spec();
  if (!is_for_kernel(tensor) || tensor.is_inference() || is_traced(tensor) || tensor.layout() != c10::kStrided ||
      !spec.is_member() || !spec.layout().has_one_box_each())
    return false;
  if (&tensor == &leader) return !spec.layout().has_terms();
  return &spec == &leading || (spec.mesh() == leading.mesh() && spec.layout() == leading.layout());
}

/// The lists of tensors that an optimizer's function takes: parameters, gradients, and each kind of state.
struct ListsOfPieces {
  py::tuple lists;
  std::vector<DTensorImpl*> tensors;  // of all lists, one after the other

  /// Adds `list` with a piece in place of each tensor. False if that may not be; numbers stay what they are.
  bool add(PyObject* list, size_t place) {
    if (!PyList_Check(list)) return false;
    py::list pieces(PyList_GET_SIZE(list));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
      PyObject* object = PyList_GET_ITEM(list, i);
      if (Py_TYPE(object) == tensor_class) {
        auto* const impl = maybe_dtensor(THPVariable_Unpack(object));
        tensors.push_back(impl);
        if (!impl || !has_piece_for(*impl, *tensors[i])) return false;
        PyList_SET_ITEM(pieces.ptr(), i, THPVariable_Wrap(impl->shards()[0]));
      } else if (place > 1 && THPVariable_CheckExact(object) && THPVariable_Unpack(object).dim() == 0) {
        PyList_SET_ITEM(pieces.ptr(), i, Py_NewRef(object));
      } else {
        return false;
      }
    }
    lists[place] = std::move(pieces);
    return true;
  }
};

/// True if nobody looks at the operators of this thread, and they record nothing for gradients.
bool operators_are_unseen() {
  return !c10::GradMode::is_enabled() && !operators_are_read() && !c10::impl::dispatch_mode_enabled() &&
         !at::impl::torch_function_mode_enabled();
}

/// True for a plain number, and for all else that is neither a tensor nor a list: lists by name keep their tensors.
bool is_plain_option(const py::handle& value) {
  if (PyList_Check(value.ptr())) return false;
  return !PyObject_TypeCheck(value.ptr(), reinterpret_cast<PyTypeObject*>(THPVariableClass)) ||
         (THPVariable_CheckExact(value.ptr()) && THPVariable_Unpack(value.ptr()).dim() == 0);
}

bool step_on_pieces(const py::function& function, const py::tuple& lists, const py::dict& options) {
  if (lists.empty() || !operators_are_unseen()) return false;
  ListsOfPieces made{py::tuple(lists.size()), {}};
  for (size_t place = 0; place < lists.size(); ++place)
    if (!made.add(PyTuple_GET_ITEM(lists.ptr(), place), place)) return false;
  if (!std::ranges::all_of(options, [](const auto& option) { return is_plain_option(option.second); })) return false;
  const size_t n = PyList_GET_SIZE(PyTuple_GET_ITEM(lists.ptr(), 0));
  std::vector<MemoryWrite> writes;
  for (size_t i = 0; i < made.tensors.size(); ++i) {
    if (i < n || i >= 2 * n) made.tensors[i]->bump_version();  // the others are gradients
    if (made.tensors[i]->known_memory()) writes.push_back(made.tensors[i]->begin_write());
  }
  const BelowAutograd guard;
  function(*made.lists, **options);
  return true;
}

void set_tensor_class(const py::handle& bindings, const py::object& type) {
  general_to_local = py::object(bindings.attr("to_local")).release();
  general_from_local = py::object(bindings.attr("from_local")).release();
  tensor_class = reinterpret_cast<PyTypeObject*>(py::object(type).release().ptr());
  static PyMethodDef method{"to_local", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&to_local_method)),
                            METH_FASTCALL | METH_KEYWORDS, kToLocal};
  type.attr("to_local") =
      py::reinterpret_steal<py::object>(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(THPVariableClass), &method));
  static PyMethodDef from_local{"from_local",
                                reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&from_local_method)),
                                METH_FASTCALL | METH_KEYWORDS, kFromLocal};
  type.attr("from_local") =
      py::module_::import("builtins")
          .attr("staticmethod")(py::reinterpret_steal<py::object>(PyCFunction_New(&from_local, nullptr)));
  static PyGetSetDef layout[] = {{"placements", &get_placements, nullptr, kPlacements, nullptr},
                                 {"device_mesh", &get_device_mesh, nullptr, kDeviceMesh, nullptr}};
  for (PyGetSetDef& property : layout)
    type.attr(property.name) = py::reinterpret_steal<py::object>(PyDescr_NewGetSet(tensor_class, &property));
  set_attribute_by_c_name();
  set_wrap_hook(&attach);
}

}  // namespace

void bind_tensor_class(py::module_& module) {
  module.def(
      "set_tensor_class", [bindings = py::handle(module)](const py::object& type) { set_tensor_class(bindings, type); },
      "The class of every distributed tensor.", py::arg("type"));
  module.def("step_on_pieces", torch::wrap_pybind_function(&step_on_pieces),
             "Calls a function of torch.optim that computes element by element on this rank's pieces of the tensors in "
             "`lists`: parameters, "
             "gradients and states. Returns False, and does nothing, if they are not laid out alike, or if someone "
             "looks at the operators.",
             py::arg("function"), py::arg("lists"), py::arg("options"));
  module.def(
      "dispatch_to_class",
      [](const at::Tensor& tensor) { tensor.unsafeGetTensorImpl()->set_python_dispatch(/*k=*/true); },
      "Makes operators on this tensor call the __torch_dispatch__ of its class.", py::arg("tensor"));
}

}  // namespace shardwise
