// shardwise/forward.h: calls of modules that parallelize_module() and fully_shard() have sharded.
//
//   at::Tensor y = sw::forward(model, x);             // instead of model(x)
//   sw::Parallelized<torch::nn::Linear> down{8, 4};   // a holder whose calls are forward(): down(x)
//
// torch::nn modules have no hooks. In an ordinary call of a module, operators work on DTensors by their rules. forward() adds the work that hooks do
// in Python:
//
// - plain inputs of a module with a style become DTensors as the style's input_layouts say, and outputs get its layouts;
// - plain tensors within it count as replicas: the ranks compare the plain arguments at the first call of each signature
//   (runtime/api/forward_scope.h);
// - the parameters that one call of fully_shard() took are gathered before the forward and freed after it, and the same for the backward.
#pragma once

#include "shardwise/dtensor.h"
#include "shardwise/module_calls.h"

#include <torch/nn/pimpl.h>

#include <iterator>
#include <optional>
#include <ranges>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace shardwise {
namespace detail {

template <class T>
constexpr bool kIsTensor = std::is_convertible_v<const T&, const at::Tensor&>;
template <class T>
constexpr bool kIsNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;
template <class T>
constexpr bool kIsString = std::is_convertible_v<const T&, std::string>;
template <class T>
constexpr bool kIsOptional = false;
template <class T>
constexpr bool kIsOptional<std::optional<T>> = true;
template <class T>
constexpr bool kIsTuple = false;
template <class... T>
constexpr bool kIsTuple<std::tuple<T...>> = true;
template <class First, class Second>
constexpr bool kIsTuple<std::pair<First, Second>> = true;

/// The type in which an argument is held while it is laid out: a tensor as at::Tensor.
template <class T>
using Held = std::conditional_t<kIsTensor<T>, at::Tensor, std::decay_t<const T&>>;

/// Text that is equal only for equal bits, except NaNs.
template <class T>
std::string text_of_number(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return text_of_number(static_cast<std::underlying_type_t<T>>(value));
  } else {
    std::ostringstream text;
    text << std::hexfloat << value;
    return text.str();
  }
}

/// Notes the parts of an argument that the ranks compare: plain tensors and numbers, also in ranges and optionals of these, at most kMostArguments.
/// Other types are ignored.
template <class T>
void note_value(const std::string& path, const T& value, std::vector<ForwardArgument>& others) {
  if constexpr (kIsTensor<T>) {
    const at::Tensor& tensor = value;
    if (tensor.defined() && !is_dtensor(tensor)) others.push_back({path, tensor, "", ""});
  } else if constexpr (kIsOptional<T>) {
    if (value) note_value(path, *value, others);
  } else if constexpr (kIsNumber<T>) {
    others.push_back({path, {}, typeid(T).name(), text_of_number(value)});
  } else if constexpr (std::ranges::input_range<const T> && !kIsString<T>) {
    int64_t i = 0;
    for (auto each = std::ranges::begin(value);
         each != std::ranges::end(value) && i < kMostArguments && std::ssize(others) < kMostArguments; ++each, ++i) {
      const std::ranges::range_value_t<const T>& element = *each;
      note_value(path + "[" + std::to_string(i) + "]", element, others);
    }
  }
}

/// A tensor is an input, which may be laid out first; all other arguments are compared.
template <class T>
void note_argument(T& value, std::vector<at::Tensor*>& inputs, std::vector<ForwardArgument>& others) {
  const std::string path = "args[" + std::to_string(inputs.size()) + "]";
  inputs.push_back(nullptr);
  if constexpr (std::is_same_v<T, at::Tensor>)
    inputs.back() = &value;
  else
    note_value(path, value, others);
}

/// Notes the tensors in a value: also in tuples, optionals and ranges. Returns false if it may have others.
template <class T>
bool note_tensors(T& value, std::vector<at::Tensor*>& tensors) {
  bool are_all = true;
  if constexpr (kIsNumber<T> || kIsString<T>) {
    return true;
  } else if constexpr (std::is_const_v<T>) {
    return false;
  } else if constexpr (std::is_base_of_v<at::Tensor, T>) {
    if (value.defined()) tensors.push_back(&value);
  } else if constexpr (kIsTuple<T>) {
    std::apply([&](auto&... each) { ((are_all &= note_tensors(each, tensors)), ...); }, value);
  } else if constexpr (kIsOptional<T>) {
    return !value || note_tensors(*value, tensors);
  } else if constexpr (std::ranges::forward_range<T>) {
    for (auto&& each : value) are_all &= note_tensors(each, tensors);
  } else {
    return false;
  }
  return are_all;
}

/// Lays out the tensors of a result by their positions in (nested) tuples. Other elements count as positions, too, and do not change.
template <class T>
void lay_out_output(const ModuleCall& call, T& output, size_t& position) {
  if constexpr (kIsTensor<T>) {
    output = T(call.output(output, position++));
  } else if constexpr (kIsTuple<T>) {
    std::apply([&](auto&... each) { (lay_out_output(call, each, position), ...); }, output);
  } else {
    ++position;
  }
}

}  // namespace detail

/// Calls module.forward(args...), with the layouts of parallelize_module(), and with the parameters that fully_shard() took. For other modules it does
/// nothing else. The outputs of a module with a style are distributed unless the style says use_local_output. If the result has other parts than
/// tensors and numbers, in tuples, optionals and ranges of any depth (a struct, or nothing), gathered parameters are kept until the backward.
///
/// Collective over the mesh. Throws: c10::ValueError, on all ranks, for inputs that do not fit the layouts, for DTensors over the mesh of fully_shard(),
/// and on ranks outside that mesh.
template <class M, class... Args>
  requires std::is_base_of_v<torch::nn::Module, M>
auto forward(M& module, const Args&... args) {
  static_assert(!std::is_const_v<M>,
                "forward() of torch::nn's modules is not const: pass the module by a reference that is not");
  std::tuple<detail::Held<Args>...> held(args...);
  std::vector<at::Tensor*> inputs;
  std::vector<ForwardArgument> others;
  std::apply([&](auto&... each) { (detail::note_argument(each, inputs, others), ...); }, held);
  std::vector<at::Tensor*> tensors;
  detail::note_tensors(held, tensors);
  ModuleCall call(module);
  call.enter(inputs, tensors, std::move(others));
  const auto run = [&] { return std::apply([&](auto&... each) { return module.forward(each...); }, held); };
  if constexpr (std::is_void_v<decltype(run())>) {
    run();
    call.leave({}, /*are_all=*/false);
  } else {
    auto output = run();
    size_t position = 0;
    detail::lay_out_output(call, output, position);
    tensors.clear();
    const bool are_all = detail::note_tensors(output, tensors);
    call.leave(tensors, are_all);
    return output;
  }
}
template <class M, class... Args>
auto forward(const torch::nn::ModuleHolder<M>& module, const Args&... args) {
  return forward(*module.ptr(), args...);
}

/// A module holder, Parallelized<torch::nn::Linear>, whose calls are forward(). It is registered, and named in plans, as the holder itself.
template <class Holder>
class Parallelized : public Holder {
 public:
  using Holder::Holder;
  Parallelized(Holder module) : Holder(std::move(module)) {}  // NOLINT(google-explicit-constructor)

  template <class... Args>
  auto operator()(const Args&... args) const {
    return forward(*this, args...);
  }
};

}  // namespace shardwise
