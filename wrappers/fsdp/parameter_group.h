// wrappers/fsdp/parameter_group.h: parameters that are gathered together before their modules compute, with gradients that are reduced together.
//
//   group.start_gather();          // one exchange: each rank sends its parts of all parameters to the other ranks
//   ...                            // work that needs none of them
//   group.gather();                // leaves() have their values: whole parameters, for modules to compute with
//   group.release();               // their memory is freed; tensors that autograd saved are valid again after the next gather
//
//   loss.backward();               // .grad of leaves()
//   group.start_reduce();          // one exchange: each rank sends every other rank its gradients for that rank's part
//   group.finish_reduce();         // .grad of sharded(): the mean over the ranks
//
// All whole parameters are ranges of one block of memory, and all reduced gradients of another, at multiples of 64 bytes. Two ranks exchange their
// parts of all parameters without padding, for any sizes. Bytes received per rank: for a gather, the parts of all other ranks, (n-1)/n of an even
// split; for a reduction, n-1 times its own part, and a byte per parameter and rank that tells who has a gradient. Large parts are sent directly from
// their memory to their destination; all others share a message.
#pragma once

#include "wrappers/fsdp/class_parameters.h"
#include "wrappers/fsdp/gathered_memory.h"
#include "wrappers/fsdp/gradient_reduction.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace shardwise {

/// The dtypes in which a group computes and reduces, if not in the dtype of its parameters.
struct GroupPrecision {
  std::optional<c10::ScalarType> param_dtype;
  std::optional<c10::ScalarType> reduce_dtype;
};

/// The callbacks of a group for its gradients. The hooks of the leaves own it, because they may outlive the group.
struct GradientCallbacks {
  std::function<void()> before, first;
  bool has_arrived = false;  // a gradient of this backward
};

class ParameterGroup : public std::enable_shared_from_this<ParameterGroup> {
 public:
  /// Splits `parameters`: each rank takes its part of its own copy, and nothing is sent. Sizes and dtypes must be equal on all ranks. `along[i]`, a
  /// Shard, is the split of parameter i; if `along` is empty, it is their default_split(). Without parameters, the methods do nothing.
  /// Throws: as ShardedParameter, before any parameter is split.
  static std::shared_ptr<ParameterGroup> create(const std::vector<std::string>& names,
                                                const std::vector<at::Tensor>& parameters, const MeshPtr& mesh,
                                                const GroupPrecision& precision = {}, const Placements& along = {});
  /// A copy of the group with `sharded[i]` in place of sharded()[i]: of the same layout, perhaps with another dtype or device. Settings, and
  /// gradients that wait for a later reduction, are copied too. Throws: c10::ValueError if a layout differs.
  std::shared_ptr<ParameterGroup> with(const std::vector<at::Tensor>& sharded) const;
  C10_DISABLE_COPY_AND_ASSIGN(ParameterGroup);

  const DataMesh& data() const { return data_; }
  const std::vector<at::Tensor>& sharded() const { return sharded_; }
  /// The whole parameters: plain, or distributed over the mesh dims other than the data's. They have values only between gather() and release().
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  /// Replaces leaves() by tensors that share their memory, such as the Parameter objects of a language binding. Gradients arrive in them from now on.
  /// Pre: nothing was computed yet.
  void set_leaves(std::vector<at::Tensor> leaves);

  /// Sets the hooks that gather tensor subclasses. The first gather() makes the leaves of such parameters, which have no sizes before; leaves() then
  /// has new tensors before on_exchange() is called. Pre: called before the first gather, if the group has such parameters.
  void set_class_calls(ClassCalls calls) { classes_.set_calls(std::move(calls)); }

  /// Sets a callback that puts the whole parameters into the modules in place of the sharded ones (true), or the reverse (false).
  void on_exchange(std::function<void(bool)> exchange) { exchange_ = std::move(exchange); }
  /// Sets a callback for the first gradient of a backward, after it has arrived.
  void on_first_gradient(std::function<void()> first) { callbacks_->first = std::move(first); }
  /// Sets a callback that is called before each gradient is added to the leaf's gradient.
  void before_gradients(std::function<void()> before) { callbacks_->before = std::move(before); }

  /// True if the whole parameters are in the modules.
  bool is_in_place() const { return is_in_place_; }
  bool is_on_its_way() const { return state_ == State::kGathering; }
  /// True if operators, or the load of a checkpoint, wrote to the sharded parameters since they were gathered; equal on all ranks. A direct write to
  /// a to_local() tensor is not counted, because one rank may do that alone; it takes effect after release().
  bool is_stale() const;

  /// True if the next gather is to be started: this rank has parts, and no gather was started before.
  bool awaits_gather() const { return memory_ && state_ == State::kSharded; }
  /// True if start_gathers() takes both groups: they have the same sharding ranks and device. Pre: both are awaits_gather().
  bool can_gather_with(const ParameterGroup& other) const {
    return data_.shard_group() == other.data_.shard_group() && memory_->device() == other.memory_->device();
  }
  /// The bytes of the whole parameters. Pre: awaits_gather().
  size_t n_bytes() const { return memory_->n_bytes(); }

