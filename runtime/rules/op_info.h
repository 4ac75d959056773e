// runtime/rules/op_info.h: the facts that dispatch needs about an operator's schema, computed once. And the list of aten operators in this torch, made once for all code that registers kernels.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise {

class Rule;

/// The role of a tensor argument, which torch's schemas only express by its name: whether a plain tensor may be used for it next to distributed ones.
enum class OperandRole : uint8_t {
  kValue,         // no
  kPositions,     // indices: a plain one counts as replicated
  kSelection,     // a mask, or counts: counts as replicated too
  kBatch,         // ids, and bags and weights of ids: data that differs between data-parallel ranks: no
  kInitialState,  // of a recurrent layer: no, and the error explains more
};

/// An operator's rule, for its kernels: null until a rule is set, and afterwards always that one. Threads may read it while another thread
/// sets it.
class RuleSlot {
 public:
  RuleSlot() = default;
  RuleSlot(const RuleSlot& other) : rule_(other) {}
  RuleSlot& operator=(const RuleSlot& other) { return *this = static_cast<const Rule*>(other); }
  RuleSlot& operator=(const Rule* rule) {
    rule_.store(rule, std::memory_order_release);
    return *this;
  }
  operator const Rule*() const { return rule_.load(std::memory_order_acquire); }  // NOLINT: it acts as the pointer
  const Rule* operator->() const { return *this; }
  const Rule& operator*() const { return *static_cast<const Rule*>(*this); }

 private:
  std::atomic<const Rule*> rule_ = nullptr;
};

struct OpInfo {
  explicit OpInfo(c10::OperatorHandle op);

  struct Arg {
    /// Scalar, Scalar[] or float: its value does not affect layouts unless the rule is by_numbers().
    bool is_number = false;
    bool is_written = false;
    bool is_aliased = false;  // a view of it is returned
    OperandRole role = OperandRole::kValue;
  };

  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  c10::SmallVector<Arg, 8> args;
  /// Per return: the index of the argument that it is (mutated and out= arguments), or -1.
  c10::SmallVector<int, 2> returned_arg;
  bool is_view = false;
  bool writes = false;
  RuleSlot rule;  // null: gather fallback

  size_t n_args() const { return args.size(); }
  size_t n_returns() const { return returned_arg.size(); }
  /// The position of argument `name`. Throws: c10::ValueError if the schema has none.
  size_t arg_index(std::string_view name) const;
};

/// The operator of this full name ("aten::add.Tensor"), if torch has it.
std::optional<c10::OperatorHandle> find_operator(std::string_view name);

struct AtenOperator {
  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"

  /// The name for torch::Library::impl(): "add.Tensor".
  const char* short_name() const { return name.c_str() + 6; }
};

/// All operators of aten, sorted by name.
c10::ArrayRef<AtenOperator> aten_operators();

/// The overloads of `name` ("aten::add").
c10::ArrayRef<AtenOperator> overloads_of(std::string_view name);

}  // namespace shardwise
