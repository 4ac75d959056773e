// runtime/api/version.h: which Shardwise this is.
#pragma once

#include <string_view>

namespace shardwise {

/// "0.2.0"; between releases "0.2.1.dev5+g1a2b3c4d5", 5 commits after 0.2.0.
std::string_view version();

/// The version of the torch whose headers the library was compiled with: "2.13.0". Those of another minor version do not fit it.
std::string_view built_with_torch();

}  // namespace shardwise
