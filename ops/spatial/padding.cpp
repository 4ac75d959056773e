// ops/spatial/padding.cpp: padding with a constant, by reflection and by replication.
#include "ops/families.h"
#include "ops/support/common_rules.h"
#include "ops/support/plain_gradients.h"
#include "runtime/rules/propagate.h"

#include "placements/placement_list.h"

#include <algorithm>
#include <string>

namespace shardwise {
namespace {

/// Constant padding of one dim; negative padding crops. The first shard gets `before`, the last `after`.
struct Border {
  int64_t before = 0, after = 0, length = 0;

  bool is_none() const { return before == 0 && after == 0; }
  int64_t padded() const { return length + before + after; }
  /// The index in the result of a shard boundary that was at `index`.
  int64_t place_of(int64_t index) const {
    return index == 0 ? 0 : index == length ? padded() : std::clamp<int64_t>(index + before, 0, padded());
  }
  /// The interval of the result that a shard becomes. A dim of no elements becomes all padding.
  Interval image(Interval piece) const {
    return length == 0 ? Interval{0, padded()} : Interval{place_of(piece.begin), place_of(piece.end)};
  }
};

/// One border per dim; argument "pad" begins with the last dim.
std::vector<Border> borders_of(const OpCall& call) {
  const c10::IntArrayRef sizes = call.operands[0].sizes;
  const std::vector<int64_t> pads = call.arg("pad").toIntVector();
  std::vector<Border> borders = c10::fmap(sizes, [&](int64_t size) { return Border{0, 0, size}; });
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    Border& border = borders[sizes.size() - 1 - i];
    border.before = pads[2 * i];
    border.after = pads[2 * i + 1];
  }
  return borders;
}

/// A Partial sum may stay if the padding is zeros. A dim of extent 0 is not sharded: no shard would get its padding.
std::vector<Placement> placements_before(const OpCall& call, const std::vector<Border>& borders) {
  const bool is_linear_call = call.arg("value").toScalar().equal(0);
  const Spec& spec = *call.operands[0].spec;
  return replicated_where(spec.placements(), [&](const Placement& placement) {
    const int64_t dim = placement.split_dim();
    const bool has_edges = dim >= 0 ? borders[dim].length > 0 : !placement.places_boxes() || spec.numel() > 0;
    return !has_edges || (placement.terms() && !(is_linear_call && placement.is_linear()));
  });
}

std::vector<Placement> placements_after(Layout layout, const std::vector<Border>& borders) {
  Dims sizes(layout.sizes());
  for (int64_t dim = 0; dim < layout.dim(); ++dim) {
    const Border& border = borders[dim];
    if (border.is_none()) continue;
    auto placements = layout.resized(dim, [&](int64_t index) { return border.place_of(index); });
    sizes[dim] = border.padded();
    layout = Layout(sizes, layout.grid_ptr(), std::move(placements));
  }
  return layout.placements().vec();
}

std::optional<Propagation> place(const OpCall& call) {
  const std::vector<Border> borders = borders_of(call);
  const SpecPtr spec = call.operands[0].spec->with_placements(placements_before(call, borders));
  return placed(call, spec, placements_after(spec->layout(), borders));
}

/// The padding of this rank's shard.
void localize(const LocalCall& local, std::vector<c10::IValue>& args) {
  std::vector<int64_t> pads = local.call.arg("pad").toIntVector();
  const std::vector<Border> borders = borders_of(local.call);
  for (size_t i = 0; i < pads.size() / 2; ++i) {
    const size_t dim = borders.size() - 1 - i;
    const Interval piece = local.inputs[0].interval(static_cast<int64_t>(dim));
    const Interval image = borders[dim].image(piece);
    const bool has_nothing = image.length() == 0;
    pads[2 * i] = has_nothing ? 0 : piece.begin + borders[dim].before - image.begin;
    pads[2 * i + 1] = has_nothing ? -piece.length() : image.end - piece.end - borders[dim].before;
  }
  args[local.call.op.arg_index("pad")] = std::move(pads);
}

}  // namespace

void register_padding(RuleTable& table) {
  table.add("aten::constant_pad_nd", Rule::placed("constant padding", place).localized(localize).by_numbers());
  for (const char* kind : {"reflection", "replication"})
    for (size_t n : {1, 2, 3}) {
      const std::string op = std::string(kind) + "_pad" + std::to_string(n) + "d";
      const Rule rule = planes("planes", n).sampled();
      table.add("aten::" + op, rule.linear());
      table.add("aten::" + op + "_backward", rule.linear_in_first());
      lay_out_gradients(op + "_backward");
    }
}

}  // namespace shardwise
