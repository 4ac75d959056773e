// ops/products/recurrent.cpp: RNN, GRU and LSTM layers. torch composes a layer of hundreds of operators, or calls a library's kernel that has no rule.
//
// If weights are whole, at most batches are sharded, and all ranks of the world are in the mesh, each rank runs torch's own layer on its batches, forward
// and backward. The gradients of weights are then Partial sums. All other calls run as torch's composition of operators. Calls with dropout are such,
// so that random numbers are the same on any number of ranks.
#include "ops/families.h"
#include "ops/support/batch_pieces.h"
#include "placements/placement_list.h"
#include "runtime/api/dtensor.h"
#include "runtime/comm/event_stream.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/prepare_arguments.h"

#include <ATen/autocast_mode.h>

#include <algorithm>

namespace shardwise {
namespace {

using at::Tensor;

/// Arguments of a layer, by place. The states are a list for an LSTM, and one tensor for others.
constexpr int kInput = 0, kStates = 1, kWeights = 2, kLayers = 4, kDropout = 5, kTrain = 6, kBatchFirst = 8, kEnd = 9;

/// True if torch's layer does the same on each rank of the world. A rank without batches gets no result under autocast, and on a GPU another kernel than
/// cuDNN's, whose backward raises an error in eval mode. The answer is the same on all ranks, so that they choose alike.
bool all_ranks_run_alike(const Spec& spec) {
  const DeviceMesh& mesh = *spec.mesh();
  if (mesh.size() < mesh.world()->size()) return false;
  if (mesh.device_type() == at::kCPU && !at::autocast::is_autocast_enabled(at::kCPU)) return true;
  for (int64_t rank = 0; rank < mesh.size(); ++rank)
    if (spec.layout().boxes(rank)[0].numel() == 0) return false;
  return true;
}

/// True if the sizes fit each other. Otherwise the composition raises the error, with the sizes of whole tensors.
bool fit(const Tensor& input, const std::vector<Tensor>& states, const std::vector<Tensor>& weights) {
  if (weights.size() < 2 || weights[0].dim() != 2 || weights[1].dim() != 2) return false;
  const bool fits_states = states.size() == 1 || states[1].size(2) * 4 == weights[1].size(0);
  return input.size(2) == weights[0].size(1) && states[0].size(2) == weights[1].size(1) && fits_states;
}

Tensor piece_of(const Tensor& tensor, const Placements& of_gradient) {
  prepare_operand(*maybe_dtensor(tensor));
  return to_piece(tensor, of_gradient);
}

bool run_on_batches(const c10::OperatorHandle& op, const MeshPtr& mesh, torch::jit::Stack& stack) {
  torch::jit::Stack args(stack.end() - kEnd, stack.end());
  if (args[kTrain].toBool() && args[kDropout].toDouble() > 0 && args[kLayers].toInt() > 1) return false;
  const bool is_lstm = args[kStates].isTensorList();
  const auto laid_out = [&](std::vector<Tensor> tensors) {
    for (Tensor& tensor : tensors) tensor = replica_of(tensor, mesh);
    return tensors;
  };
  const Tensor input = replica_of(args[kInput].toTensor(), mesh);
  std::vector<Tensor> weights = laid_out(args[kWeights].toTensorVector());
  std::vector<Tensor> states =
      laid_out(is_lstm ? args[kStates].toTensorVector() : std::vector{args[kStates].toTensor()});

  const Spec& spec = *spec_of(input);
  const Placements placements = spec.placements().vec();
  const Placements of_states = renumbered(placements, [](int64_t) { return 1; });
  const int64_t batch_dim = args[kBatchFirst].toBool() ? 0 : 1;
  const auto is_replica = [&](const Tensor& tensor) { return has_whole_piece(tensor, spec); };
  const auto is_placed = [&](const Tensor& state) { return spec_of(state)->placements() == c10::ArrayRef(of_states); };
  const auto is_state = [&](const Tensor& tensor) {
    return tensor.dim() == 3 && tensor.size(1) == input.size(batch_dim) &&
           (is_replica(tensor) || (has_plain_piece(tensor, spec) && is_placed(tensor)));
  };
  if (!has_batch_piece(input, batch_dim) || !std::ranges::all_of(weights, is_replica) ||
      !std::ranges::all_of(states, is_state) || !fit(input, states, weights) || !all_ranks_run_alike(spec))
    return false;

  Placements of_weights = placements;
  for (Placement& each : of_weights)
    if (!each.is_whole()) each = Placement::partial();
  args[kInput] = piece_of(input, placements);
  for (Tensor& weight : weights) weight = piece_of(weight, of_weights);
  for (Tensor& state : states) state = piece_of(is_placed(state) ? state : redistribute(state, of_states), of_states);
  args[kWeights] = weights;
  args[kStates] = is_lstm ? c10::IValue(states) : c10::IValue(states[0]);
  const KernelSpan span(op.schema().name());
  op.callBoxed(args);

  const auto whole = [&](const Tensor& piece, const Placements& of_result, int64_t dim) {
    Dims sizes(piece.sizes());
    sizes[dim] = input.size(batch_dim);
    const Dims strides = dense_strides(
        sizes, dim == 0 ? Dims{2, 3, 1} : Dims{3, 2, 1});  // steps are outermost in memory, also with batches first
    return from_pieces({piece}, Spec::intern(mesh, sizes, of_result, strides, piece.scalar_type()));
  };
  torch::jit::drop(stack, kEnd);
  stack.emplace_back(whole(args[0].toTensor(), placements, batch_dim));
  for (size_t i = 1; i < args.size(); ++i) stack.emplace_back(whole(args[i].toTensor(), of_states, 1));
  return true;
}

}  // namespace

void register_recurrent(RuleTable& /*table*/) {
  for (const char* layer : {"aten::rnn_tanh", "aten::rnn_relu", "aten::gru", "aten::lstm"})
    register_composite(c10::Dispatcher::singleton().findSchemaOrThrow(layer, "input"), &run_on_batches);
}

}  // namespace shardwise
