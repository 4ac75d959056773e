// runtime/tensor/subclass.h: local tensors of a Python subclass, such as quantised weights. Only the class's own operators can read their
// memory.
//
// A DTensor holds such an object itself: to_local() returns it, operators run on it through its __torch_dispatch__, and moves take it apart
// (runtime/tensor/subclass_parts.h). All other code that reads memory refuses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <vector>

namespace shardwise {

/// True for a tensor of a Python class with its own __torch_dispatch__. False for tensors of torch's tracers, and while a tracer runs.
/// Cost: one bit test for plain tensors.
bool is_subclass(const at::TensorBase& tensor);

/// True for an object of a subclass that holds a tracer's tensors instead of values. Pre: `tensor` is a tracer's piece.
bool is_traced_subclass(const at::TensorBase& tensor);

/// "Float8Tensor": the class's name, for errors. Pre: is_subclass(tensor).
std::string class_of(const at::TensorBase& tensor);

/// Another object with the same memory, made by the class's aten.detach, or by aten.view if it refuses that.
/// Throws: the class's own error if it refuses both.
at::Tensor alias_of(const at::Tensor& tensor);

/// The parts of an object, as given by its class's __tensor_flatten__.
struct Flattened {
  std::vector<std::string> names;  // "qdata", or "inner.qdata" for a nested object
  std::vector<at::Tensor> inner;   // plain; they share the object's memory
  std::string recipe;              // everything else the class needs to make an object, except sizes
};

/// Throws: the class's own error, and a Python error for a class without __tensor_flatten__.
Flattened flattened(const at::Tensor& object);
/// An object of the class of `like`, made by its __tensor_unflatten__.
at::Tensor unflattened(const at::Tensor& like, const Flattened& parts, at::IntArrayRef sizes, at::IntArrayRef strides);
/// True if both objects have the same context, except for sizes and inner tensors.
bool have_same_context(const Flattened& a, const Flattened& b);

/// True if no inner tensor has the object's dtype and sizes, as in quantised weights, so that an optimizer cannot add a step to it. False for a class
/// without __tensor_flatten__.
bool is_quantised(const at::Tensor& object);

/// True for a program's own local shards class, which reports where its shards are. Their sizes may differ between ranks.
bool says_places(const at::Tensor& object);

/// Python's implementations of these functions. Set once, by the bindings; without them there are no subclasses.
struct SubclassAnswers {
  bool (*is_of_tracer)(const at::TensorBase& tensor);
  bool (*holds_traced)(const at::TensorBase& tensor);
  std::string (*class_of)(const at::TensorBase& tensor);
  /// Puts `words` before the text of a Python error, and keeps the error's class.
  void (*name_error)(const std::exception& error, const std::string& words);
  std::string (*taken_error)(const std::exception& error);
  Flattened (*flattened)(const at::Tensor& object);
  at::Tensor (*unflattened)(const at::Tensor& like, const Flattened& parts, at::IntArrayRef sizes,
                            at::IntArrayRef strides);
  bool (*have_same_context)(const std::string& recipe, const std::string& other);
  bool (*says_places)(const at::Tensor& object);
};
void set_subclass_answers(const SubclassAnswers& answers);

/// Call this if an operator on such a tensor threw `error`, before rethrowing it.
void name_error(const std::exception& error, const std::string& words);

/// The text of an error that is not rethrown. Clears the pending Python error.
std::string taken_error(const std::exception& error);

}  // namespace shardwise
