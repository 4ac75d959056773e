#include "runtime/redistribute/traced_move.h"

#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/plan_cache.h"
#include "runtime/tensor/device_mesh.h"
#include "text/check.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

std::mutex& moves_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

/// Never emptied, because a graph may run as long as the process lives.
std::unordered_map<std::string, TracedMove>& moves() {
  static auto* moves = new std::unordered_map<std::string, TracedMove>;
  return *moves;
}

/// Everything that a layout depends on. The hash covers layouts in pieces, whose text is cut.
std::string full_words(const Spec& spec) {
  const DeviceMesh& mesh = *spec.mesh();
  return fmt::format("{} strides [{}] ranks [{}] #{:x}", to_string(spec), fmt::join(spec.strides(), ","),
                     fmt::join(mesh.grid().ranks, ","), spec.layout().hash());
}

std::string words_of(const TracedMove& move) {
  return fmt::format("rank {} of {}: {} -> {}{}", move.source->mesh()->rank(), move.source->mesh()->world()->size(),
                     full_words(*move.source), full_words(*move.destination), words_of(move.options));
}

bool same(const TracedMove& a, const TracedMove& b) {
  return a.source == b.source && a.destination == b.destination && a.options == b.options;
}

/// Adds `move` to the table and returns its text. Meshes of an earlier world have the same text as today's, so a number is added to tell
/// them apart.
std::string remember(const TracedMove& move) {
  const std::string words = words_of(move);
  const std::lock_guard lock(moves_mutex());
  std::string text = words;
  for (int n = 2;; ++n) {
    const auto [entry, is_new] = moves().try_emplace(text, move);
    if (is_new || same(entry->second, move)) return text;
    text = fmt::format("{} ({})", words, n);
  }
}

/// The piece as the graph expects it: with the inferred strides, and in memory of its own.
at::Tensor as_foretold(const at::Tensor& piece, const Box& box, const Spec& spec, at::TensorList given) {
  const Dims strides = dense_strides(box.sizes, spec.strides());
  const bool is_given = std::ranges::any_of(given, [&](const at::Tensor& other) { return piece.is_alias_of(other); });
  if (!is_given && piece.strides() == c10::IntArrayRef(strides)) return piece;
  return at::empty_strided(box.sizes, strides, piece.options()).copy_(piece);
}

std::vector<at::Tensor> run_move(at::TensorList pieces, std::string_view what) {
  const TracedMove& traced = traced_move_of(std::string(what));
  const Shards moved = move(traced.source, Shards(pieces.begin(), pieces.end()), traced.destination, traced.options);
  const auto boxes = traced.destination->boxes();
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < boxes.size(); ++i)
    results.push_back(as_foretold(moved[i], boxes[i], *traced.destination, pieces));
  return results;
}

/// The tag keeps tracers from computing the result ahead of time as a constant.
TORCH_LIBRARY_FRAGMENT(shardwise, library) {
  library.def("move(Tensor[] pieces, str what) -> Tensor[]", {at::Tag::nondeterministic_seeded});
  library.impl("move", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(run_move)));
}

}  // namespace

Shards traced_move(const TracedMove& move, const Shards& pieces) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("shardwise::move", "")
                             .typed<std::vector<at::Tensor>(at::TensorList, std::string_view)>();
  const std::vector<at::Tensor> moved = op.call(at::TensorList(pieces.data(), pieces.size()), remember(move));
  return Shards(moved.begin(), moved.end());
}

const TracedMove& traced_move_of(const std::string& what) {
  const std::lock_guard lock(moves_mutex());
  const auto found = moves().find(what);
  SW_CHECK_VALUE(found != moves().end(),
                 "[move] a compiled graph asks for a move that this process has not traced: {}. Compile the program in "
                 "the process that runs it.",
                 what);
  return found->second;
}

}  // namespace shardwise
