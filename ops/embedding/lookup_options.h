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

/// How rows of a sharded table get to the ranks that hold their ids. Bags of replicated ids are pooled first and stay Partial under every option.
enum class LookupExchange : uint8_t {
  kAuto,           // the faster of the two by `links`
  kReduceScatter,  // every rank gathers all ids; the rows found are reduced (columns: exchanged) to the shards of the ids.
                   // A result for replicated ids is reduced as any Partial is
  kAllToAll,  // ids go to the ranks that own their rows, each once, and the rows come back. A result for replicated ids
              // is Partial, too; when it moves, each row is sent once
};

struct LookupOptions {
  LookupExchange exchange = LookupExchange::kAuto;
  /// If true, every rank throws for ids out of range, and for replicated ids that differ between ranks if rows are sent. Cost: one pass over the ids
  /// and a few numbers in a message. If false, ids out of range give zeros and no gradient, and ranks whose ids differ may wait for each other
  /// forever.
  bool checks_ids = true;
  /// Link costs for kAuto, per mesh dim, as PlanOptions::links. If empty, the default link.
  std::vector<Link> links = {};
};

/// Sets the options of this thread while the scope lives. They also apply on the threads on which autograd runs this thread's backward, because
/// activation checkpointing repeats lookups there. Scopes nest. A lookup's backward uses the options of its forward.
class LookupScope {
 public:
  /// Throws: c10::ValueError for links as in check_links().
  explicit LookupScope(LookupOptions options);

  static const LookupOptions& current();

 private:
  c10::DebugInfoGuard guard_;
};

/// "auto", "reduce_scatter", "all_to_all". Throws: c10::ValueError listing these names for any other.
LookupExchange to_lookup_exchange(const std::string& name);

}  // namespace shardwise
