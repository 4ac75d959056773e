#include "runtime/dispatch/view_call.h"

#include <ATen/ops/as_strided.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <iterator>

namespace shardwise {
namespace {

size_t source_arg(const OpInfo& op) {
  size_t arg = 0;
  while (arg < op.n_args() && !op.args[arg].is_aliased) ++arg;
  TORCH_INTERNAL_ASSERT(arg < op.n_args(), "[", op.name, "] is no view");
  return arg;
}

std::vector<int64_t> symbolic_dims_of(const DTensorImpl& tensor) {
  std::vector<int64_t> dims;
  if (const SymbolicSizes* const symbols = tensor.symbols())
    for (size_t dim = 0; dim < symbols->sizes.size(); ++dim)
      if (symbols->sizes[dim].is_symbolic()) dims.push_back(static_cast<int64_t>(dim));
  return dims;
}

/// True after hide_memory().
bool hides_memory(const DTensorImpl& traced) {
  const auto& pieces = traced.local_tensors();
  return !pieces.empty() && !traced.storage().is_alias_of(pieces[0].storage());
}

}  // namespace

ViewCall::ViewCall(const OpInfo& op, c10::ArrayRef<c10::IValue> args, size_t output)
    : op_(op), args_(args.begin(), args.end()), output_(output) {
  if (const SymbolicArgument* const symbols = KeepsSymbols::argument_of(op.name)) {
    symbols_ = *symbols;
    source_sizes_ = source_in(op, args).sym_sizes().vec();
  }
  args_[source_arg(op)] = c10::IValue();
}

at::Tensor ViewCall::of(const at::Tensor& source) const {
  torch::jit::Stack stack = args_;
  stack[source_arg(op_)] = source;
  if (!symbols_.op.empty()) {
    const Dims values = symbol_hooks().evaluate(symbols_.values, source_sizes_, source.sizes());
    if (values.empty()) return {};
    c10::IValue* const first = &stack[symbols_.index];
    if (first->isIntList()) *first = c10::IntArrayRef(values);
    for (size_t i = 0; i < values.size() && !first->isIntList(); ++i)
      if (symbols_.values[i].is_symbolic()) first[i] = values[i];
  }
  op_.handle.callBoxed(&stack);
  const c10::IValue& result = stack[0];
  return result.isTensor() ? result.toTensor() : result.toTensorVector()[output_];
}

const at::Tensor& ViewCall::source_in(const OpInfo& op, c10::ArrayRef<c10::IValue> args) {
  return args[source_arg(op)].toTensor();
}

ViewPathPtr path_of(const DTensorImpl& view) {
  return c10::dynamic_intrusive_pointer_cast<ViewPath>(view.get_backend_meta_intrusive_ptr());
}

void set_path(DTensorImpl& view, const ViewPathPtr& path) {
  if (path) view.set_backend_meta(path);
}

void note_traced_view(const at::Tensor& view, const DTensorImpl& source, const OpInfo& op,
                      c10::ArrayRef<c10::IValue> args, size_t output) {
  DTensorImpl& impl = *maybe_dtensor(view);
  auto path = c10::make_intrusive<ViewPath>();
  if (const auto known = path_of(source)) path->steps = known->steps;
  path->steps.push_back({source.spec(), symbolic_dims_of(source), std::make_shared<const ViewCall>(op, args, output)});
  set_path(impl, path);
  if (hides_memory(source)) impl.set_storage_keep_dtype(source.storage());
}

void hide_memory(DTensorImpl& traced) {
  traced.set_storage_keep_dtype(c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::kCPU),
                                             c10::GetCPUAllocator(), /*resizable=*/true));
}

at::Tensor view_again(const at::Tensor& base, const at::Tensor& view) {
  const SpecPtr& spec = spec_of(base);
  const auto path = path_of(*maybe_dtensor(view));
  const auto is_of_base = [&](const ViewPath::Step& step) {
    Dims sizes(step.source->sizes());
    if (sizes.size() != spec->sizes().size()) return false;
    for (const int64_t dim : step.symbolic_dims) sizes[dim] = spec->sizes()[dim];
    return with_whole_sizes(step.source, sizes) == spec;
  };
  const auto begin = path ? std::ranges::find_if(path->steps.rbegin(), path->steps.rend(), is_of_base)
                          : std::reverse_iterator<std::vector<ViewPath::Step>::iterator>();
  if (path && begin != path->steps.rend()) {
    at::Tensor result = base;
    for (auto step = begin.base() - 1; step != path->steps.end() && result.defined(); ++step)
      result = step->call->of(result);
    if (result.defined() || !base.requires_grad()) return result.defined() ? result : view.detach();
  }
  return at::as_strided(base, view.sizes(), view.strides(), base.storage_offset() + view.storage_offset());
}

}  // namespace shardwise
