#include "wrappers/id_transform/raw_ids.h"

#include "text/check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

namespace shardwise {
namespace {

at::Tensor flat(const at::Tensor& ids) {
  if (ids.is_meta()) return at::arange(ids.numel(), at::kLong);
  return ids.detach().to(at::kCPU, at::kLong).reshape({-1}).contiguous();
}

}  // namespace

void check_has_ranks(const char* op, const DeviceMesh& mesh, const DeviceMesh& other) {
  SW_CHECK_VALUE(has_all_ranks_of(mesh, other),
                 "[{}] the tensor is on {}, but some of its ranks are not in the mapping's mesh {}. Use a tensor on "
                 "the mapping's ranks.",
                 op, to_string(other), to_string(mesh));
}

void check_not_partial(const char* op, const at::Tensor& tensor) {
  SW_CHECK_VALUE(!spec_of(tensor)->layout().has_terms(),
                 "[{}] the tensor is laid out as {}: it is Partial, so no rank has whole values. Reduce it first with "
                 "redistribute().",
                 op, to_string(spec_of(tensor)->placements()));
}

at::Tensor flat_ids(const at::Tensor& ids) {
  if (!is_dtensor(ids)) return flat(ids);
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& piece : maybe_dtensor(ids)->shards()) pieces.push_back(flat(piece));
  return pieces.size() == 1 ? pieces[0] : pieces.empty() ? at::empty({0}, at::kLong) : at::cat(pieces);
}

bool counts_here(const at::Tensor& ids) {
  if (!is_dtensor(ids)) return true;
  const Spec& spec = *spec_of(ids);
  return spec.is_member() && spec.layout().is_first_replica(*spec.mesh()->coord());
}

at::Tensor laid_out_as(const at::Tensor& ids, const at::Tensor& rows) {
  if (!is_dtensor(ids)) return rows.view(ids.sizes()).to(ids.device());
  const Spec& spec = *spec_of(ids);
  Shards pieces;
  int64_t begin = 0;
  for (const Box& box : spec.boxes()) {
    pieces.push_back(rows.narrow(0, begin, box.numel()).view(box.sizes).to(spec.mesh()->device()));
    begin += box.numel();
  }
  return wrap(Spec::intern(spec.mesh(), spec.layout(), row_major_strides(spec.sizes()), at::kLong), std::move(pieces));
}

}  // namespace shardwise
