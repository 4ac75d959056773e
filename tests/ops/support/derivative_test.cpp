// Our nodes in torch's graph: saved tensors are checked and freed as torch's own nodes do.
#include "ops/support/derivative.h"

#include "tests/support/layouts.h"
#include "tests/support/ranks.h"

#include <ATen/ATen.h>

namespace shardwise::derivative_test {
namespace {

const Placement kRows = Placement::shard(0), kReplicate = Placement::replicate();

/// Rows of a sharded table, by indices that the derivative saves.
struct Lookup {
  at::Tensor table, index, rows;

  Lookup() {
    const auto mesh = make_mesh({2});
    table = lay_out(at::rand({6, 3}), mesh, {kRows}).requires_grad_();
    index = lay_out(at::tensor({5, 0, 2}).unsqueeze(1), mesh, {kReplicate});
    rows = at::gather(table, 0, index);
  }
};

TEST(DerivativeTest, WritingToASavedTensorIsAnError) {
  expect_error("modified by an inplace operation", error_of_ranks(2, [](World&) {
                 Lookup lookup;
                 lookup.index.zero_();
                 lookup.rows.sum().backward();
               }));
}

TEST(DerivativeTest, ASecondBackwardNeedsRetainGraph) {
  run_ranks(2, [](World&) {
    Lookup lookup;
    lookup.rows.sum().backward({}, /*retain_graph=*/true);
    lookup.rows.sum().backward();
  });
  expect_error("Trying to backward through the graph a second time", error_of_ranks(2, [](World&) {
                 Lookup lookup;
                 lookup.rows.sum().backward();
                 lookup.rows.sum().backward();
               }));
}

TEST(DerivativeTest, TheBackwardFreesWhatIsSaved) {
  run_ranks(2, [](World&) {
    Lookup lookup;
    const c10::weak_intrusive_ptr<c10::TensorImpl> saved(lookup.index.getIntrusivePtr());
    lookup.index.reset();
    const at::Tensor loss = lookup.rows.sum();
    EXPECT_FALSE(saved.expired());
    loss.backward();
    EXPECT_TRUE(saved.expired());
  });
}

}  // namespace
}  // namespace shardwise::derivative_test
