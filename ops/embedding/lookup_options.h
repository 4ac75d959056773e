// ops/embedding/lookup_options.h: how this thread's lookups in sharded tables communicate.
//
//   const LookupScope scope({.exchange = LookupExchange::kAllToAll});
//   at::embedding(table, ids);
#pragma once

#include "plans/plan.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardwise {

/// How rows of a sharded table get to the ranks that hold their ids. Bags of replicated ids are pooled first and stay Partial under
/// each of these.
enum class LookupExchange : uint8_t {
  kAuto,  // the faster of the two by `links`; for replicated ids, the second
  kReduceScatter,  // every rank gathers all ids; what the ranks find is reduced (columns: exchanged) to the shards of the ids. A result
                   // for replicated ids is reduced as any Partial is
  kAllToAll,  // ids go to the ranks that own their rows, each once, and the rows come back. A result for replicated ids is Partial,
              // too; where it moves, its rows are sent, each once
};

struct LookupOptions {
  LookupExchange exchange = LookupExchange::kAuto;
  /// On every rank, ids out of range are errors, and so are replicated ids that differ where rows are sent to them. Costs one pass over
  /// the ids and a few numbers in a message. Without it ids out of range give zeros and no gradient, and ranks whose ids differ may wait
  /// for each other forever.
  bool checks_ids = true;
  /// Link costs for kAuto, per mesh dim, as PlanOptions::links. The default link where it is empty.
  std::vector<Link> links = {};
};

/// This thread's options while it lives, and those of the threads on which autograd runs its backward, which looks up again under
/// activation checkpointing. They nest. A lookup's backward uses the options of its forward.
class LookupScope {
 public:
  /// Throws: c10::ValueError for links as in check_links().
  explicit LookupScope(LookupOptions options);

  static const LookupOptions& current();

 private:
  c10::DebugInfoGuard guard_;
};

/// "auto", "reduce_scatter", "all_to_all". Throws: c10::ValueError listing them for any other.
LookupExchange to_lookup_exchange(const std::string& name);

}  // namespace shardwise
