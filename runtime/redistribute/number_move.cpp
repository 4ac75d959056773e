#include "runtime/redistribute/number_move.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_policy.h"
#include "runtime/comm/comm_scope.h"
#include "runtime/comm/tracing.h"
#include "runtime/redistribute/execute.h"
#include "runtime/tensor/below_autograd.h"
#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <sstream>

namespace shardwise {
namespace {

using NumberBytes = std::array<int64_t, 2>;  // room for the largest dtype, complex128

NumberBytes bytes_of_number(const at::Tensor& number) {
  if (number.is_meta()) return {};
  check_not_traced("redistribute of a number between meshes");
  const at::Tensor value = number.resolve_conj().resolve_neg().cpu();
  NumberBytes bytes{};
  std::memcpy(bytes.data(), value.const_data_ptr(), value.itemsize());
  return bytes;
}

at::Tensor number_of(const NumberBytes& bytes, const Spec& spec) {
  const at::Tensor value = at::empty({}, at::TensorOptions(spec.dtype()));
  std::memcpy(value.mutable_data_ptr(), bytes.data(), value.itemsize());
  return value.to(spec.mesh()->device());
}

std::string words(const NumberBytes& bytes, const Spec& spec) {
  std::ostringstream text;
  text << number_of(bytes, spec).item();
  return text.str();
}

/// The value that ranks of the group have in common; nothing if none has one.
std::optional<NumberBytes> common_value(const Group& group, const std::optional<NumberBytes>& own, const Spec& spec) {
  const NumberBytes given = own.value_or(NumberBytes{});
  const auto rows = all_gather_numbers(group, {own.has_value(), given[0], given[1]});
  std::optional<NumberBytes> value;
  int64_t of_rank = -1;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i][0]) continue;
    const NumberBytes bytes{rows[i][1], rows[i][2]};
    SW_CHECK_VALUE(!value || *value == bytes,
                   "[{}] a number is used with a tensor on the mesh {}, but ranks {} and {} of that mesh have "
                   "different values for it, {} and {}. Make them equal, or pass each rank's own value: number.item().",
                   CommScope::current_op(), to_string(*spec.mesh()), of_rank, group.ranks[i], words(*value, spec),
                   words(bytes, spec));
    if (!value) value = bytes, of_rank = group.ranks[i];
  }
  return value;
}

bool have_common_ranks(const DeviceMesh& a, const DeviceMesh& b) {
  return std::ranges::any_of(a.grid().ranks,
                             [&](int64_t rank) { return std::ranges::count(b.grid().ranks, rank) > 0; });
}

/// This rank's replica of the number on `destination`'s mesh.
Shards replica_on(const SpecPtr& source, const Shards& own, const SpecPtr& destination) {
  const DeviceMesh &from = *source->mesh(), &to = *destination->mesh();
  if (has_all_ranks_of(from, to)) return to.is_member() ? own : Shards{};
  check_comm_policy([&] { return fmt::format("takes a number from {} to {}", to_string(from), to_string(to)); });
  if (to.is_member() && to.size() > 1) {
    const auto known = from.is_member() ? std::optional(bytes_of_number(own[0]))
                       : to.is_meta() && have_common_ranks(from, to)
                           ? std::optional(NumberBytes{})  // other ranks' facts count as equal to this rank's
                           : std::nullopt;
    if (const auto value = common_value(*to.group(), known, *destination)) return {number_of(*value, *destination)};
  } else if (have_common_ranks(from, to)) {
    return {};
  }
  return move(source, own, destination);
}

}  // namespace

Shards move_number(const SpecPtr& source, const Shards& shards, const SpecPtr& destination) {
  const BelowAutograd guard;
  const SpecPtr alone = source->replicated(), replica = destination->replicated();
  return move(replica, replica_on(alone, move(source, shards, alone), replica), destination);
}

Shards move_operand(const DTensorImpl& operand, const SpecPtr& to) {
  const SpecPtr& spec = operand.spec();
  const bool is_number_elsewhere =
      spec->mesh() != to->mesh() && spec->dim() == 0 && spec->mesh()->is_meta() == to->mesh()->is_meta();
  return is_number_elsewhere ? move_number(spec, operand.shards(), to) : move(operand, to, {}, MoveMemory::kShared);
}

}  // namespace shardwise
