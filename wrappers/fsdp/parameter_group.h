// wrappers/fsdp/parameter_group.h: parameters that are gathered together before their modules compute, and whose gradients are reduced together.
//
//   group.start_gather();          // one exchange: each rank sends its parts of all parameters to the others
//   ...                            // work that needs none of them
//   group.gather();                // leaves() are there: whole, as modules compute with them
//   group.release();               // their memory is free; what autograd saved of them comes back with the next gather
//
//   loss.backward();               // .grad of leaves()
//   group.start_reduce();          // one exchange: each rank sends every other what it has of that one's part
//   group.finish_reduce();         // .grad of sharded(): the mean over the ranks
//
// All whole parameters are ranges of one piece of memory, and all reduced gradients of another, at multiples of 64 bytes. Between two ranks
// goes what one has of all parameters: no padding, whatever the sizes. Received per rank: what it lacks, (n-1)/n of an even split, to gather,
// and n-1 times its part to reduce, and a byte per parameter that says who has a gradient. Large parts travel from where they lie to where they
// belong; the others share a message.
#pragma once

#include "wrappers/fsdp/class_parameters.h"
#include "wrappers/fsdp/gathered_memory.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace shardwise {

class GradientReduction;

/// In which dtypes a group computes and reduces, if not in that of its parameters.
struct GroupPrecision {
  std::optional<c10::ScalarType> param_dtype;
  std::optional<c10::ScalarType> reduce_dtype;
};

class ParameterGroup : public std::enable_shared_from_this<ParameterGroup> {
 public:
  /// Deals `parameters`: each rank takes its part of its own, and nothing is sent. They must be of the same sizes and dtypes on all ranks.
  /// `along[i]`, a Shard, says how parameter i is split; without any all are along their first dim.
  /// Of none, all below does nothing. Throws: as ShardedParameter, before any is split.
  static std::shared_ptr<ParameterGroup> create(const std::vector<std::string>& names,
                                                const std::vector<at::Tensor>& parameters, const DataMesh& data,
                                                const GroupPrecision& precision = {}, const Placements& along = {});
  /// The same with other parts: `sharded[i]` in the place of sharded()[i], of its layout, perhaps of another dtype or on another device. What
  /// was set, and gradients that wait for a later reduction, are those of this one. Throws: c10::ValueError where one is of another layout.
  std::shared_ptr<ParameterGroup> with(const std::vector<at::Tensor>& sharded) const;
  ~ParameterGroup();
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  const std::vector<at::Tensor>& sharded() const { return sharded_; }
  /// The whole parameters, without values outside gather() and release(): plain, or distributed over the meshes beside the data's.
  const std::vector<at::Tensor>& leaves() const { return leaves_; }
  /// Others that share the memory of leaves(), in which gradients arrive from now on: what a language makes of them. Pre: nothing computed yet.
  void set_leaves(std::vector<at::Tensor> leaves);

  /// How parameters of classes of their own are gathered. Their leaves, which have no sizes before, are made by the first gather(); others are
  /// in leaves() when it tells on_exchange. Pre: set before the first gather, where the group has such parameters.
  void set_class_calls(ClassCalls calls) { classes_.set_calls(std::move(calls)); }

  /// Told when the whole parameters are to stand in the place of the sharded ones (true), and the other way round.
  void on_exchange(std::function<void(bool)> exchange) { exchange_ = std::move(exchange); }
  /// Told when the first gradient of a backward has come.
  void on_first_gradient(std::function<void()> first);
  /// Told before each gradient, which is not added to those that have come yet.
  void before_gradients(std::function<void()> before);

  /// The whole parameters are to stand in the modules.
  bool is_in_place() const { return is_in_place_; }
  bool is_on_its_way() const { return state_ == State::kGathering; }
  /// True where operators, or the load of a checkpoint, wrote to the sharded ones since they were gathered: the same on all ranks. A
  /// write by hand to what to_local() gave is not counted, since one rank may do that alone; release() makes it seen.
  bool is_stale() const;

