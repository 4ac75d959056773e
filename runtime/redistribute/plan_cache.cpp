#include "runtime/redistribute/plan_cache.h"

#include "plans/pattern.h"
#include "plans/traffic.h"
#include "runtime/tensor/unused_meshes.h"

#include <c10/util/hash.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace shardwise {
namespace {

SpecPtr spec_at(const Layout& layout, const SpecPtr& source, const SpecPtr& destination) {
  if (layout == destination->layout()) return destination;
  if (layout == source->layout()) return source;
  const Spec& there = layout.grid() == source->mesh()->grid() ? *source : *destination;
  return there.with_placements(layout.placements().vec());
}

/// The one of two meshes that contains the other, or null.
const DeviceMesh* containing(const DeviceMesh& from, const DeviceMesh& to) {
  if (has_all_ranks_of(from, to)) return &from;
  return has_all_ranks_of(to, from) ? &to : nullptr;
}

/// OwnStep::row_bytes of a step that sends: equal on all ranks. A rank may receive 16 KiB more for each message that it saves.
int64_t row_bytes(const OwnStep& own, int64_t element_bytes) {
  constexpr int64_t kBytesPerMessage = 16 << 10;
  const Step& step = own.step;
  const bool is_reduction = step.combines_terms();
  if (!own.among || !step.has_boxes() || (is_reduction && !step.from.has_one_box_each())) return 0;
  const std::vector<int64_t>& ranks = own.among->grid().ranks;
  const auto n_ranks = static_cast<int64_t>(is_reduction ? step.n_terms() : ranks.size());
  const int64_t n_rounds = std::bit_width(static_cast<uint64_t>(n_ranks - 1));
  const std::vector<int64_t> sampled = evenly_spaced(ranks, 8);
  int64_t n_messages = 0, most = 0;
  for (const int64_t rank : sampled) n_messages += traffic(step, element_bytes, {}, rank).n_messages;
  const int64_t spare = kBytesPerMessage * (n_messages / static_cast<int64_t>(sampled.size()) - 2 * n_rounds);
  const auto received = [&] { return most * (is_reduction ? n_rounds : n_ranks); };
  for (size_t i = 0; i < ranks.size() && received() <= spare; ++i) {
    int64_t n_elements = 0;
    for (const Box& box : step.from.boxes(ranks[i])) n_elements += box.numel();
    most = std::max(most, (n_elements * element_bytes + 15) / 16 * 16);
  }
  // A reduction takes a rank's part of the sum from its own term.
  const auto has_own_part = [&](int64_t rank) {
    return std::ranges::all_of(step.to.boxes(rank),
                               [&](const Box& box) { return step.from.boxes(rank)[0].contains(box); });
  };
  return received() <= spare && (!is_reduction || std::ranges::all_of(ranks, has_own_part)) ? most : 0;
}

std::shared_ptr<const OwnPlan> make(const SpecPtr& source, const SpecPtr& destination, const PlanOptions& options) {
  auto result = std::make_shared<OwnPlan>();
  const int64_t rank = source->mesh()->rank();
  Plan whole = plan(source->layout(), destination->layout(), source->element_bytes(), options);
  for (Step& step : whole.steps) {
    const bool is_here = step.from.grid().coord_of(rank) || step.to.grid().coord_of(rank);
    OwnStep own{std::move(step), {}, {}, {}, false, nullptr};
    own.from = spec_at(own.step.from, source, destination);
    own.to = spec_at(own.step.to, source, destination);
    own.among = containing(*own.from->mesh(), *own.to->mesh());
    own.is_local = !sends(own.step);
    if (!own.is_local && options.memory_cap == 0) own.row_bytes = row_bytes(own, source->element_bytes());
    if (own.step.has_boxes() && is_here) own.part = transfers(own.step, rank);
    if (!own.is_local) result->last_sending = static_cast<int>(result->steps.size());
    result->steps.push_back(std::move(own));
  }
  return result;
}

}  // namespace

size_t PlanCache::Hash::operator()(const Key& key) const {
  return c10::get_hash(key.source, key.destination, static_cast<int>(key.options.objective), key.options.memory_cap);
}

PlanCache& PlanCache::of_thread() {
  thread_local PlanCache cache;
  return cache;
}

std::shared_ptr<const OwnPlan> PlanCache::find_or_make(const SpecPtr& source, const SpecPtr& destination,
                                                       const PlanOptions& options) {
  const Key key{source.get(), destination.get(), options};
  if (const Entry* found = plans_.find(key)) {
    ++hits_;
    return found->plan;
  }
  ++misses_;
  auto made = make(source, destination, options);
  drop_unused([&](const UnusedMeshes& unused) {
    plans_.erase_if([&](const Entry& entry) { return unused.has(entry.source) || unused.has(entry.destination); });
  });
  plans_.insert(key, Entry{source, destination, made});
  return made;
}

std::string words_of(const PlanOptions& options) {
  std::string words;
  if (options.objective == PlanOptions::Objective::kTime) words += ", by time";
  for (const Link& link : options.links) words += fmt::format(", link {} us {} GB/s", link.latency_us, link.gb_per_s);
  if (options.memory_cap > 0) words += fmt::format(", memory cap {}", options.memory_cap);
  return words;
}

}  // namespace shardwise
