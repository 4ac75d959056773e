#include "runtime/comm/backend_traits.h"

#include "runtime/comm/reduce_dtype.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace shardwise::backend_traits_test {
namespace {

class Unheard : public c10d::Backend {
 public:
  explicit Unheard(bool groups) : Backend(0, 2), groups_(groups) {}
  const std::string getBackendName() const override { return "unheard"; }
  bool supportsCoalescing() const override { return groups_; }

 private:
  bool groups_;
};

TEST(BackendTraitsTest, EveryKnownBackendReducesEveryForm) {
  for (const BackendTraits& backend : known_backends())
    for (const auto dtype : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kUInt16, at::kUInt32,
                             at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kFloat8_e4m3fn, at::kFloat8_e5m2,
                             at::kComplexHalf, at::kComplexFloat, at::kComplexDouble})
      for (const auto reduce : {Reduce::kSum, Reduce::kAvg, Reduce::kMax, Reduce::kMin, Reduce::kProduct}) {
        const at::Tensor tensor = at::ones({2}).to(dtype);
        try {
          check_reducible(tensor, reduce);
        } catch (const c10::TypeError&) {
          continue;
        }
        const ReduceForm form = to_reduce_form(tensor, reduce);
        EXPECT_TRUE(backend.reduces(form.op, form.tensor.scalar_type()))
            << backend.name << " " << to_string(reduce) << " of " << at::toString(dtype);
      }
}

TEST(BackendTraitsTest, NcclReducesNothingBitByBitAndAveragesNoIntegers) {
  const auto nccl = std::ranges::find(known_backends(), "nccl", &BackendTraits::name);
  using RedOp = BackendTraits::RedOp;
  EXPECT_TRUE(nccl->reduces(RedOp::AVG, at::kHalf));
  EXPECT_FALSE(nccl->reduces(RedOp::AVG, at::kLong));
  EXPECT_FALSE(nccl->reduces(RedOp::BXOR, at::kInt));
  EXPECT_FALSE(nccl->reduces(RedOp::SUM, at::kShort));
}

TEST(BackendTraitsTest, UnknownBackendsGroupWhereTheyCanAndReduceWhatAllDo) {
  for (const bool groups : {false, true}) {
    const BackendTraits traits = traits_of(*c10::make_intrusive<Unheard>(groups));
    EXPECT_FALSE(traits.connects_at_first_call);
    EXPECT_EQ(traits.groups_messages, groups);
    EXPECT_FALSE(traits.reduces(BackendTraits::RedOp::AVG, at::kFloat));
  }
}

}  // namespace
}  // namespace shardwise::backend_traits_test
