// Rows that a lookup holds in blocks and in caches, per rank, and how all ranks hear of those that do not fit.
#include "wrappers/distributed_embedding/held_rows.h"

#include "runtime/api/dtensor.h"
#include "tests/support/embedding_problem.h"

#include <ATen/ATen.h>

#include <filesystem>

namespace shardwise::held_rows_test {
namespace {

TableConfig table_of(const std::string& name, int64_t n_rows) {
  TableConfig config;
  config.name = name;
  config.n_rows = n_rows;
  config.n_columns = 4;
  return config;
}

/// Table "a" [10, 4] in files, rows [0, 7) on rank 0, none on rank 1, [7, 10) on rank 2; "b" [5, 4] in the memory of rank 1.
struct Tables {
  TableLanes lanes;
  TableMemory memory;
  size_t of_a, of_b;

  Tables(World& world, int64_t cache_rows)
      : lanes(TableLanes::of({table_of("a", 10), table_of("b", 5)},
                             {{Treatment::kRowParallel, {{0, 0, {0, 7}, {0, 4}}, {0, 2, {7, 10}, {0, 4}}}, ""},
                              {Treatment::kTableParallel, {{1, 1, {0, 5}, {0, 4}}}, ""}},
                             mesh_of(world),
                             {{0, {.folder = std::filesystem::temp_directory_path(), .cache_rows = cache_rows}}})),
        memory(lanes),
        of_a(lanes.lanes[0].stored ? 0 : 1),
        of_b(1 - of_a) {
    for (size_t lane : {of_a, of_b}) {
      const at::Tensor& block = memory.block(lane);
      block.copy_(at::arange(block.numel(), block.options()).view(block.sizes()));
    }
  }
  /// This rank's rows of a and b that are asked for, by row of its blocks.
  IncomingRows asked(std::vector<int64_t> a, std::vector<int64_t> b) const {
    IncomingRows incoming;
    incoming.rows.resize(2);
    incoming.rows[of_a] = at::tensor(a, at::kLong);
    incoming.rows[of_b] = at::tensor(b, at::kLong);
    return incoming;
  }
};

/// Sends and receives the notices.
void exchange_notices(HeldRows& held, const TableLanes& lanes) {
  std::vector<Message> sends, receives;
  held.add_notices(sends, receives);
  exchange(*lanes.mesh->group(), c10::Device(at::kCPU), std::move(sends), std::move(receives))->wait();
}

TEST(HeldRowsTest, RowsAreInBlocksOrInSlots) {
  for (const int64_t cache_rows : {3, 10})
    run_ranks(3, [&](World& world) {
      const Tables tables(world, cache_rows);
      const int64_t rank = world.rank();
      EXPECT_EQ(tables.memory.cache(tables.of_a) == nullptr, rank == 1) << "it has no rows of table a";
      EXPECT_EQ(tables.memory.cache(tables.of_b), nullptr);
      const std::vector<std::vector<int64_t>> of_a{{6, 0, 6}, {}, {2}}, of_b{{}, {4, 1}, {}};
      const IncomingRows incoming = tables.asked(of_a[rank], of_b[rank]);
      HeldRows held(tables.lanes, tables.memory, incoming);
      exchange_notices(held, tables.lanes);
      held.check();
      for (const size_t lane : {tables.of_a, tables.of_b}) {
        ASSERT_TRUE(held.has(lane));
        EXPECT_TRUE(held.block(lane)
                        .index_select(0, held.rows(lane))
                        .equal(tables.memory.block(lane).index_select(0, incoming.rows[lane])));
      }
      EXPECT_EQ(held.take_holds().size(), rank == 1 ? 0U : 1U);
    });
}

TEST(HeldRowsTest, AllRanksHearOfAShortage) {
  run_ranks(3, [](World& world) {
    const Tables tables(world, 2);
    const int64_t rank = world.rank();
    HeldRows before(tables.lanes, tables.memory,
                    tables.asked(rank == 0 ? std::vector<int64_t>{5} : std::vector<int64_t>{}, {}));
    {
      HeldRows held(tables.lanes, tables.memory,
                    tables.asked(rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{}, {}));
      EXPECT_EQ(held.has(tables.of_a), rank != 0);
      exchange_notices(held, tables.lanes);
      try {
        held.check();
        ADD_FAILURE() << "no error on rank " << rank;
      } catch (const c10::ValueError& error) {
        expect_error(
            "this lookup uses 2 distinct rows of table a on rank 0, in addition to 1 rows of lookups whose backward is "
            "not over",
            error.what_without_backtrace());
        expect_error(
            "but the cache has 2 rows. Set cache_rows of the table's storage to 3 or more (the table has 7 rows on "
            "this rank)",
            error.what_without_backtrace());
      }
    }
    before.take_holds().clear();  // afterwards they fit
    HeldRows held(tables.lanes, tables.memory,
                  tables.asked(rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{}, {}));
    exchange_notices(held, tables.lanes);
    held.check();
  });
}

TEST(HeldRowsTest, TablesInMemorySendNoNotices) {
  run_ranks(2, [](World& world) {
    const TableLanes lanes =
        TableLanes::of({table_of("b", 5)}, {{Treatment::kTableParallel, {{0, 1, {0, 5}, {0, 4}}}, ""}}, mesh_of(world));
    const TableMemory memory(lanes);
    IncomingRows incoming;
    incoming.rows.push_back(
        at::tensor(world.rank() == 1 ? std::vector<int64_t>{3} : std::vector<int64_t>{}, at::kLong));
    HeldRows held(lanes, memory, incoming);
    std::vector<Message> sends, receives;
    held.add_notices(sends, receives);
    EXPECT_TRUE(sends.empty() && receives.empty());
    held.check();
  });
}

}  // namespace
}  // namespace shardwise::held_rows_test
