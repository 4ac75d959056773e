// tests/support/accelerator/operators.cpp: aten's operators on the accelerator: copies and views of our own, all else by the CPU's kernels.
//
// An operator's results are allocated before it runs, of the sizes that its meta kernel gives; then its CPU kernel is launched, and the host
// goes on. Operators without a meta kernel, and those whose results' sizes depend on values, keep the host waiting.
#include "tests/support/accelerator/boxed_call.h"
#include "tests/support/accelerator/machine.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <unordered_set>

namespace shardwise::accelerator {
namespace {

const c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

/// Those that CUDA has wait for their results' sizes or values.
const std::unordered_set<std::string> kWaiting = {
    "aten::nonzero",    "aten::masked_select",      "aten::equal",    "aten::repeat_interleave", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::bincount",
};

// --- Memory -----------------------------------------------------------------------------------------------------------

at::Tensor empty(c10::IntArrayRef sizes, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, c10::GetAllocator(kType), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(kType), kKeys,
                                           c10::dtype_or_default(dtype));
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<at::MemoryFormat>) {
  const c10::DeviceGuard guard(self.device());
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t n_bytes = (self.numel() + self.storage_offset()) * self.element_size();
  auto* const storage = self.storage().unsafeGetStorageImpl();
  if (n_bytes <= storage->nbytes()) return self;
  auto& allocator = *c10::GetAllocator(kType);
  c10::DataPtr larger = allocator.allocate(n_bytes);
  if (storage->nbytes() > 0) allocator.copy_data(larger.get(), storage->data(), storage->nbytes());
  storage->set_data_ptr_noswap(std::move(larger));
  storage->set_nbytes(n_bytes);
  return self;
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  Machine::get().record_stream(self.storage().data(), stream);
}

// --- Copies -----------------------------------------------------------------------------------------------------------

void copy_between_devices(const at::Tensor& from, const at::Tensor& to) {
  Machine& machine = Machine::get();
  const c10::Stream sends = current_stream(from.device()), receives = current_stream(to.device());
  machine.block(machine.record(receives), sends);
  launch(
      "aten::copy_", sends, {reads(from), writes(to)}, [from = on_host(from), to = on_host(to)] { to.copy_(from); },
      /*reaches_peers=*/true);
  machine.block(machine.record(sends), receives);
}

/// As CUDA copies, but that the host, which keeps its own copy of what it sends, does not wait for that.
at::Tensor copy_from(const at::Tensor& self, const at::Tensor& to, bool /*non_blocking*/) {
  const at::Tensor from = self.expand_as(to);
  if (to.numel() == 0) return to;
  const c10::DeviceGuard guard(from.device().type() == kType ? from.device() : to.device());
  const c10::Stream stream = current_stream(guard.current_device());
  if (from.is_cpu()) {
    launch("aten::copy_", stream, {writes(to)}, [from = from.clone(), to = on_host(to)] { to.copy_(from); });
  } else if (to.is_cpu()) {
    launch("aten::copy_", stream, {reads(from)}, [from = on_host(from), to] { to.copy_(from); });
    Machine::get().synchronize(stream);
  } else if (from.device() != to.device()) {
    copy_between_devices(from, to);
  } else {
    launch("aten::copy_", stream, {reads(from), writes(to)},
           [from = on_host(from), to = on_host(to)] { to.copy_(from); });
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& to) {
  return copy_from(self, to.resize_(self.sizes()), false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  const at::Tensor value = at::empty({}, self.options().device(at::kCPU));
  copy_from(self.reshape({}), value, false);
  return value.item();
}

// --- All else ---------------------------------------------------------------------------------------------------------

void wait(BoundTensors& tensors, const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Stream stream) {
  auto results = std::make_shared<torch::jit::Stack>();
  auto error = std::make_shared<std::exception_ptr>();
  launch(tensors.name(), stream, tensors.accesses(),
         [results, error, op, args = tensors.host_args(/*with_new_outs=*/true)] {
           try {
             *results = run_on_host(op, args);
           } catch (...) {
             *error = std::current_exception();
           }
         });
  if (kWaiting.contains(op.schema().name()))
    Machine::get().synchronize(stream);
  else
    Machine::get().wait_unseen(stream);
  if (*error) std::rethrow_exception(*error);
  tensors.finish(*results, stack, [&](const at::Tensor& value, const at::Tensor& given) {
    const at::Tensor result =
        given.defined() ? given
                        : empty_strided(value.sizes(), value.strides(), value.scalar_type(), {}, tensors.device(), {});
    if (given.defined() && given.sizes() != value.sizes()) given.resize_(value.sizes());
    return copy_from(value, result, false);
  });
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  BoundTensors tensors(op, *stack);
  const c10::DeviceGuard guard(tensors.device());
  const c10::Stream stream = current_stream(tensors.device());
  const auto metas = tensors.infer();
  if (!metas) return wait(tensors, op, stack, stream);
  std::vector<at::Tensor> fresh;
  torch::jit::Stack results;
  tensors.finish(*metas, &results, [&](const at::Tensor& meta, const at::Tensor& given) {
    if (!given.defined())
      return fresh.emplace_back(
          empty_strided(meta.sizes(), meta.strides(), meta.scalar_type(), {}, tensors.device(), {}));
    if (given.sizes() != meta.sizes()) given.resize_(meta.sizes());
    return given;
  });
  std::vector<Access> accesses = tensors.accesses();
  std::vector<at::Tensor> places;
  for (const at::Tensor& tensor : fresh) {
    accesses.push_back(writes(tensor));
    places.push_back(on_host(tensor));
  }
  launch(tensors.name(), stream, accesses, [op, places, args = tensors.host_args(/*with_new_outs=*/false)] {
    copy_fresh(op, run_on_host(op, args), places);
  });
  *stack = std::move(results);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("resize_", &resize_);
  m.impl("record_stream", &record_stream);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace
}  // namespace shardwise::accelerator
