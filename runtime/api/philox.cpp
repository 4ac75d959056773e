#include "runtime/api/philox.h"

#include <ATen/Dispatch_v2.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

namespace shardwise {
namespace {

template <class T>
constexpr Stored kStored = std::is_same_v<T, float>          ? Stored::kFloat
                           : std::is_same_v<T, double>       ? Stored::kDouble
                           : std::is_same_v<T, at::BFloat16> ? Stored::kBFloat16
                           : std::is_same_v<T, at::Half>     ? Stored::kHalf
                           : sizeof(T) == 1                  ? Stored::k8Bits
                           : sizeof(T) == 2                  ? Stored::k16Bits
                           : sizeof(T) == 4                  ? Stored::k32Bits
                                                             : Stored::k64Bits;

Stored stored_as(at::ScalarType dtype) {
  auto stored = Stored::kFloat;
  AT_DISPATCH_V2(dtype, "draw", AT_WRAP([&] { stored = kStored<scalar_t>; }), AT_EXPAND(AT_ALL_TYPES),
                 AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf, at::kBFloat16);
  return stored;
}

/// Fills `piece`, the part `box` of a tensor of `sizes`.
void fill_box(const at::Tensor& piece, c10::IntArrayRef sizes, const Box& box, uint64_t seed,
              const Distribution& distribution) {
  if (piece.is_complex()) {
    Dims pairs(sizes);
    Box of_pairs = box;
    pairs.push_back(2);
    of_pairs.offsets.push_back(0);
    of_pairs.sizes.push_back(2);
    return fill_box(at::view_as_real(piece), pairs, of_pairs, seed, distribution);
  }
  const bool in_place = piece.is_cpu() && piece.is_contiguous();
  const at::Tensor values = in_place ? piece : at::empty(box.sizes, piece.options().device(at::kCPU));
  Draw draw(distribution, seed, stored_as(piece.scalar_type()), values.mutable_data_ptr());
  each_run(sizes, box, [&](uint64_t first, int64_t /*place*/, int64_t length) { draw.add(first, length); });
  draw.finish();
  if (!in_place) piece.copy_(values);
}

}  // namespace

void fill_pieces(const DTensorImpl& tensor, uint64_t seed, const Distribution& distribution) {
  const Spec& spec = *tensor.spec();
  for (size_t i = 0; i < tensor.shards().size(); ++i)
    fill_box(tensor.shards()[i], spec.sizes(), spec.boxes()[i], seed, distribution);
}

}  // namespace shardwise
