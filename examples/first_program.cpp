// A table of ten rows on four ranks, one of them without rows, and a lookup in it. No Python runs here.
//
//     $ torchrun --no-python --nproc-per-node 4 build/examples/first_program
//     [10, 3]
//     [Shard(0, sizes=[1, 4, 0, 5])]
//     [Partial(sum)]
//     [Shard(0, sizes=[1, 4, 0, 5])]
//     [10, 3] as [Shard(0, sizes=[1, 4, 0, 5])] on 4 ranks (0-3), 120 bytes
//          0                                                3
//        0 ┌────────────────────────────────────────────────┐
//          │                     rank 0                     │
//        1 ├────────────────────────────────────────────────┤
//          │                                                │
//          │                                                │
//          │                     rank 1                     │
//          │                                                │
//          │                                                │
//        5 ├────────────────────────────────────────────────┤
//          │                                                │
//          │                                                │
//          │                     rank 3                     │
//          │                                                │
//          │                                                │
//          │                                                │
//       10 └────────────────────────────────────────────────┘
//       rank  shape   offsets  bytes  share
//          0  [1, 3]  [0, 0]      12  10.0%
//          1  [4, 3]  [1, 0]      48  40.0%
//          2  [0, 3]  [5, 0]       0   0.0%
//          3  [5, 3]  [5, 0]      60  50.0%
//       imbalance 2.00: rank 3 holds 60 bytes, the mean is 30
//
// docs/start.md has the same program in Python.
#include <shardwise/shardwise.h>

#include <iostream>

namespace sw = shardwise;

int main() {
  const sw::Mesh mesh = sw::init_device_mesh("cpu", {4});  // starts this process, too
  const sw::DTensor table = sw::rand({10, 3}, mesh, {sw::Shard(0, {1, 4, 0, 5})}, torch::requires_grad());
  const sw::DTensor ids = sw::distribute_tensor(torch::tensor({7, 7, 2, 0}), mesh, {sw::Replicate()});
  const sw::DTensor rows(torch::embedding(table, ids));        // no row is sent yet
  const sw::DTensor mine = rows.redistribute({sw::Shard(0)});  // each rank receives the row of its one id
  mine.square().sum().backward();                              // each row's gradient goes back to its owner
  if (mesh.get_rank() == 0) {
    std::cout << table.sizes() << '\n' << to_string(table.placements()) << '\n' << to_string(rows.placements()) << '\n';
    std::cout << to_string(table.grad().placements()) << '\n';
    sw::visualize_sharding(table.grad());
  }
}
