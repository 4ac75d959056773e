// main.cpp: one process, a mesh of one rank, a tensor there and back.
#include <shardwise/shardwise.h>

#include <iostream>

int main() {
  auto mesh = shardwise::DeviceMesh::create(shardwise::single_world(), c10::kCPU, {{1}, {0}});
  const at::Tensor table = at::arange(12, at::kFloat).reshape({4, 3});
  const at::Tensor sharded = shardwise::distribute_tensor(table, mesh, {shardwise::Placement::shard(0)});
  const bool same = at::equal(shardwise::full_tensor(sharded + sharded), table + table);
  std::cout << to_string(shardwise::spec_of(sharded)->layout()) << (same ? " equals" : " differs from") << " dense\n";
  return same ? 0 : 1;
}
