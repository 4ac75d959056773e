#include "runtime/comm/digest.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace shardwise::digest_test {
namespace {

int64_t digest_of(const std::vector<std::string>& parts) {
  Digest digest;
  for (const std::string& part : parts) digest.add(part);
  return digest.value();
}

TEST(DigestTest, EqualBytesHaveEqualDigests) {
  EXPECT_EQ(digest_of({"some text", ""}), digest_of({std::string("some ") + "text", ""}));
}

TEST(DigestTest, OrderLengthsAndBordersCount) {
  const std::vector<std::vector<std::string>> different{{},
                                                        {""},
                                                        {"", ""},
                                                        {"ab", "c"},
                                                        {"a", "bc"},
                                                        {"abc"},
                                                        {"c", "ab"},
                                                        {std::string("abc\0", 4)},
                                                        {"12345678abcdefgh"},
                                                        {"abcdefgh12345678"},
                                                        {std::string(8, '\0')},
                                                        {std::string(16, '\0')}};
  std::set<int64_t> seen;
  for (const auto& parts : different) seen.insert(digest_of(parts));
  EXPECT_EQ(seen.size(), different.size());
}

TEST(DigestTest, EveryBitOfANumberCounts) {
  std::set<int64_t> seen;
  for (int bit = 0; bit < 64; ++bit) {
    Digest digest;
    digest.add(static_cast<int64_t>(uint64_t{1} << bit));
    seen.insert(digest.value());
  }
  EXPECT_EQ(seen.size(), 64U);
}

}  // namespace
}  // namespace shardwise::digest_test
