// ops/embedding/lookup_options.h: how this thread's lookups in cut tables go about it.
//
//   const LookupScope scope({.exchange = LookupExchange::kAllToAll});
//   at::embedding(table, ids);
#pragma once

#include <cstdint>
#include <string>

namespace shardwise {

/// How rows of a table that is cut get to where their ids live. Bags of ids that all ranks have are a Partial whatever it is: they are
/// pooled first.
enum class LookupExchange : uint8_t {
  kAuto,  // the faster one by the default link's latency and bandwidth; columns of ids that all ranks have stay cut
  kReduceScatter,  // every rank gathers all ids, and what the ranks found is reduced (columns: exchanged) to where ids live.
                   // Of ids that all have a Partial is left, and nothing is sent until it is used
  kAllToAll,  // ids go to the ranks that own their rows, each once, and the rows come back. What all have need not go
};

struct LookupOptions {
  LookupExchange exchange = LookupExchange::kAuto;
  /// Ids out of range are errors on every rank, and so are replicated ones that differ where rows are brought to them. Costs a pass over
  /// the ids and some numbers in a message. Without it ids out of range give zeros and no gradient, and ranks whose ids differ may wait
  /// for each other for ever.
  bool checks_ids = true;
};

/// This thread's options while it lives. They nest. A lookup's backward goes by the options of its forward.
class LookupScope {
 public:
  explicit LookupScope(const LookupOptions& options);
  ~LookupScope();
  LookupScope(const LookupScope&) = delete;
  LookupScope& operator=(const LookupScope&) = delete;

  static const LookupOptions& current();

 private:
  LookupOptions outer_;
};

/// "auto", "reduce_scatter", "all_to_all". Throws: c10::ValueError listing them for any other.
LookupExchange to_lookup_exchange(const std::string& name);

}  // namespace shardwise
