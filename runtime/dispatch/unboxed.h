// runtime/dispatch/unboxed.h: dispatch() for one operator of known signature. A hot call allocates its result and nothing else.
//
//   add_unboxed<at::_ops::add_Tensor>(library);
//
// The call's key is built from the unboxed arguments. If the decision is cached and is_direct, the kernel runs on the pieces at once; all
// other calls are boxed and take the general path.
#pragma once

#include "runtime/api/gradient_layout.h"
#include "runtime/comm/events.h"
#include "runtime/dispatch/decision.h"
#include "runtime/dispatch/dispatch.h"
#include "runtime/dispatch/foreach_run.h"
#include "runtime/dispatch/view_call.h"
#include "runtime/rules/rule.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"
#include "runtime/tensor/view_begin.h"

#include <ATen/core/IListRef.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace shardwise {

/// The key of a call, built argument by argument. `is_simple()` becomes false if the call must take the general path.
class UnboxedKey {
 public:
  explicit UnboxedKey(const OpInfo& op) : op_(op), key_(op), is_simple_(op.rule && !operators_are_read()) {}

  void add(const at::Tensor& tensor) {
    if (const auto* impl = maybe_dtensor(tensor)) {
      is_simple_ &= !share_memory(written_, impl);  // the general path copies what overlaps
      if (op_.args[n_args_].is_written) written_ = impl;
    }
    add_tensor(tensor);
    ++n_args_;
  }
  void add(const at::ITensorListRef& tensors) {
    key_.add_list(tensors.size());
    for (const at::Tensor& tensor : tensors) add_tensor(tensor);
    ++n_args_;
  }
  void add(at::TensorList tensors) {
    if (n_args_ == 0) {
      is_simple_ &= std::ranges::all_of(tensors, [](const at::Tensor& each) { return is_dtensor(each); });
      if (op_.args[0].is_written) written_list_ = tensors;
    } else {
      for (size_t i = 0; i < std::min(tensors.size(), written_list_.size()); ++i)
        is_simple_ &= !share_memory(maybe_dtensor(written_list_[i]), maybe_dtensor(tensors[i]));
    }
    add(at::ITensorListRef(tensors));
  }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) return add(*tensor);
    add_scalar(c10::IValue());
  }
  void add(c10::SymIntArrayRef sizes) {
    const auto known = c10::asIntArrayRefSlowOpt(sizes);
    is_simple_ &= known.has_value();
    if (known) key_.add_ints(*known);
    ++n_args_;
  }
  void add(at::OptionalIntArrayRef dims) {
    if (!dims) return add_scalar(c10::IValue());
    key_.add_ints(*dims);
    ++n_args_;
  }
  template <class Scalar>
  void add(const Scalar& value) {
    if constexpr (std::is_same_v<Scalar, c10::Scalar> || std::is_same_v<Scalar, int64_t> ||
                  std::is_same_v<Scalar, bool>)
      add_scalar(value);
    else
      add_scalar(c10::IValue(value));
  }

  bool is_simple() const { return is_simple_; }
  const DecisionKey& key() const { return key_; }

 private:
  void add_tensor(const at::Tensor& tensor) {
    auto* impl = maybe_dtensor(tensor);
    if (impl) {
      is_simple_ &= is_for_kernel(*impl);
    } else if (tensor.defined()) {
      is_simple_ &= is_for_kernel(tensor) && !op_.args[n_args_].is_written;
    }
    key_.add_tensor(tensor, impl);
  }

  template <class Value>
  void add_scalar(const Value& value) {
    key_.add_scalar(value, op_.args[n_args_++].is_number);
  }

  const OpInfo& op_;
  DecisionKey key_;
  bool is_simple_;
  size_t n_args_ = 0;
  const DTensorImpl* written_ = nullptr;  // no element of a list
  at::TensorList written_list_;
};

template <class Op, class Schema = typename Op::schema>
class Unboxed;

template <class Op, class Return, class... Args>
class Unboxed<Op, Return(Args...)> {
 public:
  static Return call(Args... args) {
    UnboxedKey key(info());
    (key.add(args), ...);
    if (key.is_simple() && !is_traced_call(args...))
      if (const Decision* decision = DecisionCache::of_thread().find_direct(key.key()); decision && may_view(args...))
        return run(*decision, args...);
    return run_boxed(args...);
  }

