#include "ops/products/fused_attention.h"
#include "ops/support/planned_values.h"
#include "python/bindings.h"
#include "runtime/dispatch/planned_autocast.h"
#include "runtime/dispatch/work_meter.h"
#include "runtime/redistribute/alike_ranks.h"
#include "runtime/tensor/meta_memory.h"

#include <ATen/ops/_foreach_copy.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/FakeProcessGroup.hpp>

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace shardwise {
namespace {

/// torch's group without other ranks. All-to-alls deliver nothing, so parts may have any sizes.
class FakeGroup final : public c10d::FakeProcessGroup {
 public:
  FakeGroup(int rank, int n_ranks)
      : FakeProcessGroup(rank, n_ranks, c10::make_intrusive<c10d::FakeProcessGroup::Options>()) {}

  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& /*outputs*/, std::vector<at::Tensor>& /*inputs*/,
                                          const c10d::AllToAllOptions& /*options*/) override {
    return c10::make_intrusive<c10d::FakeWork>();
  }
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& /*output*/, at::Tensor& /*input*/,
                                               std::vector<int64_t>& /*output_sizes*/,
                                               std::vector<int64_t>& /*input_sizes*/,
                                               const c10d::AllToAllOptions& /*options*/) override {
    return c10::make_intrusive<c10d::FakeWork>();
  }
};

/// True if the lists of a call have the same shapes and one dtype of floats.
bool are_alike(const c10::List<at::Tensor>& written, c10::ArrayRef<c10::IValue> arguments) {
  if (written.empty() || !at::isFloatingType(at::Tensor(written[0]).scalar_type())) return false;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensorList()) continue;
    const auto list = argument.toTensorList();
    if (list.size() != written.size()) return false;
    for (size_t i = 0; i < list.size(); ++i) {
      const at::Tensor given = list[i], known = written[i];
      if (given.sizes() != known.sizes() || given.scalar_type() != at::Tensor(written[0]).scalar_type()) return false;
    }
  }
  return true;
}

/// Short kernels, from its construction to stop(), for writes to lists of tensors on meta, which optimizers make: torch would go through each tensor in
/// Python to find its new shape, the old one.
class ListsInPlace {
 public:
  ListsInPlace() : library_(std::in_place, torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__) {
    for (const std::string name : {"add", "mul", "div", "lerp", "addcmul", "addcdiv"})
      for (const std::string overload : {"Scalar", "List", "ScalarList"})
        if (c10::Dispatcher::singleton().findSchema({"aten::_foreach_" + name + "_", overload}))
          library_->impl(("_foreach_" + name + "_." + overload).c_str(),
                         torch::CppFunction::makeFromBoxedFunction<&write>());
  }
  void stop() { library_.reset(); }

 private:
  /// Does nothing if the lists are alike. Otherwise torch makes the result, and says what does not fit.
  static void write(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
    const size_t n_arguments = op.schema().arguments().size();
    torch::jit::Stack call = torch::jit::pop(*stack, n_arguments);
    const auto written = call[0].toTensorList();
    if (are_alike(written, call)) return;
    const c10::OperatorName& name = op.operator_name();
    const std::string functional = name.name.substr(0, name.name.size() - 1);
    c10::Dispatcher::singleton().findSchemaOrThrow(functional.c_str(), name.overload_name.c_str()).callBoxed(&call);
    at::_foreach_copy_(written.vec(), call[0].toTensorVector());
  }

  std::optional<torch::Library> library_;
};

}  // namespace

void bind_dry_run(py::module_& module) {
  module.def(
      "fake_group",
      [](int rank, int n_ranks) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<FakeGroup>(rank, n_ranks);
      },
      py::arg("rank"), py::arg("n_ranks"), "A backend of torch.distributed that sends nothing.");
  py::class_<ListsInPlace>(module, "ListsInPlace",
                           "Short kernels for writes to lists of tensors on meta, until stop().")
      .def(py::init())
      .def("stop", &ListsInPlace::stop);
  using Lifetime = std::tuple<int64_t, int64_t, int64_t, int64_t, std::string>;
  py::class_<MetaMemory>(module, "MetaMemory", "Records allocations on meta, from its construction to stop().")
      .def(py::init())
      .def("stop", &MetaMemory::stop)
      .def("n_allocations", &MetaMemory::n_allocations)
      .def("label", &MetaMemory::label, py::arg("tensor"), py::arg("label"),
           "Labels the memory of a tensor on meta, or of the pieces of a distributed one.")
      .def(
          "allocations",
          [](const MetaMemory& self) {
            return c10::fmap(self.allocations(), [&](const MetaAllocation& each) {
              return Lifetime(each.bytes, each.begin, each.end, each.label, each.op);
            });
          },
          "(bytes, begin, end or -1, label, operator or \"\") of each. Times count allocations and releases.");
  using Figures = std::tuple<std::string, int64_t, int64_t, bool, int64_t>;
  py::class_<WorkMeter>(module, "WorkMeter",
                        "Records this thread's operators on meta, from its construction to stop() on this thread.")
      .def(py::init())
      .def("stop", &WorkMeter::stop)
      .def("n_works", &WorkMeter::n_works, "The number of works so far. Later calls are works of their own.")
      .def(
          "works",
          [](const WorkMeter& self) {
            return c10::fmap(self.works(), [&](const Work& each) {
              return Figures(*each.op, each.flops, each.bytes, each.is_on_pieces, each.n_calls);
            });
          },
          "(operator, floating-point operations, bytes read and written, within an operator on a DTensor, calls) of "
          "each.");
  py::class_<MadeSpecs>(module, "MadeSpecs", "Keeps the layouts of all tensors, from its construction to stop().")
      .def(py::init())
      .def("stop", &MadeSpecs::stop);
  define(
      module, "alike_ranks",
      [](const MadeSpecs& made, std::vector<int64_t> others) {
        return alike_ranks(made, has_id_model() ? planned_tables() : std::set<const Spec*>(), std::move(others));
      },
      py::arg("made"), py::arg("others"),
      "Returns the ranks in `others` that hold and send as much as this rank in everything that it did.");
  define(module, "planned_attention", &planned_attention, py::arg("query"), py::arg("key"), py::arg("value"),
         py::arg("attn_mask") = std::nullopt, py::arg("dropout_p") = 0.0, py::arg("is_causal") = false,
         py::arg("scale") = std::nullopt, py::arg("enable_gqa") = false,
         "scaled_dot_product_attention on meta by the kernel that torch picks on the planned kind of device.");
  module.def(
      "plan_autocast",
      [](const std::optional<std::string>& device_type) {
        plan_autocast(device_type ? std::optional(c10::Device(*device_type).type()) : std::nullopt);
      },
      py::arg("device_type"), "Casts tensors on meta as autocast for this kind of device does; None ends that.");
  module.def(
      "coordinates_of", [](const MeshPtr& mesh, int64_t rank) { return coordinates_of(*mesh, rank); }, py::arg("mesh"),
      py::arg("rank"), "The coordinates of a rank in its own slice of the mesh that `mesh` is a slice of; or None.");
}

}  // namespace shardwise
