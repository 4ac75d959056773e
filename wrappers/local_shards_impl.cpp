#include "wrappers/local_shards_impl.h"

#include "runtime/tensor/dtensor_impl.h"
#include "wrappers/local_shards_dispatch.h"

#include <atomic>
#include <set>

namespace shardwise {
namespace {

std::atomic<LocalShardsHook> local_shards_hook{nullptr};

Dims outer_sizes(c10::ArrayRef<Box> boxes, int64_t n_dims) {
  Dims sizes(n_dims, 0);
  for (int64_t dim = 0; dim < n_dims; ++dim) {
    std::set<std::pair<int64_t, int64_t>> ranges;
    for (const Box& box : boxes)
      if (ranges.emplace(box.interval(dim).begin, box.interval(dim).end).second) sizes[dim] += box.sizes[dim];
  }
  int64_t n_elements = 0;
  for (const Box& box : boxes) n_elements += box.numel();
  if (Box::whole(sizes).numel() == n_elements) return sizes;  // then the disjoint pieces are all cells of a grid
  Dims elements(n_dims, 1);
  elements[0] = n_elements;
  return elements;
}

}  // namespace

LocalShardsImpl::LocalShardsImpl(std::vector<at::Tensor> shards, std::vector<Dims> offsets, c10::IntArrayRef sizes,
                                 at::ScalarType dtype, c10::Device device)
    : TensorImpl(c10::DispatchKeySet({kLocalShardsKey, kAutogradLocalShardsKey}), c10::scalarTypeToTypeMeta(dtype),
                 device),
      shards_(std::move(shards)),
      offsets_(std::move(offsets)) {
  sizes_and_strides_.set_sizes(sizes);
  sizes_and_strides_.set_strides(row_major_strides(sizes));
  refresh_numel();
  refresh_contiguous();
}

const c10::Storage& LocalShardsImpl::storage() const { return shards_.empty() ? no_storage() : shards_[0].storage(); }

template <typename Version>
c10::intrusive_ptr<c10::TensorImpl> LocalShardsImpl::copy(Version&& version, bool allow_change) const {
  auto result = c10::make_intrusive<LocalShardsImpl>(shards_, offsets_, sizes_and_strides_.sizes_arrayref(),
                                                     c10::typeMetaToScalarType(dtype()), *device_opt_);
  copy_tensor_metadata(this, result.get(), std::forward<Version>(version), allow_change);
  return result;
}

c10::intrusive_ptr<c10::TensorImpl> LocalShardsImpl::shallow_copy_and_detach(const c10::VariableVersion& version,
                                                                             bool allow_change) const {
  return copy(version, allow_change);
}

c10::intrusive_ptr<c10::TensorImpl> LocalShardsImpl::shallow_copy_and_detach(c10::VariableVersion&& version,
                                                                             bool allow_change) const {
  return copy(std::move(version), allow_change);
}

void LocalShardsImpl::shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& impl) {
  TensorImpl::shallow_copy_from(impl);
  const auto* other = static_cast<LocalShardsImpl*>(impl.get());
  shards_ = other->shards_;
  offsets_ = other->offsets_;
}

void LocalShardsImpl::release_resources() {
  TensorImpl::release_resources();
  shards_.clear();
}

std::vector<Box> boxes_of_shards(const std::vector<at::Tensor>& shards, const std::vector<Dims>& offsets) {
  std::vector<Box> boxes;
  for (size_t i = 0; i < shards.size(); ++i) boxes.push_back({offsets[i], Dims(shards[i].sizes())});
  return boxes;
}

at::Tensor wrap_local_shards(std::vector<at::Tensor> shards, std::vector<Dims> offsets,
                             const at::TensorOptions& options, int64_t n_dims) {
  [[maybe_unused]] static const bool registered = (register_local_shards(), true);
  const Dims sizes = outer_sizes(boxes_of_shards(shards, offsets), shards.empty() ? n_dims : shards[0].dim());
  const at::TensorOptions own = shards.empty() ? options : shards[0].options();
  auto tensor = at::detail::make_tensor<LocalShardsImpl>(std::move(shards), std::move(offsets), sizes,
                                                         c10::typeMetaToScalarType(own.dtype()), own.device());
  if (const auto& pieces = maybe_local_shards(tensor)->shards(); pieces.size() == 1) share_version(tensor, pieces[0]);
  if (auto hook = local_shards_hook.load(std::memory_order_relaxed)) hook(tensor);
  return tensor;
}

void set_local_shards_hook(LocalShardsHook hook) { local_shards_hook = hook; }

}  // namespace shardwise
