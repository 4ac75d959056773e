// text/check.h: checks whose messages are formatted.
//
//   SW_CHECK_VALUE(dim < n, "[cat] dim {} is not in [0, {}). Give one of these.", dim, n);   // c10::ValueError
//
// The arguments of the message are evaluated only if the check fails.
#pragma once

#include <c10/util/Exception.h>

#include <fmt/format.h>

#define SW_CHECK(condition, ...) TORCH_CHECK(condition, fmt::format(__VA_ARGS__))
#define SW_CHECK_WITH(type, condition, ...) TORCH_CHECK_WITH(type, condition, fmt::format(__VA_ARGS__))
#define SW_CHECK_VALUE(condition, ...) TORCH_CHECK_VALUE(condition, fmt::format(__VA_ARGS__))
#define SW_CHECK_TYPE(condition, ...) TORCH_CHECK_TYPE(condition, fmt::format(__VA_ARGS__))
#define SW_CHECK_INDEX(condition, ...) TORCH_CHECK_INDEX(condition, fmt::format(__VA_ARGS__))
#define SW_CHECK_NOT_IMPLEMENTED(condition, ...) TORCH_CHECK_NOT_IMPLEMENTED(condition, fmt::format(__VA_ARGS__))
