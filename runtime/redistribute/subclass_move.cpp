#include "runtime/redistribute/subclass_move.h"

#include "runtime/comm/agreement.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/group_backend.h"
#include "runtime/comm/profiler_span.h"
#include "runtime/redistribute/moving.h"
#include "runtime/redistribute/packed_messages.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/subclass_parts.h"
#include "text/check.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <optional>

namespace shardwise {
namespace {

constexpr const char* kOp = "redistribute";

/// The box of a rank. Layouts in pieces were refused before.
Box box_of(const Spec& spec, int64_t rank) { return spec.layout().boxes(rank)[0]; }

/// A part on its way to another rank: its description and its inner tensors.
struct PackedPart {
  Flattened parts;
  Dims strides;

  std::vector<int64_t> words() const {
    Facts facts;
    facts.text(parts.recipe).list(strides);
    for (const at::Tensor& inner : parts.inner)
      facts.number(static_cast<int64_t>(inner.scalar_type())).list(inner.sizes()).list(inner.strides());
    return facts.words();
  }

  /// An empty part with this description, to receive into.
  static PackedPart of(std::vector<int64_t> words, c10::Device device) {
    const Facts facts = Facts::of_words(std::move(words));
    FactReader reader(facts);
    PackedPart part;
    part.parts.recipe = reader.text();
    part.strides = reader.list();
    while (!reader.at_end()) {
      const auto options = at::TensorOptions(static_cast<at::ScalarType>(reader.number())).device(device);
      const Dims sizes = reader.list(), strides = reader.list();
      part.parts.inner.push_back(at::empty_strided(sizes, dense_strides(sizes, strides), options));
    }
    return part;
  }
};

class SubclassMove {
 public:
  SubclassMove(const DTensorImpl& source, const Spec& to)
      : object_(source.local_tensors()[0]), device_(source.device()), from_(*source.spec()), to_(to) {}

  at::Tensor run() {
    const Group& group = *from_.mesh()->group();
    const auto has_its_own = [&](int64_t rank) { return holds(box_of(from_, rank), box_of(to_, rank)); };
    const auto keeps_all = [&](int64_t rank) { return box_of(from_, rank) == box_of(to_, rank); };
    if (std::ranges::all_of(group.ranks, keeps_all)) return copy_of(kOp, object_);
    if (std::ranges::all_of(group.ranks, has_its_own)) return own_part(group);
    check_comm_policy([&] { return fmt::format("moves {} to {}", to_string(from_), to_string(to_.layout())); });
    const auto leaving = packed_parts(group);
    return assembled(group, arrived(group, leaving, described(group, leaving)));
  }

 private:
  using PackedParts = std::vector<std::optional<PackedPart>>;  // by index in the group

  /// True if an object of box `held` contains `wanted`. Every object contains a part without elements.
  static bool holds(const Box& held, const Box& wanted) {
    for (size_t dim = 0; dim < wanted.sizes.size(); ++dim) {
      const Interval own = held.interval(dim), part = wanted.interval(dim);
      if (part.length() > 0 && (part.begin < own.begin || part.end > own.end)) return false;
    }
    return true;
  }

  /// This rank's part of its own object. If the class refuses on any rank, the first error is thrown on all ranks.
  at::Tensor own_part(const Group& group) const {
    const int64_t self = from_.mesh()->rank();
    at::Tensor part;
    const RankError error =
        RankError::of([&] { part = copy_of(kOp, part_of(kOp, object_, box_of(from_, self), box_of(to_, self))); });
    agree(group, kOp, Facts("a " + class_of(object_)), error);
    return part;
  }

  /// The part of `receiver`'s box that `sender` sends. A replica sends only to ranks with its own coordinates on the mesh dims that
  /// replicate. If the receiver's box is empty along a dim, the holder of the first index sends an empty part, of which the receiver makes
  /// its object.
  std::optional<Box> common(int64_t sender, int64_t receiver) const {
    const Dims at = *from_.layout().grid().coord_of(sender), there = *from_.layout().grid().coord_of(receiver);
    for (size_t m = 0; m < at.size(); ++m)
      if (from_.placements()[m].is_whole() && at[m] != there[m]) return std::nullopt;
    const Box held = box_of(from_, sender);
    Box wanted = box_of(to_, receiver);
    for (size_t dim = 0; dim < wanted.sizes.size(); ++dim) {
      const Interval own = held.interval(dim), part = wanted.interval(dim);
      const Interval both{std::max(own.begin, part.begin), std::min(own.end, part.end)};
      if (part.length() == 0 ? own.begin > 0 : both.length() <= 0) return std::nullopt;
      if (part.length() > 0) wanted.set_interval(dim, both);
    }
    return wanted;
  }

