#include "runtime/tensor/tensor_memory.h"

#include <gtest/gtest.h>

namespace shardwise {
namespace {

TEST(TensorMemoryTest, AWriteCountsWhenItEnds) {
  const auto memory = c10::make_intrusive<TensorMemory>();
  {
    const MemoryWrite write(memory.get());
    EXPECT_EQ(memory->n_writes(), 0);
  }
  EXPECT_EQ(memory->n_writes(), 1);
  EXPECT_NO_THROW(MemoryWrite(nullptr));
}

TEST(TensorMemoryTest, ActionsAreCalledBeforeWritesWhileTheyAreKept) {
  const auto memory = c10::make_intrusive<TensorMemory>();
  int n_calls = 0;
  auto kept = memory->before_writes([&] { ++n_calls; });
  {
    const MemoryWrite write(memory.get());
    EXPECT_EQ(n_calls, 1);
  }
  kept.reset();
  {
    const MemoryWrite write(memory.get());
  }
  EXPECT_EQ(n_calls, 1);
}

}  // namespace
}  // namespace shardwise
