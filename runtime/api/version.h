// runtime/api/version.h: the version of Shardwise.
#pragma once

#include <string_view>

namespace shardwise {

/// "0.2.0"; between releases "0.2.1.dev5+g1a2b3c4d5", 5 commits after 0.2.0.
std::string_view version();

/// The version of the torch whose headers the library was compiled with: "2.13.0". A torch of another minor version is incompatible.
std::string_view built_with_torch();

}  // namespace shardwise
