#include "runtime/tensor/subclass.h"

#include "runtime/comm/error_text.h"
#include "runtime/comm/tracing.h"

#include <ATen/ops/narrow.h>
#include <ATen/ops/slice.h>
#include <ATen/ops/split_with_sizes.h>
#include <ATen/ops/view.h>
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <functional>

namespace shardwise {
namespace {

std::atomic<const SubclassAnswers*> answers{nullptr};

}  // namespace

bool is_subclass(const at::TensorBase& tensor) {
  if (!tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python)) [[likely]]
    return false;
  const auto* const known = answers.load(std::memory_order_acquire);
  return known != nullptr && !is_tracing() && !known->is_of_tracer(tensor);
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

at::Tensor part_along(const char* op, const at::Tensor& object, int64_t dim, int64_t begin, int64_t n) {
  if (begin == 0 && n == object.size(dim)) return object;
  const std::array<std::function<at::Tensor()>, 3> ways{
      [&] { return at::slice(object, dim, begin, begin + n); }, [&] { return at::narrow(object, dim, begin, n); },
      [&] { return at::split_with_sizes(object, {begin, n, object.size(dim) - begin - n}, dim)[1]; }};
  std::string refusal;
  for (const auto& way : ways) {
    try {
      return way();
    } catch (const std::exception& error) {
      const std::string text = taken_error(error);
      if (refusal.empty()) refusal = text;
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      fmt::format("[{}] a {} answers none of aten.slice, aten.narrow and aten.split_with_sizes, so no "
                  "part of it can be taken: {}. Give its __torch_dispatch__ one of them, or make each rank's part "
                  "and use DTensor.from_local.",
                  op, class_of(object), refusal));
}

void set_subclass_answers(const SubclassAnswers& given) { answers = new SubclassAnswers(given); }

void name_error(const std::exception& error, const std::string& words) {
  if (const auto* const known = answers.load()) known->name_error(error, words);
}

std::string taken_error(const std::exception& error) {
  const auto* const known = answers.load();
  return known ? known->taken_error(error) : error_text(error);
}

}  // namespace shardwise
