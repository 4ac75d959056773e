#include "ops/embedding/lookup_options.h"

#include "runtime/comm/propagated_value.h"
#include "text/check.h"

#include <c10/util/Exception.h>

#include <memory>
#include <utility>

namespace shardwise {
namespace {

using PropagatedOptions = PropagatedValue<LookupOptions, 1>;

std::shared_ptr<PropagatedOptions> carried(LookupOptions options) {
  check_links("lookup_exchange", options.links);
  return std::make_shared<PropagatedOptions>(std::move(options));
}

}  // namespace

LookupScope::LookupScope(LookupOptions options) : guard_(PropagatedOptions::kind(), carried(std::move(options))) {}

const LookupOptions& LookupScope::current() {
  static const LookupOptions kDefaults;
  return PropagatedOptions::current(kDefaults);
}

LookupExchange to_lookup_exchange(const std::string& name) {
  if (name == "auto") return LookupExchange::kAuto;
  if (name == "reduce_scatter") return LookupExchange::kReduceScatter;
  if (name == "all_to_all") return LookupExchange::kAllToAll;
  SW_CHECK_VALUE(
      false, "[lookup_exchange] exchange \"{}\" is unknown. Use \"auto\", \"reduce_scatter\" or \"all_to_all\".", name);
}

}  // namespace shardwise
