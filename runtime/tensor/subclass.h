// runtime/tensor/subclass.h: local tensors of a class of Python's, as quantised weights are. Only the class's own operators know its memory.
//
// A DTensor holds such an object itself: to_local() gives it back, operators run on it through its __torch_dispatch__, and whatever reads memory
// (moves between ranks, kernels of ours) refuses it.
#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>

namespace shardwise {

/// True for a tensor whose operators a class of Python's answers. False for those of torch's tracers, and while one of these runs.
/// Cost: one test of a bit for plain tensors.
bool is_subclass(const at::TensorBase& tensor);

/// "Float8Tensor": the class's name, for errors. Pre: is_subclass(tensor).
std::string class_of(const at::TensorBase& tensor);

/// Another object of the same memory, by the class's aten.detach or, where it refuses that, aten.view.
/// Throws: the class's own error where it refuses both.
at::Tensor alias_of(const at::Tensor& tensor);

/// Indices [begin, begin + n) of `object` along `dim`, by whichever of three operators its class answers; the object itself where that is all.
/// Throws: c10::NotImplementedError naming them, in the name of `op`, where it answers none.
at::Tensor part_along(const char* op, const at::Tensor& object, int64_t dim, int64_t begin, int64_t n);

/// The answers of Python. Set once, by the bindings; without them there are no subclasses.
struct SubclassAnswers {
  bool (*is_of_tracer)(const at::TensorBase& tensor);
  std::string (*class_of)(const at::TensorBase& tensor);
  /// Puts `words` before the text of an error of Python's, whose class stays.
  void (*name_error)(const std::exception& error, const std::string& words);
  std::string (*taken_error)(const std::exception& error);
};
void set_subclass_answers(const SubclassAnswers& answers);

/// To be called where an operator on such a tensor threw `error`, before it is thrown on.
void name_error(const std::exception& error, const std::string& words);

/// The text of an error that is not thrown on. Python, which keeps an error until somebody takes it, forgets it.
std::string taken_error(const std::exception& error);

}  // namespace shardwise
