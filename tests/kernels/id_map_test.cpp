// kernels/id_map.h against std::map: rows found, entered and taken out, at the fullest, and buckets of rows.
#include "kernels/id_map.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace shardwise::kernels {
namespace {

TEST(IdMapTest, FindsWhatAStdMapFindsAfterEveryStep) {
  for (const int64_t n_rows : {1, 2, 3, 7, 64, 300}) {
    std::vector<int64_t> ids(n_rows), slots(slots_for(n_rows), -1);
    const IdMap map{slots.data(), static_cast<int64_t>(slots.size()), ids.data()};
    std::map<int64_t, int64_t> expected;
    std::set<int64_t> free;
    for (int64_t row = 0; row < n_rows; ++row) free.insert(row);
    std::mt19937_64 random(n_rows);
    for (int step = 0; step < 4000; ++step) {
      // Of few ids, so that they come again; among them 0, -1 and the extremes.
      const auto pick = static_cast<int64_t>(random() % (2 * n_rows + 4));
      const int64_t id = pick == 0   ? std::numeric_limits<int64_t>::min()
                         : pick == 1 ? std::numeric_limits<int64_t>::max()
                                     : pick - 3;
      const auto known = expected.find(id);
      ASSERT_EQ(find(map, id), known == expected.end() ? -1 : known->second);
      if (known != expected.end() && random() % 2 == 0) {
        erase(map, known->second);
        free.insert(known->second);
        expected.erase(known);
      } else if (known == expected.end() && !free.empty()) {
        const int64_t row = *free.begin();
        free.erase(free.begin());
        ids[row] = id;
        expected[id] = row;
        insert(map, row);
      }
    }
    int64_t n_taken = 0;
    for (const int64_t slot : slots) n_taken += slot >= 0;
    EXPECT_EQ(n_taken, static_cast<int64_t>(expected.size()));
    for (const auto& [id, row] : expected) EXPECT_EQ(find(map, id), row);
  }
}

TEST(IdMapTest, EachIdComesOnceInTheOrderOfItsFirst) {
  std::mt19937_64 random(5);
  for (const int64_t n : {0, 1, 2, 9, 1000})
    for (const int64_t n_distinct : {1, 5, 4000}) {
      std::vector<int64_t> ids(n), slots(slots_for(n), -1), unique(n), place_of(n), counts(n);
      for (int64_t& id : ids) {
        const auto pick = static_cast<int64_t>(random() % n_distinct);
        id = pick == 0 ? std::numeric_limits<int64_t>::min() : pick == 1 ? -1 : pick * 0x9e3779b97f4a7c1;
      }
      const int64_t n_unique = unique_ids(ids.data(), n, slots.data(), unique.data(), place_of.data(), counts.data());
      std::map<int64_t, int64_t> expected;
      std::vector<int64_t> in_order;
      for (const int64_t id : ids)
        if (++expected[id] == 1) in_order.push_back(id);
      unique.resize(n_unique);
      EXPECT_EQ(unique, in_order);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(unique[place_of[i]], ids[i]);
      for (int64_t k = 0; k < n_unique; ++k) EXPECT_EQ(counts[k], expected[unique[k]]);
    }
}

TEST(IdMapTest, HalfOfTheSlotsAreTakenAtMost) {
  for (const int64_t n_rows : {0, 1, 2, 3, 4, 5, 1000, 1024}) {
    const int64_t n_slots = slots_for(n_rows);
    EXPECT_GE(n_slots, 2 * std::max<int64_t>(n_rows, 1));
    EXPECT_LT(n_slots, 4 * std::max<int64_t>(n_rows, 1));
    EXPECT_EQ(n_slots & (n_slots - 1), 0);
  }
}

TEST(IdMapTest, BucketsAreRunsOfRowsAndIdsSpreadEvenly) {
  for (const IdBuckets buckets : {IdBuckets{1, 1}, IdBuckets{7, 7}, IdBuckets{10, 4}, IdBuckets{1000, 37}}) {
    EXPECT_EQ(buckets.first_row(0), 0);
    EXPECT_EQ(buckets.first_row(buckets.n_buckets), buckets.n_rows);
    for (int64_t bucket = 0; bucket < buckets.n_buckets; ++bucket) {
      const int64_t length = buckets.first_row(bucket + 1) - buckets.first_row(bucket);
      EXPECT_TRUE(length == buckets.n_rows / buckets.n_buckets || length == buckets.n_rows / buckets.n_buckets + 1);
      for (int64_t row = buckets.first_row(bucket); row < buckets.first_row(bucket + 1); ++row)
        EXPECT_EQ(buckets.bucket_of_row(row), bucket);
    }
    std::vector<int64_t> n_ids(buckets.n_buckets);
    for (int64_t id = 0; id < 1000 * buckets.n_buckets; ++id) ++n_ids.at(buckets.bucket_of(id << 20));
    for (const int64_t n : n_ids) EXPECT_NEAR(n, 1000, 160);  // five standard deviations
  }
}

}  // namespace
}  // namespace shardwise::kernels
