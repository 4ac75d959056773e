// runtime/tensor/subclass.h: local tensors of a class of Python's, as quantised weights are. Only the class's own operators know its memory.
//
// A DTensor holds such an object itself: to_local() gives it back, operators run on it through its __torch_dispatch__, and moves take it apart
// (runtime/tensor/subclass_parts.h). Whatever else reads memory refuses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <vector>

namespace shardwise {

/// True for a tensor whose operators a class of Python's answers. False for those of torch's tracers, and while one of these runs.
/// Cost: one test of a bit for plain tensors.
bool is_subclass(const at::TensorBase& tensor);

/// True for an object of a class that holds a tracer's tensors instead of values. Pre: `tensor` is a tracer's piece.
bool is_traced_subclass(const at::TensorBase& tensor);

/// "Float8Tensor": the class's name, for errors. Pre: is_subclass(tensor).
std::string class_of(const at::TensorBase& tensor);

/// Another object of the same memory, by the class's aten.detach or, where it refuses that, aten.view.
/// Throws: the class's own error where it refuses both.
at::Tensor alias_of(const at::Tensor& tensor);

/// An object taken apart by its class's __tensor_flatten__.
struct Flattened {
  std::vector<std::string> names;  // "qdata", or "inner.qdata" of an object within the object
  std::vector<at::Tensor> inner;   // plain; they share the object's memory
  std::string recipe;              // all else that the class needs to make one of them, but for the sizes
};

/// Throws: the class's own error, and one of Python's for a class without __tensor_flatten__.
Flattened flattened(const at::Tensor& object);
/// An object of the class of `like`, by its __tensor_unflatten__.
at::Tensor unflattened(const at::Tensor& like, const Flattened& parts, at::IntArrayRef sizes, at::IntArrayRef strides);
/// True where the class said the same of both objects, but for sizes and inner tensors.
bool have_same_context(const Flattened& a, const Flattened& b);

/// True where no inner tensor has the object's dtype, as of quantised weights: an optimizer's step could add nothing to it. False for a class
/// without __tensor_flatten__.
bool is_quantised(const at::Tensor& object);

/// True for the local shards of a program, whose class says where they are: their sizes are each rank's own.
bool says_places(const at::Tensor& object);

/// The answers of Python. Set once, by the bindings; without them there are no subclasses.
struct SubclassAnswers {
  bool (*is_of_tracer)(const at::TensorBase& tensor);
  bool (*holds_traced)(const at::TensorBase& tensor);
  std::string (*class_of)(const at::TensorBase& tensor);
  /// Puts `words` before the text of an error of Python's, whose class stays.
  void (*name_error)(const std::exception& error, const std::string& words);
  std::string (*taken_error)(const std::exception& error);
  Flattened (*flattened)(const at::Tensor& object);
  at::Tensor (*unflattened)(const at::Tensor& like, const Flattened& parts, at::IntArrayRef sizes,
                            at::IntArrayRef strides);
  bool (*have_same_context)(const std::string& recipe, const std::string& other);
  bool (*says_places)(const at::Tensor& object);
};
void set_subclass_answers(const SubclassAnswers& answers);

/// To be called where an operator on such a tensor threw `error`, before it is thrown on.
void name_error(const std::exception& error, const std::string& words);

/// The text of an error that is not thrown on. Python, which keeps an error until somebody takes it, forgets it.
std::string taken_error(const std::exception& error);

}  // namespace shardwise