  static const OpInfo& info() {
    static const OpInfo info = [] {
      OpInfo found(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
      found.rule = RuleTable::global().find(found.name);
      return found;
    }();
    return info;
  }

 private:
  static constexpr size_t kReturns = [] {
    if constexpr (requires { std::tuple_size<Return>::value; })
      return std::tuple_size_v<Return>;
    else
      return size_t{1};
  }();
  /// The second argument is the global sizes of the result.
  static constexpr bool kTakesSizes =
      std::is_same_v<std::tuple_element_t<std::min<size_t>(1, sizeof...(Args) - 1), std::tuple<Args...>>,
                     c10::SymIntArrayRef>;
  static constexpr bool kIsView = std::string_view(Op::schema_str).find("-> Tensor(a)") != std::string_view::npos;

  /// True in a traced program, for which the general path keeps more.
  template <class First, class... Rest>
  static bool is_traced_call(const First& first, const Rest&...) {
    if constexpr (std::is_convertible_v<First, const at::TensorBase&>)
      return first.key_set().has(c10::DispatchKey::Python);
    return false;
  }

  /// False for a piece that view() may refuse although the tensor has a view.
  template <class First, class... Rest>
  static bool may_view(const First& first, const Rest&...) {
    if constexpr (kTakesSizes) return local(first).is_contiguous();
    return true;
  }

  template <class Value>
  static const Value& local(const Value& value) {
    return value;
  }
  static const at::Tensor& local(const at::Tensor& tensor) {
    const auto* impl = maybe_dtensor(tensor);
    return impl ? impl->shards()[0] : tensor;
  }
  static std::optional<at::Tensor> local(const std::optional<at::Tensor>& tensor) {
    return tensor ? std::optional(local(*tensor)) : std::nullopt;
  }
  static std::vector<at::Tensor> local(const at::ITensorListRef& tensors) {
    return c10::fmap(tensors, [&](const at::Tensor& tensor) { return local(tensor); });
  }
  static std::vector<at::Tensor> local(at::TensorList tensors) { return local(at::ITensorListRef(tensors)); }

  template <class Value>
  static c10::IValue boxed(const Value& value) {
    if constexpr (std::is_same_v<Value, at::ITensorListRef>)
      return std::vector<at::Tensor>(value.begin(), value.end());
    else
      return value;
  }

  template <class First, class... Rest>
  static Return run(const Decision& decision, First& first, Rest&... rest) {
    const BelowAutograd guard;
    if constexpr (std::is_void_v<Return>) {
      c10::SmallVector<MemoryWrite, 2> writes;
      size_t arg = 0;
      begin_writes(first, arg++, writes);
      (begin_writes(rest, arg++, writes), ...);
      Op::call(local(first), local(rest)...);
    } else if constexpr (std::is_same_v<First, at::TensorList>) {
      const auto& outputs = decision.propagation->outputs;
      std::vector<SpecPtr> specs(outputs.begin(), outputs.end());
      Return results = Op::call(local(first), local(rest)...);
      for (size_t i = 0; i < results.size(); ++i) put_around(results[i], std::move(specs[i]));
      return results;
    } else if constexpr (std::is_reference_v<Return>) {
      const MemoryWrite write(maybe_dtensor(first)->known_memory());
      Op::call(const_cast<at::Tensor&>(local(first)), local(rest)...);
      return first;
    } else {
      std::array<SpecPtr, kReturns> specs;  // a copy: the kernel may call operators, which may empty the cache
      std::copy_n(decision.propagation->outputs.begin(), kReturns, specs.begin());
      Return result = [&] {
        if constexpr (kTakesSizes)
          return [&](const auto& /*global sizes*/, const auto&... others) {
            return Op::call(local(first), c10::fromIntArrayRefUnchecked(specs[0]->boxes()[0].sizes), others...);
          }(rest...);
        else
          return Op::call(local(first), local(rest)...);
      }();
      if constexpr (std::is_same_v<Return, at::Tensor>) {
        if constexpr (kIsView) {
          ViewOrigin origin = origin_of(*maybe_dtensor(first));
          put_around(result, std::move(specs[0]), &origin);
        } else {
          put_around(result, std::move(specs[0]));
        }
      } else {
        [&]<size_t... i>(std::index_sequence<i...>) {
          (put_around(std::get<i>(result), std::move(specs[i])), ...);
        }(std::make_index_sequence<kReturns>());
      }
      return result;
    }
  }

  /// Begins the writes to the elements of argument `arg`, if it is a list to write to.
  template <class Value>
  static void begin_writes(const Value& value, size_t arg, c10::SmallVector<MemoryWrite, 2>& writes) {
    if constexpr (std::is_same_v<Value, at::TensorList>) {
      if (!info().args[arg].is_written) return;
      count_writes(info(), arg, value);
      for (const at::Tensor& tensor : value)
        if (const auto* impl = maybe_dtensor(tensor); impl->known_memory()) writes.push_back(impl->begin_write());
    }
  }

  /// Replaces a piece with the distributed result of `spec`; with nothing if the operator returns none.
  static void put_around(at::Tensor& piece, SpecPtr spec, ViewOrigin* origin = nullptr) {
    if (!spec) return piece.reset();
    TORCH_INTERNAL_ASSERT(has_sizes(piece, spec->boxes()[0].sizes), "[", info().name, "] gave a piece of sizes ",
                          piece.sizes(), " for ", to_string(*spec));
    Shards pieces;
    pieces.push_back(std::move(piece));
    piece = origin ? wrap_view(info().name, std::move(spec), std::move(pieces), std::move(*origin))
                   : wrap(std::move(spec), std::move(pieces));
  }

  template <class First, class... Rest>
  static Return run_boxed(First& first, Rest&... rest) {
    torch::jit::Stack stack;
    stack.reserve(sizeof...(Rest) + 1);
    stack.push_back(boxed(first));
    (stack.push_back(boxed(rest)), ...);
    dispatch(info(), &stack);
    if constexpr (std::is_reference_v<Return>)
      return first;
    else if constexpr (std::is_void_v<Return>)
      return;
    else if constexpr (std::is_same_v<Return, at::Tensor>)
      return std::move(stack[0]).toTensor();
    else if constexpr (std::is_same_v<Return, std::vector<at::Tensor>>)
      return std::move(stack[0]).toTensorVector();
    else
      return [&]<size_t... i>(std::index_sequence<i...>) {
        return Return(std::move(stack[i]).toTensor()...);
      }(std::make_index_sequence<kReturns>());
  }
};

/// Registers Unboxed<Op> as the kernel for distributed tensors. Pre: its rule, if it has one, is in the table.
template <class Op>
void add_unboxed(torch::Library& library) {
  const std::string name = Unboxed<Op>::info().name.substr(std::string("aten::").size());
  library.impl(name.c_str(), torch::CppFunction::makeFromUnboxedFunction(&Unboxed<Op>::call));
}

}  // namespace shardwise
