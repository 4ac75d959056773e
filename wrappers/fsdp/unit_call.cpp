#include "wrappers/fsdp/unit_call.h"

#include "runtime/tensor/reordered_mesh.h"
#include "text/check.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace shardwise {

class UnitCall {
 public:
  UnitCall(std::shared_ptr<GroupSchedule> unit, int64_t module)
      : unit_(std::move(unit)), schedule_(unit_->schedule()), module_(module) {}

  const GroupSchedule& unit() const { return *unit_; }
  int64_t module() const { return module_; }

  void add_input(const at::Tensor& tensor) { inputs_.push_back(tensor.unsafeGetTensorImpl()); }
  bool is_input(const at::Tensor& tensor) const {
    return std::ranges::count(inputs_, tensor.unsafeGetTensorImpl()) > 0;
  }

  void output_arrived() {
    const auto schedule = unit_->schedule();
    if (begun_in_ == schedule->n_ended()) {  // by another output
      if (unit_->gathers_in_backward) unit_->group()->gather();
      return;
    }
    begun_in_ = schedule->n_ended();
    n_missing_ = std::ssize(inputs_);
    schedule->before_backward(*unit_);
  }

  void input_arrived() {
    const auto schedule = unit_->schedule();
    if (--n_missing_ == 0 && begun_in_ == schedule->n_ended()) schedule->after_backward(*unit_);
  }

 private:
  std::shared_ptr<GroupSchedule> unit_;
  std::shared_ptr<GatherSchedule> schedule_;  // kept for the backward: the model may be gone then
  int64_t module_;
  std::vector<const c10::TensorImpl*> inputs_;
  int64_t begun_in_ = -1;  // the backward in which an output's gradient came last
  int64_t n_missing_ = 0;  // inputs whose gradients have not come in that backward
};

namespace {

class Arrival final : public torch::autograd::FunctionPreHook {
 public:
  Arrival(std::shared_ptr<UnitCall> call, bool is_of_output) : call_(std::move(call)), is_of_output_(is_of_output) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    if (is_of_output_)
      call_->output_arrived();
    else
      call_->input_arrived();
    return gradients;
  }
  /// True for the hook that begins the backward of another unit's call.
  bool begins_other(const UnitCall& call) const { return is_of_output_ && &call_->unit() != &call.unit(); }

 private:
  std::shared_ptr<UnitCall> call_;
  bool is_of_output_;
};

at::Tensor view_of(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided ? tensor.view_as(tensor) : tensor;  // others have no views
}

bool has_gradient(const at::Tensor& tensor) { return tensor.defined() && tensor.requires_grad(); }

void check_inputs(const DataMesh& data, const std::string& name, const std::vector<at::Tensor*>& inputs) {
  const DeviceMesh& mesh = *data.mesh;
  SW_CHECK_VALUE(mesh.is_member(),
                 "[fully_shard] {} is called on a rank that is not on {}, over which its parameters are sharded: the "
                 "rank has no part of them. Call it only on the ranks of the mesh.",
                 name, to_string(mesh));
  const auto is_over_data = [&](const MeshPtr& other) {
    return other->with_memory() == data.mesh ||
           (has_all_ranks_of(*data.root, *other) &&
            std::ranges::any_of(other->names(), [&](const std::string& each) { return mesh.has_dim(each); }));
  };
  for (const at::Tensor* const input : inputs) {
    if (!is_dtensor(*input)) continue;
    const UserLayout layout = user_layout_of(*spec_of(*input));
    SW_CHECK_VALUE(
        !is_over_data(layout.mesh),
        "[fully_shard] {} got a DTensor placed as {} on {}, over which its parameters are sharded: it "
        "computes with plain tensors, on this rank's part of the batch. Give it x.to_local(), shard the model "
        "with distribute_module, or, if parameters of a module around it are still sharded, call fully_shard "
        "on the module that is called.",
        name, to_string(layout.placements), to_string(*layout.mesh));
  }
}

/// An input's hook comes before those that begin the backward of other units' calls.
void watch(const at::Tensor& tensor, const std::shared_ptr<UnitCall>& call, bool is_output) {
  const auto& node = tensor.grad_fn();
  auto& hooks = node ? node->tensor_pre_hooks() : torch::autograd::impl::hooks(tensor);
  const auto place = std::ranges::find_if(hooks, [&](const auto& each) {
    const auto* const other = dynamic_cast<const Arrival*>(each.get());
    return !is_output && other && other->begins_other(*call);
  });
  hooks.insert(place, std::make_unique<Arrival>(call, is_output));
}

}  // namespace

void enter_call(const std::shared_ptr<GroupSchedule>& unit, const std::string& name, int64_t module,
                const std::vector<at::Tensor*>& inputs) {
  check_inputs(unit->group()->data(), name, inputs);
  unit->schedule()->enter_forward(*unit);
  const auto call = unit->calls.emplace_back(std::make_shared<UnitCall>(unit, module));
  if (!at::GradMode::is_enabled()) return;
  std::vector<std::pair<at::Tensor, at::Tensor>> views;  // an argument that is given twice stays one tensor
  for (at::Tensor* const input : inputs) {
    if (!has_gradient(*input)) continue;
    if (input->is_leaf()) {
      auto known = std::ranges::find_if(views, [&](const auto& each) { return each.first.is_same(*input); });
      if (known == views.end()) known = views.insert(known, {*input, view_of(*input)});
      *input = known->second;
    }
    if (call->is_input(*input)) continue;
    call->add_input(*input);
    watch(*input, call, /*is_output=*/false);
  }
}

void leave_call(const std::shared_ptr<GroupSchedule>& unit, int64_t module, const std::vector<at::Tensor*>& outputs,
                bool releases) {
  if (unit->calls.empty() || unit->calls.back()->module() != module) return;
  const auto call = std::move(unit->calls.back());
  unit->calls.pop_back();
  const bool records = at::GradMode::is_enabled();
  const bool has_backward =
      records && std::ranges::any_of(outputs, [](const auto* each) { return has_gradient(*each); });
  unit->schedule()->leave_forward(*unit, module, releases, has_backward);
  if (!records) return;
  for (at::Tensor* const output : outputs) {
    if (!has_gradient(*output)) continue;
    if (call->is_input(*output)) *output = view_of(*output);
    watch(*output, call, /*is_output=*/true);
  }
}

}  // namespace shardwise
