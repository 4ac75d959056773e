// tests/support/lookups.h: lookups in tables against dense ones, by every exchange.
#pragma once

#include "ops/embedding/lookup_options.h"
#include "tests/support/dense.h"

#include <fmt/format.h>

namespace shardwise {

inline constexpr LookupExchange kExchanges[] = {LookupExchange::kAuto, LookupExchange::kReduceScatter,
                                                LookupExchange::kAllToAll};

/// Ids laid out as `numbers`.
inline at::Tensor ids_in(const at::Tensor& numbers, int64_t n_rows) {
  return (numbers.detach() * 16).to(at::kLong).remainder(n_rows);
}

/// expect_same_as_dense() by each exchange.
inline void expect_dense_lookups(const std::string& name, const std::function<at::Tensor(const Tensors&)>& look_up,
                                 const std::vector<Dims>& sizes, const DenseOptions& options = {}) {
  for (const LookupExchange exchange : kExchanges)
    expect_same_as_dense(
        fmt::format("{} by exchange {}", name, static_cast<int>(exchange)),
        [&](const Tensors& t) {
          const LookupScope scope({.exchange = exchange});
          return look_up(t);
        },
        sizes, options);
}

}  // namespace shardwise
