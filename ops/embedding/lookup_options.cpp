#include "ops/embedding/lookup_options.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <utility>

namespace shardwise {
namespace {

thread_local LookupOptions options_of_thread;

}  // namespace

LookupScope::LookupScope(LookupOptions options) : outer_(std::exchange(options_of_thread, std::move(options))) {}
LookupScope::~LookupScope() { options_of_thread = std::move(outer_); }
const LookupOptions& LookupScope::current() { return options_of_thread; }

LookupExchange to_lookup_exchange(const std::string& name) {
  if (name == "auto") return LookupExchange::kAuto;
  if (name == "reduce_scatter") return LookupExchange::kReduceScatter;
  if (name == "all_to_all") return LookupExchange::kAllToAll;
  TORCH_CHECK_VALUE(false,
                    fmt::format("[lookup_exchange] there is no exchange \"{}\". Use \"auto\", \"reduce_scatter\" "
                                "or \"all_to_all\".",
                                name));
}

}  // namespace shardwise
