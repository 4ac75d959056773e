// ops/embedding/lookup_operators.h: torch's operators that look rows up, in a file each. They are registered when the library loads.
#pragma once

namespace shardwise {

class RuleTable;

void register_embedding(RuleTable& table);
void register_batched_embedding();
void register_embedding_bag();
void register_embedding_renorm();

/// Does nothing. A linker may leave out a library of which a program calls no function (--as-needed); a program that only calls torch's operators calls
/// this one.
bool load_lookups();

[[maybe_unused]] inline const bool lookups_are_loaded = load_lookups();

}  // namespace shardwise
