#include "runtime/tensor/subclass.h"

#include "runtime/comm/error_text.h"
#include "runtime/comm/tracing.h"

#include <ATen/ops/view.h>

#include <algorithm>
#include <atomic>

namespace shardwise {
namespace {

std::atomic<const SubclassAnswers*> answers{nullptr};

}  // namespace

bool is_subclass(const at::TensorBase& tensor) {
  if (!tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) [[likely]]
    return false;
  const auto* const known = answers.load(std::memory_order_acquire);
  return known != nullptr && !is_tracing() && !known->is_of_tracer(tensor) && !known->holds_traced(tensor);
}

bool is_traced_subclass(const at::TensorBase& tensor) {
  const auto* const known = answers.load(std::memory_order_acquire);
  return known != nullptr && !known->is_of_tracer(tensor);
}

std::string class_of(const at::TensorBase& tensor) { return answers.load()->class_of(tensor); }

at::Tensor alias_of(const at::Tensor& tensor) {
  try {
    return tensor.detach();
  } catch (const std::exception& refusal) {
    taken_error(refusal);
    return tensor.view(tensor.sizes());
  }
}

Flattened flattened(const at::Tensor& object) { return answers.load()->flattened(object); }

at::Tensor unflattened(const at::Tensor& like, const Flattened& parts, at::IntArrayRef sizes, at::IntArrayRef strides) {
  return answers.load()->unflattened(like, parts, sizes, strides);
}

bool have_same_context(const Flattened& a, const Flattened& b) {
  return answers.load()->have_same_context(a.recipe, b.recipe);
}

bool is_quantised(const at::Tensor& object) try {
  const Flattened parts = flattened(object);
  return std::ranges::none_of(parts.inner, [&](const at::Tensor& inner) {
    return inner.scalar_type() == object.scalar_type() && inner.sizes() == object.sizes();
  });
} catch (const std::exception& refusal) {
  taken_error(refusal);
  return false;
}

bool says_places(const at::Tensor& object) { return answers.load()->says_places(object); }

void set_subclass_answers(const SubclassAnswers& given) { answers = new SubclassAnswers(given); }

void name_error(const std::exception& error, const std::string& words) {
  if (const auto* const known = answers.load()) known->name_error(error, words);
}

std::string taken_error(const std::exception& error) {
  const auto* const known = answers.load();
  return known ? known->taken_error(error) : error_text(error);
}

}  // namespace shardwise
