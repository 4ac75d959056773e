#include "runtime/redistribute/move_many.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/redistribute/execute.h"
#include "runtime/redistribute/moving.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/traced_pieces.h"

#include <ATen/ops/cat.h>

#include <utility>

namespace shardwise {
namespace {

int64_t global_bytes(const OwnStep& own) { return own.from->numel() * own.from->element_bytes(); }

/// Removes from `rest` the first move and those that share messages with it: those for which `like` holds, up to `bucket_bytes` of global
/// tensors.
template <class Like>
std::vector<Moving*> take_bucket(std::vector<Moving*>& rest, int64_t bucket_bytes, const Like& like) {
  std::vector<Moving*> together, others;
  int64_t n_bytes = 0;
  for (Moving* moving : rest) {
    const bool fits = moving->device() == rest[0]->device() && like(*moving) &&
                      (together.empty() || n_bytes + global_bytes(moving->next()) <= bucket_bytes);
    (fits ? together : others).push_back(moving);
    if (fits) n_bytes += global_bytes(moving->next());
  }
  rest = std::move(others);
  return together;
}

/// Whether messages of the two groups can be shared. Meshes on meta have groups of their own, although their ranks are the same.
bool are_same(const GroupPtr& a, const GroupPtr& b) {
  return a == b || (a && b && !a->sends && !b->sends && a->ranks == b->ranks);
}

std::string words_of(const std::vector<Moving*>& movings) {
  std::string result;
  for (const Moving* moving : movings)
    result += move_words(*moving->next().from, *moving->next().to, moving->options()) + "; ";
  return result;
}

/// Runs the all-reduces that are the next steps of `movings`. Those of the same group, dtype and operation run together.
void reduce_together(std::vector<Moving*> rest, int64_t bucket_bytes) {
  while (!rest.empty()) {
    const OwnStep& first = rest[0]->next();
    const Reduce reduce = first.step.reduce;
    const GroupPtr group = rest[0]->reducing_group();
    const auto together = take_bucket(rest, bucket_bytes, [&](const Moving& moving) {
      return are_same(moving.reducing_group(), group) && moving.next().step.reduce == reduce &&
             moving.next().from->dtype() == first.from->dtype();
    });
    const auto layouts = [&] { return words_of(together); };
    const CommScope scope(CommScope::current_op(), CommScope::Cause::kProgram, layouts);  // the policy has been checked
    std::vector<at::Tensor> terms, results;
    for (Moving* moving : together)
      for (Terms& row : moving->begin_reduction()) {
        terms.push_back(std::move(row.terms));
        results.push_back(std::move(row.result));
      }
    if (terms.size() == 1) {
      all_reduce(*group, terms[0], results[0], reduce);
    } else {
      const at::Tensor all = at::cat(terms);
      all_reduce(*group, all, reduce);
      int64_t begin = 0;
      for (const at::Tensor& result : results) {
        result.copy_(all.narrow(0, begin, result.numel()));
        begin += result.numel();
      }
    }
    for (Moving* moving : together) moving->skip();
  }
}

/// Runs the next exchanges of `movings`, in order. Those of the same group and number of rounds run together.
void exchange_together(std::vector<Moving*> rest, int64_t bucket_bytes) {
  while (!rest.empty()) {
    const OwnStep& first = rest[0]->next();
    const Participants participants = participants_of(first);
    const c10::Device device = rest[0]->device();
    const auto together = take_bucket(rest, bucket_bytes, [&](const Moving& moving) {
      const OwnStep& own = moving.next();
      return own.is_local == first.is_local && are_same(participants_of(own).group, participants.group) &&
             own.step.n_rounds == first.step.n_rounds;
    });
    std::vector<ExchangeItem> items = c10::fmap(together, [&](const Moving* moving) { return moving->item(); });
    const auto layouts = [&] { return words_of(together); };
    const CommScope scope(CommScope::current_op(), CommScope::Cause::kProgram, layouts);  // the policy has been checked
    auto results = ExchangeRun(participants, std::move(items), device).run();
    for (size_t i = 0; i < together.size(); ++i) together[i]->arrive(std::move(results[i]));
  }
}

}  // namespace

std::vector<Shards> move_many(c10::ArrayRef<SpecPtr> sources, const std::vector<Shards>& shards,
                              c10::ArrayRef<SpecPtr> destinations, const PlanOptions& options, int64_t bucket_bytes) {
  for (size_t i = 0; i < sources.size(); ++i) check_move(sources[i], destinations[i]);
  BelowAutograd guard;
  std::vector<Shards> results(sources.size());
  std::vector<Moving> movings;
  std::vector<size_t> places;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (is_traced(shards[i])) {  // shares no messages
      results[i] = move(sources[i], shards[i], destinations[i], options);
      continue;
    }
    movings.emplace_back(sources[i], shards[i], destinations[i], options);
    places.push_back(i);
  }
  while (true) {
    std::vector<Moving*> reducing, exchanging;
    for (Moving& moving : movings) {
      while (!moving.is_done() && !takes_part(moving.next())) moving.skip();
      while (!moving.is_done() && moving.next().step.makes_terms()) moving.run_in_place();
      if (!moving.is_done()) (moving.next().step.has_boxes() ? exchanging : reducing).push_back(&moving);
    }
    if (reducing.empty() && exchanging.empty()) break;
    reduce_together(std::move(reducing), bucket_bytes);
    exchange_together(std::move(exchanging), bucket_bytes);
  }
  for (size_t i = 0; i < places.size(); ++i) results[places[i]] = movings[i].pieces();
  return results;
}

}  // namespace shardwise