  /// This rank's parts for each rank, made by the class. If any rank has an error, the first error is thrown on all ranks.
  PackedParts packed_parts(const Group& group) {
    PackedParts result(group.size());
    const RankError error = RankError::of([&] {
      const Box held = box_of(from_, from_.mesh()->rank());
      for (int64_t i = 0; i < group.size(); ++i)
        if (const auto box = common(from_.mesh()->rank(), group.ranks[i]))
          result[i] = packed(part_of(kOp, object_, held, *box));
    });
    Facts own("a " + class_of(object_));
    for (const auto& part : result) own.number(part ? static_cast<int64_t>(part->words().size()) : 0);
    n_words_.assign(group.size(), 0);
    const auto all = agree(group, kOp, own, error);
    for (int64_t i = 0; i < group.size(); ++i) {
      FactReader reader(all[i]);
      for (int64_t j = 0; j <= group.index; ++j) n_words_[i] = reader.number();
    }
    return result;
  }

  PackedPart packed(const at::Tensor& part) const {
    try {
      return {flattened(part), Dims(part.strides())};
    } catch (const std::exception& refusal) {
      const std::string text = taken_error(refusal);
      SW_CHECK_NOT_IMPLEMENTED(
          false,
          "[{}] a {} cannot be sent to another rank: {}. Give the class __tensor_flatten__ and __tensor_unflatten__, "
          "which torch.compile also uses, or move the values before you wrap them.",
          kOp, class_of(part), text);
    }
  }

  std::vector<std::vector<int64_t>> described(const Group& group, const PackedParts& leaving) const {
    std::vector<std::vector<int64_t>> words;
    for (const auto& part : leaving) words.push_back(part ? part->words() : std::vector<int64_t>());
    return exchange_numbers(group, numbers_device(group), words, n_words_);
  }

  PackedParts arrived(const Group& group, const PackedParts& leaving, std::vector<std::vector<int64_t>> words) const {
    PackedParts arriving(group.size());
    PackedMessages messages(device_);
    for (int64_t i = 0; i < group.size(); ++i) {
      if (!words[i].empty()) arriving[i] = PackedPart::of(std::move(words[i]), device_);
      if (i == group.index) {
        for (size_t k = 0; arriving[i] && k < arriving[i]->parts.inner.size(); ++k)
          arriving[i]->parts.inner[k].copy_(leaving[i]->parts.inner[k]);
        continue;
      }
      if (leaving[i])
        for (const at::Tensor& inner : leaving[i]->parts.inner) messages.send(group.ranks[i], inner);
      if (arriving[i])
        for (const at::Tensor& inner : arriving[i]->parts.inner) messages.receive(group.ranks[i], inner);
    }
    messages.start(group);
    messages.finish();
    return arriving;
  }

  at::Tensor assembled(const Group& group, const PackedParts& arrived) const {
    Parts parts;
    for (int64_t i = 0; i < group.size(); ++i) {
      if (!arrived[i]) continue;
      const Box box = *common(group.ranks[i], from_.mesh()->rank());
      const auto is_same = [&](const auto& part) { return part.first == box; };
      if (std::ranges::any_of(parts, is_same)) continue;  // one empty object is enough
      parts.emplace_back(
          box, unflattened(object_, arrived[i]->parts, box.sizes, dense_strides(box.sizes, arrived[i]->strides)));
    }
    return joined(kOp, std::move(parts));
  }

  const at::Tensor& object_;
  c10::Device device_;
  const Spec& from_;
  const Spec& to_;
  std::vector<int64_t> n_words_;  // of the parts that this rank receives, by index in the group
};

void check_movable(const DTensorImpl& source, const Spec& to) {
  const Spec& from = *source.spec();
  const std::string name = class_of(source.local_tensors()[0]);
  SW_CHECK_NOT_IMPLEMENTED(from.mesh() == to.mesh(),
                           "[{}] a {} moves within its mesh only, not from {} to {}. Move the plain values, and wrap "
                           "them on the other mesh.",
                           kOp, name, to_string(*from.mesh()), to_string(*to.mesh()));
  for (const Spec* spec : {&from, &to}) check_placed(kOp, source.local_tensors()[0], spec->layout());
}

}  // namespace

Shards move_subclass(const DTensorImpl& source, const SpecPtr& to) {
  const BelowAutograd guard;
  check_movable(source, *to);
  const auto layouts = [&] { return move_words(*source.spec(), *to, {}); };
  const CommScope scope(CommScope::current_op(), CommScope::current_cause(), layouts);
  const ProfilerSpan span([&] { return fmt::format("shardwise::move {}", layouts()); });
  return {SubclassMove(source, *to).run()};
}

}  // namespace shardwise
