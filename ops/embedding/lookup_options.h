// ops/embedding/lookup_options.h: how this thread's lookups in cut tables go about it.
//
//   const LookupScope scope({.exchange = LookupExchange::kAllToAll});
//   at::embedding(table, ids);
#pragma once

#include <cstdint>
#include <string>

namespace shardwise {

/// How ranks that hold parts of the ids get rows of a table that is cut along the same mesh dims. Results lie where the ids do. Of ids that all
/// have, a Partial is left that costs nothing yet; kAllToAll, named, brings the rows to all ranks instead (but pools bags first).
enum class LookupExchange : uint8_t {
  kAuto,           // the faster one by the default link's latency and bandwidth: the other way round for few ids
  kReduceScatter,  // every rank gathers all ids, and what the ranks found is reduced (columns: exchanged) to where ids live
  kAllToAll,       // ids go to the ranks that own their rows, each once; the rows come back
};

struct LookupOptions {
  LookupExchange exchange = LookupExchange::kAuto;
  /// Ids out of range are errors on every rank. Costs a pass over the ids and, where ids are cut, two numbers in a message.
  /// Without it such ids give zeros and no gradient.
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