  /// Starts to gather different groups in one exchange. Collective over the sharding ranks, as all functions below.
  /// Pre: each awaits_gather() and can_gather_with() the others.
  /// Throws: c10::ValueError, alike on all ranks, for parameters without memory; as ClassParameters::take_pieces().
  static void start_gathers(const std::vector<ParameterGroup*>& groups);
  /// start_gathers() of this group, if awaits_gather().
  void start_gather() {
    if (awaits_gather()) start_gathers({this});
  }
  /// Puts the whole parameters into the modules; waits for them if they have not arrived. Throws: as ClassParameters::make_wholes().
  void gather();
  /// Puts the sharded parameters into the modules; the whole ones keep their memory.
  void put_back() {
    if (std::exchange(is_in_place_, false) && exchange_) exchange_(false);
  }
  /// Puts the sharded parameters into the modules and frees the memory of the whole ones, after waiting for a gather in progress. Sends nothing.
  void release();
  /// The same, but each rank keeps a slice of the whole parameters until release(): each of `n_ranks` consecutive ranks keeps a different slice. The
  /// next gather is among these ranks alone, unless the sharded parameters are written to before. Pre: n_ranks divides the number of sharding ranks.
  void release_to(int64_t n_ranks);

  /// Copies requires_grad from the sharded parameters to the whole ones.
  void follow_requires_grad();
  /// True if a gradient has arrived since the last start_reduce() or accumulate().
  bool has_gradients() const;
  /// True if accumulate() keeps gradients for a later start_reduce().
  bool has_accumulated() const;
  /// True if sums among the sharding ranks, deferred by set_all_reduces(false), are due to be reduced among replicas.
  bool awaits_all_reduce() const;
  /// Takes the gradients that have arrived and starts to reduce them. All ranks must have some gradient, new or accumulated. If this rank has no
  /// gradient of a parameter and another rank has, its gradient counts as zeros; a parameter without a gradient on any rank gets none, or zeros if
  /// `fills`.
  void start_reduce(bool fills = false);
  bool is_reducing() const { return reduction_ != nullptr; }
  /// Waits for the reduction, and adds the reduced gradients to .grad of sharded().
  void finish_reduce();
  /// Takes the gradients that have arrived and accumulates them whole on this rank, for a later start_reduce(). All ranks must call it, with or
  /// without gradients, because accumulated gradients are sent in another dtype. Sends nothing, except to reduce gradients that are Partial on other
  /// mesh dims.
  void accumulate();
  /// Drops gradients that have arrived and are not reduced, after a failure.
  void drop_gradients();

  /// The divisor of the sum over the ranks; by default the number of ranks.
  void set_divide_factor(std::optional<double> factor) { divide_factor_ = factor; }
  /// With replicas: if false, reductions stop at the sums among the sharding ranks, which are kept until a reduction with true.
  void set_all_reduces(bool all_reduces) { all_reduces_ = all_reduces; }
  /// Sets a callback for this rank's reduced gradients, which it may change before they are added to .grad of sharded(). It gets all of them as one
  /// tensor of one dim, with zeros between them. It is not called while reductions stop at the sums among the sharding ranks.
  void on_reduced(std::function<void(const at::Tensor&)> reduced) { reduced_ = std::move(reduced); }

 private:
  enum class State : uint8_t { kSharded, kGathering, kGathered };

  ParameterGroup(std::vector<std::string> names, std::vector<ShardedParameter> split, std::vector<at::Tensor> sharded,
                 DataMesh data, const GroupPrecision& precision);
  void make_memory();
  /// The parts of this rank, by tensor of the memory.
  std::vector<at::Tensor> own_parts();
  /// This rank's part of the next gather, with the present values.
  std::vector<at::Tensor> take_own();
  void free_memory();
  /// Installs hooks on the leaves that require gradients.
  void listen();
  /// The dtype and device of whole gradients of parameter `i`.
  at::TensorOptions gradient_options(size_t i) const;
  uint64_t n_writes() const;
  /// For the order check: "gather of group 2: weight Float [10, 4] as [Shard(0)] on (4), ...", with the parameters `which`.
  std::string words(const char* what, c10::ArrayRef<size_t> which, bool is_gather = false) const;
  /// Takes this rank's pieces of the gradients that have arrived, laid out as the leaves; undefined without a gradient.
  std::vector<at::Tensor> take_gradients();

  int64_t number_ = 0;  // number among the groups of these sharding ranks, for the order check
  std::vector<std::string> names_;
  std::vector<ShardedParameter> parameters_;
  std::vector<at::Tensor> sharded_;
  DataMesh data_;
  GroupPrecision precision_;

  ClassParameters classes_;
  std::unique_ptr<GatheredMemory> memory_;  // the plain parameters come first; null if this rank has none
  std::vector<at::Tensor> leaves_;
  std::function<void(bool)> exchange_;
  std::shared_ptr<GradientCallbacks> callbacks_ = std::make_shared<GradientCallbacks>();

  State state_ = State::kSharded;
  bool is_in_place_ = false;  // the whole parameters are in the modules
  uint64_t n_writes_ = 0;     // n_writes() at the last gather

  std::vector<at::Tensor> accumulated_;  // whole gradients by parameter; undefined if there is none
  std::unique_ptr<GradientReduction> reduction_;
  bool was_accumulated_ = false;  // accumulate() was called since the last reduction
  at::Tensor unreplicated_;  // flat sums among the sharding ranks, to be reduced among replicas, and flags of gradients
  std::optional<double> divide_factor_;
  bool all_reduces_ = true;
  std::function<void(const at::Tensor&)> reduced_;
};

}  // namespace shardwise
