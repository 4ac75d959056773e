// runtime/dispatch/decision.h: how to run a call with given layouts and scalars, and the bounded cache of such decisions.
#pragma once

#include "runtime/comm/events.h"
#include "runtime/rules/propagate.h"
#include "runtime/tensor/bounded_map.h"
#include "runtime/tensor/dtensor_impl.h"

#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/graph_task.h>

#include <functional>
#include <memory>
#include <optional>

namespace shardwise {

/// How to run one call: which inputs move, which scalars change, and the layouts of the results.
struct Decision {
  /// Null if the operator runs on replicated inputs.
  std::optional<Propagation> propagation;
  bool moves = false;        // some input is redistributed
  bool copied_view = false;  // ... although the result should be a view of that input
  int64_t view_offset = 0;   // for a view: its offset in the global tensor that it views
  bool is_skipped = false;   // every local input is empty: outputs are filled, the kernel is not called
  bool may_be_refused_on_other_ranks = false;  // here it is not called, or an operand has no elements
  /// If may_be_refused_on_other_ranks: the numbers of this thread's latest call, which the kernel accepts there. It may refuse other
  /// numbers.
  mutable std::optional<std::vector<c10::IValue>> accepted_numbers;
  /// One piece each, and nothing to move, replace or skip: the kernel's result is the local result. For lists: for each element. An argument with
  /// the result's sizes is replaced with those of its piece.
  bool is_direct = false;
  /// Arguments to replace, per local piece (one entry for ordinary layouts); empty if no piece has any.
  std::vector<std::vector<std::pair<size_t, c10::IValue>>> local_args;
  /// How such calls run, in words; null until a reader wanted them.
  mutable std::shared_ptr<const OpDescription> description;
};

/// True in a backward that records nothing. All ranks agree, because they run the backward together.
inline bool is_in_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0 && !c10::GradMode::is_enabled();
}

/// The cache key of a call: the operator, torch's default dtype, is_in_backward(), the interned specs and every scalar that can change the
/// decision, as 64-bit words. Arguments are added in order; boxed and unboxed calls with equal arguments have equal keys.
class DecisionKey {
 public:
  explicit DecisionKey(const OpInfo& op) {
    add_pointer(&op);
    // Integer times float gives the default dtype.
    add(static_cast<uint64_t>(c10::get_default_dtype_as_scalartype()) << 1 | static_cast<uint64_t>(is_in_backward()));
  }

  /// Adds a tensor argument or list element. `impl`: not null if it is distributed. Pre: otherwise it is undefined or 0-dim.
  void add_tensor(const at::Tensor& tensor, const DTensorImpl* impl) {
    if (impl)
      add_pointer(impl->spec().get());
    else if (tensor.defined())
      add_plain(tensor);
    else
      add(0);
  }
  /// Adds an element that is missing in an optional list.
  void add_absent() { add(0); }
  /// Adds a list, before its elements.
  void add_list(size_t n) {
    add(n);
    words_.reserve(words_.size() + n);
  }
  void add_ints(c10::IntArrayRef values);
  /// Adds any other argument, boxed or not. `by_kind`: only whether it is a bool, an integer, a float or complex matters.
  void add_scalar(const c10::IValue& value, bool by_kind);
  void add_scalar(const c10::Scalar& value, bool by_kind);
  void add_scalar(int64_t value, bool by_kind);
  void add_scalar(bool value, bool by_kind);

  uint64_t hash() const { return hash_; }
  bool operator==(const DecisionKey& other) const { return hash_ == other.hash_ && words_ == other.words_; }

 private:
  void add(uint64_t word) {
    words_.push_back(word);
    hash_ = (hash_ ^ word) * 0x9E3779B97F4A7C15ull;
    hash_ ^= hash_ >> 29;
  }
  void add_pointer(const void* pointer) { add(reinterpret_cast<uint64_t>(pointer)); }
  void add_plain(const at::Tensor& tensor);

  uint64_t hash_ = 0xCBF29CE484222325ull;
  c10::SmallVector<uint64_t, 24> words_;
};

}  // namespace shardwise

template <>
struct std::hash<shardwise::DecisionKey> {
  size_t operator()(const shardwise::DecisionKey& key) const { return key.hash(); }
};

namespace shardwise {

struct CacheCounters {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t size = 0;
};

/// One per thread, so a hit takes no lock. Entries keep the specs of their key alive, so that an address in a key is never reused. Bounded.
/// Decisions that depend on the values of numbers are kept apart, so that a number which changes in every call does not evict other entries.
class DecisionCache {
 public:
  static constexpr size_t kMaxDecisions = 8192;
  static constexpr size_t kMaxByNumbers = 256;
  static DecisionCache& of_thread();

  std::shared_ptr<const Decision> find(const DecisionKey& key);
  /// The decision if it is_direct, otherwise null. Valid until the next call, which any operator may make. A miss is not counted, because the
  /// caller then calls find().
  const Decision* find_direct(const DecisionKey& key);
  void insert(DecisionKey key, std::shared_ptr<const Decision> decision, std::vector<SpecPtr> specs,
              bool is_by_numbers = false);
  CacheCounters counters() const {
    return {hits_, misses_, static_cast<int64_t>(entries_.size() + by_numbers_.size())};
  }

 private:
  struct Entry {
    std::shared_ptr<const Decision> decision;
    std::vector<SpecPtr> specs;
  };

  BoundedMap<DecisionKey, Entry, kMaxDecisions> entries_;
  BoundedMap<DecisionKey, Entry, kMaxByNumbers> by_numbers_;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
};

}  // namespace shardwise