  /// Collective over the sharding ranks, as all below. Does nothing where it was called before.
  /// Throws: c10::ValueError, alike on all ranks, for parameters without memory; as ClassParameters::take_pieces().
  void start_gather();
  /// Puts the whole parameters in place: at once where they are there, else when they have arrived. Throws: as ClassParameters::make_wholes().
  void gather();
  /// Puts the sharded ones in place; the whole ones keep their memory.
  void put_back();
  /// Puts the sharded ones in place and frees the memory of the whole ones, on its way or there. Sends nothing.
  void release();
  /// The same, but each rank keeps a slice of the whole ones until a release(): of `n_ranks` ranks that follow each other each a different
  /// one. The next gather is among these alone, if the sharded ones are not written to before. Pre: n_ranks divides the number of sharding ranks.
  void release_to(int64_t n_ranks);

  /// The whole parameters require gradients where the sharded ones do. Pre: no backward is running.
  void follow_requires_grad();
  /// True where a gradient has come since the last start_reduce() or accumulate().
  bool has_gradients() const;
  /// True where accumulate() has some for a later start_reduce().
  bool has_accumulated() const;
  /// True where sums among the sharding ranks are to be reduced among replicas, which set_all_reduces(false) put off.
  bool awaits_all_reduce() const;
  /// Takes the gradients that have come and starts to reduce them, for which all ranks must have some, now or in sums that wait. Of a
  /// parameter that only other ranks have a gradient of, this one's counts as zeros; one that nobody has stays without. `fills`: zeros for
  /// that, too.
  void start_reduce(bool fills = false);
  bool is_reducing() const { return reduction_ != nullptr; }
  /// Waits, and adds them to .grad of sharded().
  void finish_reduce();
  /// Takes them and adds them up on this rank, whole, for a later start_reduce(). To be called on all ranks alike, with gradients or without:
  /// sums are sent in another dtype. Sends nothing but, beside other meshes, what makes sums over these whole.
  void accumulate();
  /// Forgets gradients that have come and are not reduced, after a failure.
  void drop_gradients();

  /// By what the sum over the ranks is divided: their number.
  void set_divide_factor(std::optional<double> factor) { divide_factor_ = factor; }
  /// Where there are replicas, false keeps what is reduced among the sharding ranks until a reduction is true again.
  void set_all_reduces(bool all_reduces) { all_reduces_ = all_reduces; }

 private:
  enum class State : uint8_t { kSharded, kGathering, kGathered };
  class Arrivals;

  ParameterGroup(std::vector<std::string> names, std::vector<ShardedParameter> split, std::vector<at::Tensor> sharded,
                 DataMesh data, const GroupPrecision& precision);
  void make_memory();
  void check_has_memory() const;
  /// This rank's tensors that are sent, by tensor of the memory.
  std::vector<at::Tensor> own_parts();
  void finish_gather();
  void free_memory();
  /// Hooks of the leaves that require gradients.
  void listen();
  int64_t own_index() const { return data_.shard_group()->index; }
  /// The dtype and device of whole gradients of parameter `i`.
  at::TensorOptions gradient_options(size_t i) const;
  uint64_t n_writes() const;
  /// For the order check: "gather of group 2: weight Float [10, 4] as [Shard(0)] on (4), ...", with the parameters `which`.
  std::string words(const char* what, c10::ArrayRef<size_t> which, bool is_gather = false) const;
  /// This rank's pieces of what has come, laid out as the leaves; undefined where nothing has.
  std::vector<at::Tensor> take_gradients();
  void deliver(size_t i, const at::Tensor& part);

  int64_t number_ = 0;  // among those over the sharding ranks, by which the order check names it
  std::vector<std::string> names_;
  std::vector<ShardedParameter> parameters_;
  std::vector<at::Tensor> sharded_;
  DataMesh data_;
  GroupPrecision precision_;

  ClassParameters classes_;
  std::unique_ptr<GatheredMemory> memory_;  // the plain parameters come first; null where this rank has no parameters
  std::vector<at::Tensor> leaves_;
  std::function<void(bool)> exchange_;
  std::shared_ptr<Arrivals> arrivals_;

  State state_ = State::kSharded;
  bool is_in_place_ = false;  // the whole parameters are
  uint64_t n_writes_ = 0;     // when it was gathered last

  std::vector<at::Tensor> accumulated_;  // whole gradients by parameter; undefined where there is none
  std::unique_ptr<GradientReduction> reduction_;
  bool was_accumulated_ = false;  // since the last reduction
  at::Tensor
      unreplicated_;  // reduced among the sharding ranks, not yet among replicas: all in a row, and which have a gradient
  std::optional<double> divide_factor_;
  bool all_reduces_ = true;
};

}  // namespace shardwise
