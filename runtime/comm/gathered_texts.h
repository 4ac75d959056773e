// runtime/comm/gathered_texts.h: gathers a text from each rank of a group on one rank.
#pragma once

#include "runtime/comm/group.h"

#include <string>
#include <vector>

namespace shardwise {

/// Returns the members' texts, by group order, on the first member, and nothing on the others. Collective: each text is sent once.
std::vector<std::string> gathered_texts(const Group& group, const std::string& own);

}  // namespace shardwise
