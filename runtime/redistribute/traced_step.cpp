#include "runtime/redistribute/traced_step.h"

#include "runtime/redistribute/leaf_hooks.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/device_mesh.h"
#include "runtime/tensor/symbolic_sizes.h"
#include "text/check.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

std::mutex steps_mutex;
/// Never emptied or destroyed, because a graph may run as long as the process lives.
auto& steps = *new std::unordered_map<std::string, TracedStep>;

/// Everything that a layout depends on. The hash covers layouts in pieces, whose text is cut.
std::string full_words(const SpecPtr& given) {
  const Spec& spec = *given;
  return fmt::format("{} strides [{}] ranks [{}] #{:x}", to_string(spec), fmt::join(spec.strides(), ","),
                     fmt::join(spec.mesh()->grid().ranks, ","), spec.layout().hash());
}

std::string words_of(const TracedStep& step) {
  std::vector<std::string> operands, results;
  for (const SpecPtr& spec : step.operands) operands.push_back(full_words(spec));
  for (const SpecPtr& spec : step.results) results.push_back(full_words(spec));
  const DeviceMesh& mesh = *(step.operands.empty() ? step.results : step.operands)[0]->mesh();
  return fmt::format("rank {} of {}: {} -> {}{}", mesh.rank(), mesh.world()->size(), fmt::join(operands, ", "),
                     fmt::join(results, ", "), step.words);
}

/// Adds `step` to the table and returns its text. Meshes of an earlier world have the same text as today's, so a number is added to tell
/// them apart.
std::string remember(const TracedStep& step) {
  const std::string words = words_of(step);
  const std::lock_guard lock(steps_mutex);
  std::string text = words;
  for (int n = 2;; ++n) {
    const auto [entry, is_new] = steps.try_emplace(text, step);
    if (is_new || (entry->second.operands == step.operands && entry->second.results == step.results)) return text;
    text = fmt::format("{} ({})", words, n);
  }
}

const TracedStep& step_of(const std::string& what) {
  const std::lock_guard lock(steps_mutex);
  const auto found = steps.find(what);
  SW_CHECK_VALUE(
      found != steps.end(),
      "[torch.compile] a graph asks for a step that this process has not traced: {}. Compile the program in the "
      "process that runs it.",
      what);
  return found->second;
}

/// True if the pieces have the sizes that the step was traced with.
bool have_sizes_of(const TracedStep& step, at::TensorList pieces) {
  return std::ranges::equal(pieces, step.operands, [](const at::Tensor& piece, const SpecPtr& spec) {
    return piece.sizes() == c10::IntArrayRef(spec->boxes()[0].sizes);
  });
}

/// Runs `function` below autograd with the step that has this text: for the sizes of the pieces, if these are others.
template <class Function>
auto with_step(at::TensorList pieces, std::string_view what, const Function& function) {
  const TracedStep& step = step_of(std::string(what));
  const BelowAutograd guard;
  const bool has_other_sizes = step.for_sizes && pieces.size() == step.operands.size() && !have_sizes_of(step, pieces);
  return has_other_sizes ? function(step.for_sizes(pieces)) : function(step);
}

/// The piece as the graph expects it: with the inferred strides, and in memory of its own.
at::Tensor as_foretold(const at::Tensor& piece, const Box& box, const Spec& spec, at::TensorList given) {
  const Dims strides = dense_strides(box.sizes, spec.strides());
  const bool is_given = std::ranges::any_of(given, [&](const at::Tensor& other) { return piece.is_alias_of(other); });
  if (!is_given && piece.strides() == c10::IntArrayRef(strides)) return piece;
  return at::empty_strided(box.sizes, strides, piece.options()).copy_(piece);
}

std::vector<at::Tensor> as_foretold(const TracedStep& step, const Shards& made, at::TensorList given) {
  std::vector<at::Tensor> results;
  for (const SpecPtr& spec : step.results)
    for (const Box& box : spec->boxes()) results.push_back(as_foretold(made[results.size()], box, *spec, given));
  return results;
}

std::vector<at::Tensor> run_call(at::TensorList pieces, std::string_view what,
                                 const std::optional<at::Tensor>& /*after*/) {
  return with_step(pieces, what, [&](const TracedStep& step) {
    std::vector<at::Tensor> results = as_foretold(step, step.call(Shards(pieces.begin(), pieces.end())), pieces);
    results.push_back(at::empty({0}, at::kByte));
    return results;
  });
}

void drop_move(void* move) { delete static_cast<PendingMove*>(move); }

at::Tensor run_start(at::TensorList pieces, std::string_view what, const std::optional<at::Tensor>& /*after*/) {
  return with_step(pieces, what, [&](const TracedStep& step) {
    c10::DataPtr move(nullptr, step.start_move(Shards(pieces.begin(), pieces.end())).release(), &drop_move, c10::kCPU);
    at::Tensor started = at::empty({0}, at::kByte);
    started.unsafeGetTensorImpl()->set_storage_keep_dtype(
        c10::Storage(c10::Storage::use_byte_size_t(), 0, std::move(move)));
    return started;
  });
}

std::vector<at::Tensor> run_finish(const at::Tensor& started, at::TensorList pieces, std::string_view what) {
  return with_step(pieces, what, [&](const TracedStep& step) {
    auto* const move = started.storage().data_ptr().cast_context<PendingMove>(&drop_move);
    TORCH_INTERNAL_ASSERT(move, "[torch.compile] the compiler copied the result of shardwise::start_move: ", what);
    return as_foretold(step, move->finish(), pieces);
  });
}

TORCH_LIBRARY_FRAGMENT(shardwise, library) {
  // The tag keeps tracers from computing the result ahead of time as a constant.
  library.def("call(Tensor[] pieces, str what, Tensor? after=None) -> Tensor[]", {at::Tag::nondeterministic_seeded});
  library.def("start_move(Tensor[] pieces, str what, Tensor? after=None) -> Tensor",
              {at::Tag::nondeterministic_seeded});
  library.def("finish_move(Tensor started, Tensor[] pieces, str what) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(shardwise, CompositeExplicitAutograd, library) {
  library.impl("call", TORCH_FN(run_call));
  library.impl("start_move", TORCH_FN(run_start));
  library.impl("finish_move", TORCH_FN(run_finish));
}

/// Calls an operator of this library.
template <typename Signature, typename... Args>
auto call(const char* op, const Args&... args) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(op, "").typed<Signature>().call(args...);
}

}  // namespace

Shards add_step(const TracedStep& step, const Shards& pieces) {
  using Tensors = std::vector<at::Tensor>;
  const BelowAutograd guard;
  const std::string what = remember(step);
  const Shards operands = step.for_sizes ? pieces : without_symbols(pieces);
  const at::TensorList given(operands.data(), operands.size());
  const std::optional<at::Tensor> none;
  Tensors made;
  if (step.call) {
    made = call<Tensors(at::TensorList, std::string_view, const std::optional<at::Tensor>&)>("shardwise::call", given,
                                                                                             what, none);
    made.pop_back();
  } else {
    const auto started = call<at::Tensor(at::TensorList, std::string_view, const std::optional<at::Tensor>&)>(
        "shardwise::start_move", given, what, none);
    made = call<Tensors(const at::Tensor&, at::TensorList, std::string_view)>("shardwise::finish_move", started, given,
                                                                              what);
  }
  return Shards(made.begin(), made.end());
}

LeafHooks& leaf_hooks() {
  static LeafHooks hooks;
  return hooks;
}

const std::vector<SpecPtr>& results_of_step(const std::string& what) { return step_of(what).results; }

}  // namespace shardwise
