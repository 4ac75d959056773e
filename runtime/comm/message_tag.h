// runtime/comm/message_tag.h: which tags of a backend's messages are those of exchange() (messages.h).
#pragma once

namespace shardwise {

/// The tags of exchange() are not less; the program's own messages in the same group use small ones.
constexpr int kFirstMessageTag = 1 << 30;

}  // namespace shardwise
