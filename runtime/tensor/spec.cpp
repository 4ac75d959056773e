#include "runtime/tensor/spec.h"

#include "placements/placement_list.h"
#include "runtime/tensor/unused_meshes.h"
#include "text/check.h"

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace shardwise {

/// All living specs by hash, as weak pointers. A Spec removes itself when it ends.
class SpecTable {
 public:
  static SpecTable& global() {
    static auto* table = new SpecTable;  // never destroyed: specs may outlive main
    return *table;
  }

  SpecPtr intern(MeshPtr mesh, Layout layout, c10::IntArrayRef strides, c10::ScalarType dtype) {
    size_t hash = c10::hash_combine(layout.hash(), c10::get_hash(mesh.get(), dtype));
    for (int64_t stride : strides) hash = c10::hash_combine(hash, static_cast<size_t>(stride));

    std::vector<SpecPtr> others;  // before the lock, which a spec that ends here takes
    std::lock_guard lock(mutex_);
    auto [begin, end] = specs_.equal_range(hash);
    for (auto it = begin; it != end; ++it)
      if (auto found = it->second.weak.lock()) {
        if (found->same(mesh.get(), layout, strides, dtype)) return found;
        others.push_back(std::move(found));
      }
    auto spec =
        c10::intrusive_ptr<Spec>::unsafe_steal_from_new(new Spec(std::move(mesh), std::move(layout), strides, dtype));
    spec->hash_ = hash;
    specs_.emplace(hash, Entry{spec.get(), c10::weak_intrusive_ptr<Spec>(spec)});
    if (keeps_) kept_.push_back(spec);
    return spec;
  }

  std::vector<SpecPtr> living() {
    std::vector<SpecPtr> specs;  // before the lock, which a spec that ends here takes
    std::lock_guard lock(mutex_);
    for (auto& [hash, entry] : specs_)
      if (auto spec = entry.weak.lock()) specs.push_back(std::move(spec));
    return specs;
  }

  /// From now on, keeps each spec that is made, or no more.
  void keep(bool keeps) {
    std::vector<SpecPtr> dropped;  // destroyed after the lock
    std::lock_guard lock(mutex_);
    keeps_ = keeps;
    if (!keeps) dropped.swap(kept_);
  }
  bool keeps() {
    std::lock_guard lock(mutex_);
    return keeps_;
  }
  std::vector<SpecPtr> kept() {
    std::lock_guard lock(mutex_);
    return kept_;
  }

  void erase(const Spec* spec, size_t hash) {
    std::optional<Entry> dying;  // destroyed after the lock
    std::lock_guard lock(mutex_);
    auto [begin, end] = specs_.equal_range(hash);
    for (auto it = begin; it != end; ++it)
      if (it->second.raw == spec) {
        dying = std::move(it->second);
        specs_.erase(it);
        return;
      }
  }

 private:
  struct Entry {
    const Spec* raw;
    c10::weak_intrusive_ptr<Spec> weak;
  };
  std::mutex mutex_;
  std::unordered_multimap<size_t, Entry> specs_;
  bool keeps_ = false;
  std::vector<SpecPtr> kept_;
};

MadeSpecs::MadeSpecs() {
  SW_CHECK_VALUE(!SpecTable::global().keeps(),
                 "[dry_run] layouts are being recorded already. End the other dry run first.");
  SpecTable::global().keep(true);
}

void MadeSpecs::stop() {
  if (std::exchange(is_open_, false)) SpecTable::global().keep(false);
}

std::vector<SpecPtr> MadeSpecs::specs() const { return SpecTable::global().kept(); }

Spec::Spec(MeshPtr mesh, Layout layout, c10::IntArrayRef strides, c10::ScalarType dtype)
    : mesh_(std::move(mesh)), layout_(std::move(layout)), strides_(strides), dtype_(dtype) {
  numel_ = std::accumulate(sizes().begin(), sizes().end(), int64_t{1}, std::multiplies<>());
  boxes_ = layout_.boxes(mesh_->rank());
  flat_sizes_ = layout_.flat_sizes(mesh_->rank());
}

std::vector<SpecPtr> living_specs() { return SpecTable::global().living(); }

void Spec::release_resources() {
  SpecTable::global().erase(this, hash_);
  mesh_.reset();  // weak pointers, which caches hold, do not keep it
}

bool Spec::same(const DeviceMesh* mesh, const Layout& layout, c10::IntArrayRef strides, c10::ScalarType dtype) const {
  return mesh_.get() == mesh && dtype_ == dtype && strides == strides_ && layout_ == layout;
}

SpecPtr Spec::intern(MeshPtr mesh, Layout layout, c10::IntArrayRef strides, c10::ScalarType dtype) {
  SW_CHECK_VALUE(strides.size() == layout.sizes().size(),
                 "[spec] stride has {} entries for a tensor of {} dims. Give one per dim.", strides.size(),
                 layout.sizes().size());
  const bool has_ranges = layout.has_joined_boxes() && !layout.joined_dim();
  const Dims row_major = has_ranges ? row_major_strides(layout.sizes()) : Dims();
  if (has_ranges) strides = row_major;
  return SpecTable::global().intern(std::move(mesh), std::move(layout), strides, dtype);
}

SpecPtr Spec::intern(MeshPtr mesh, c10::IntArrayRef sizes, std::vector<Placement> placements, c10::IntArrayRef strides,
                     c10::ScalarType dtype) {
  Layout layout(sizes, mesh->grid_ptr(), std::move(placements));
  return intern(std::move(mesh), std::move(layout), strides, dtype);
}

int64_t Spec::element_bytes() const { return static_cast<int64_t>(c10::elementSize(dtype_)); }

SpecPtr Spec::with_placements(std::vector<Placement> placements) const {
  const bool is_expanded = std::ranges::count(strides_, 0) > 0 && layout_.placements() != c10::ArrayRef(placements);
  return intern(mesh_, sizes(), std::move(placements), is_expanded ? dense_strides(sizes(), strides_) : strides_,
                dtype_);
}

SpecPtr Spec::placed_in_memory(std::vector<Placement> placements) const {
  return intern(mesh_, sizes(), std::move(placements), strides_, dtype_);
}

SpecPtr Spec::reduced() const {
  return layout_.has_terms() ? with_placements(without_partial(placements()))
                             : SpecPtr::reclaim_copy(const_cast<Spec*>(this));
}

SpecPtr Spec::replicated() const { return with_placements(std::vector<Placement>(placements().size())); }

SpecPtr Spec::on(c10::DeviceType device_type) const {
  return intern(mesh_->on(device_type), layout_, strides_, dtype_);
}

Dims row_major_strides(c10::IntArrayRef sizes) {
  Dims strides(sizes.size(), 1);
  for (auto i = static_cast<int64_t>(sizes.size()) - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<int64_t>(sizes[i + 1], 1);
  return strides;
}

/// Dims are ordered as at::TensorIterator orders its results' dims. A stride of 0 (an expanded dim) has no influence on the order.
Dims dense_strides(c10::IntArrayRef sizes, c10::IntArrayRef like) {
  Dims inner_first(sizes.size());
  std::iota(inner_first.rbegin(), inner_first.rend(), 0);
  const auto is_outside = [&](int64_t a, int64_t b) {
    return like[a] != 0 && like[b] != 0 && (like[a] > like[b] || (like[a] == like[b] && sizes[a] > sizes[b]));
  };
  const auto is_inside = [&](int64_t a, int64_t b) { return like[a] != 0 && like[b] != 0 && like[a] < like[b]; };
  for (size_t i = 1; i < sizes.size(); ++i) {
    size_t at = i;
    for (size_t other = i; other-- > 0 && !is_inside(inner_first[other], inner_first[at]);)
      if (is_outside(inner_first[other], inner_first[at])) {
        std::swap(inner_first[other], inner_first[at]);
        at = other;
      }
  }
  Dims strides(sizes.size(), 1);
  int64_t next = 1;
  for (const int64_t dim : inner_first) {
    strides[dim] = next;
    next *= std::max<int64_t>(sizes[dim], 1);
  }
  return strides;
}

std::string to_string(const Spec& spec) {
  return fmt::format("{} [{}] as {} on {}", c10::toString(spec.dtype()), fmt::join(spec.sizes(), ", "),
                     to_string(spec.placements()), to_string(*spec.mesh()));
}

}  // namespace shardwise
