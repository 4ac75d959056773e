#include "wrappers/fsdp/gathered_unit.h"

#include "wrappers/fsdp/released_memory.h"

#include "runtime/comm/comm_trace.h"
#include "runtime/redistribute/move_many.h"
#include "runtime/tensor/below_autograd.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

constexpr const char* kReadBetween =
    "[fully_shard] a parameter that was gathered for a forward is read outside of it and of its outputs' backward. "
    "Keep it with "
    "reshard_after_forward = false.";

/// True if `piece` fills its storage.
bool owns_memory(const at::Tensor& piece) {
  return piece.storage_offset() == 0 && piece.storage().nbytes() == piece.nbytes();
}

class FetchBeforeBackward final : public torch::autograd::FunctionPreHook {
 public:
  explicit FetchBeforeBackward(std::shared_ptr<GatheredUnit> unit) : unit_(std::move(unit)) {}
  variable_list operator()(const variable_list& grads) override {
    unit_->fetch();
    return grads;
  }

 private:
  std::shared_ptr<GatheredUnit> unit_;
};

}  // namespace

std::shared_ptr<GatheredUnit> GatheredUnit::drop(const std::vector<at::Tensor>& gathered,
                                                 const std::vector<at::Tensor>& sharded) {
  auto unit = std::make_shared<GatheredUnit>();
  if (!kCanRefuseReads<c10::StorageImpl>) return unit;
  for (size_t i = 0; i < gathered.size(); ++i) {
    const auto* const impl = maybe_dtensor(gathered[i]);
    const auto& pieces = impl->shards();
    if (impl->spec() == spec_of(sharded[i]) || pieces.empty() || !std::ranges::all_of(pieces, owns_memory)) continue;
    Parameter parameter{sharded[i], static_cast<int64_t>(sharded[i]._version()), impl->spec(), {}};
    for (const at::Tensor& piece : pieces) parameter.pieces.push_back(piece.storage().getWeakStorageImpl());
    unit->parameters_.push_back(std::move(parameter));
    for (const at::Tensor& piece : pieces) release_memory(*piece.storage().unsafeGetStorageImpl(), kReadBetween);
  }
  return unit;
}

void GatheredUnit::fetch_before_backward_of(const at::Tensor& output) {
  if (parameters_.empty() || !output.requires_grad() || !output.grad_fn()) return;
  output.grad_fn()->add_pre_hook(std::make_unique<FetchBeforeBackward>(shared_from_this()));
}

void GatheredUnit::fetch() {
  if (is_fetched_) return;
  is_fetched_ = true;
  const CommScope scope("fully_shard", CommScope::Cause::kProgram);
  const BelowAutograd guard;
  std::vector<SpecPtr> from, to;
  std::vector<Shards> shards;
  for (const Parameter& parameter : parameters_) {
    TORCH_CHECK(
        parameter.sharded._version() == parameter.version,
        fmt::format(
            "[fully_shard] a parameter of shape [{}] was written to between a forward and the backward that needs its "
            "values. Step after backward(), or keep the gathered values with reshard_after_forward = false.",
            fmt::join(parameter.sharded.sizes(), ", ")));
    from.push_back(spec_of(parameter.sharded));
    shards.push_back(maybe_dtensor(parameter.sharded)->shards());
    to.push_back(parameter.spec);
  }
  const auto fetched = move_many(from, shards, to);
  for (size_t i = 0; i < parameters_.size(); ++i)
    for (size_t k = 0; k < parameters_[i].pieces.size(); ++k) {
      const auto storage = parameters_[i].pieces[k].lock();
      if (!storage) continue;  // messages do not depend on which storages are alive on this rank
      const at::Tensor piece = owns_memory(fetched[i][k]) ? fetched[i][k] : fetched[i][k].clone();
      c10::StorageImpl& source = *piece.storage().unsafeGetStorageImpl();
      give_memory(*storage, source.set_data_ptr(c10::DataPtr(nullptr, source.device())));
    }
  parameters_.clear();
}

}  // namespace shardwise
