// runtime/tensor/spec.h: everything that a rank knows about a distributed tensor except its values; interned. And this rank's pieces of it.
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <vector>

namespace shardwise {

class Spec;
using SpecPtr = c10::intrusive_ptr<Spec>;
using Placements = std::vector<Placement>;

/// Layout, mesh, global strides (elements) and dtype. Immutable and interned: equal specs are one object, so caches compare and hash
/// pointers. Freed with its last owner.
class Spec final : public torch::CustomClassHolder {
 public:
  /// The unique Spec with these values. A ragged layout, whose ranges are of row-major memory, gets row-major strides in place of
  /// `strides`. Cost: a hash and a lock. Throws: as Layout, and c10::ValueError if `strides` does not have one entry per dim.
  static SpecPtr intern(MeshPtr mesh, Layout layout, c10::IntArrayRef strides, c10::ScalarType dtype);
  static SpecPtr intern(MeshPtr mesh, c10::IntArrayRef sizes, std::vector<Placement> placements,
                        c10::IntArrayRef strides, c10::ScalarType dtype);

  const MeshPtr& mesh() const { return mesh_; }
  const Layout& layout() const { return layout_; }
  c10::ArrayRef<Placement> placements() const { return layout_.placements(); }
  c10::IntArrayRef sizes() const { return layout_.sizes(); }
  c10::IntArrayRef strides() const { return strides_; }
  int64_t dim() const { return layout_.dim(); }
  int64_t numel() const { return numel_; }
  c10::ScalarType dtype() const { return dtype_; }
  int64_t element_bytes() const;

  /// This rank's boxes: one, several, or none on a non-member.
  c10::ArrayRef<Box> boxes() const { return boxes_; }
  /// For a ragged layout: the sizes of the single tensor that this rank's pieces form. Null for other layouts, and on a non-member.
  const Dims* flat_sizes() const { return flat_sizes_ ? &*flat_sizes_ : nullptr; }
  bool is_member() const { return mesh_->is_member(); }

  /// The same tensor with other placements. Throws: as Layout.
  SpecPtr with_placements(std::vector<Placement> placements) const;
  /// The same tensor, with its strides even if it is expanded, for pieces that share the memory of this one's.
  SpecPtr placed_in_memory(std::vector<Placement> placements) const;
  /// The same tensor after every Partial has been reduced to replicas; this Spec if nothing is Partial.
  SpecPtr reduced() const;
  /// The same tensor replicated on every mesh dim.
  SpecPtr replicated() const;

  /// The same tensor with its pieces on meta, or on the device of its mesh; see DeviceMesh::on.
  SpecPtr on(c10::DeviceType device_type) const;

  void release_resources() override;  // the last owner calls it

 private:
  friend class SpecTable;
  Spec(MeshPtr mesh, Layout layout, c10::IntArrayRef strides, c10::ScalarType dtype);
  bool same(const DeviceMesh* mesh, const Layout& layout, c10::IntArrayRef strides, c10::ScalarType dtype) const;

  MeshPtr mesh_;
  Layout layout_;
  Dims strides_;
  c10::ScalarType dtype_;
  int64_t numel_;
  size_t hash_ = 0;
  std::vector<Box> boxes_;
  std::optional<Dims> flat_sizes_;
};

/// This rank's pieces, in the order of Spec::boxes(); none on a non-member.
using Shards = c10::SmallVector<at::Tensor, 1>;

/// Pieces still to arrive: a move whose last messages are in flight (its destructor waits for them), or terms that this rank computes from
/// local data at the first read.
class PendingMove {
 public:
  virtual ~PendingMove() = default;
  /// Waits for the pieces; starts no message. Call it once only. Throws: the backend's errors.
  virtual Shards finish() = 0;
};

/// Keeps each spec that any thread makes, until stop().
class MadeSpecs {
 public:
  /// Throws: c10::ValueError if another one is open.
  MadeSpecs();
  ~MadeSpecs() { stop(); }
  C10_DISABLE_COPY_AND_ASSIGN(MadeSpecs);

  /// Lets them go. A second call does nothing.
  void stop();
  std::vector<SpecPtr> specs() const;

 private:
  bool is_open_ = true;
};

/// Row-major strides (elements) of `sizes`.
Dims row_major_strides(c10::IntArrayRef sizes);

/// Dense strides of `sizes` with dims in the same order in memory as in `like`. A piece of a tensor with strides `like` has these strides.
/// Pre: same length.
Dims dense_strides(c10::IntArrayRef sizes, c10::IntArrayRef like);

/// "float32 [11, 5] as [Shard(0)] on (3)".
std::string to_string(const Spec& spec);

/// A spec as an IValue, for autograd functions to keep from forward to backward.
inline c10::IValue to_value(const SpecPtr& spec) { return c10::IValue::make_capsule(spec); }

/// The inverse of to_value. Pre: `value` is a result of to_value().
inline SpecPtr to_spec(const c10::IValue& value) {
  const auto held = value.toCapsule();
  return SpecPtr::reclaim_copy(static_cast<Spec*>(held.get()));
}

}  // namespace shardwise
