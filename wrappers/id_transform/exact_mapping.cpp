#include "wrappers/id_transform/exact_mapping.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_scope.h"
#include "text/check.h"
#include "wrappers/id_transform/raw_ids.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

namespace shardwise {
namespace {

constexpr const char* kExactMapping = "ExactMapping";
constexpr int64_t kRowsPerBucket = 256;
constexpr int64_t kHeaderSize = 4;  // step, n_rows, n_buckets, default_row
constexpr size_t kVerdictSize = 3;  // reassigned rows, a bucket that is full, the ids there

ExactMappingOptions checked(ExactMappingOptions options, const DeviceMesh& mesh) {
  SW_CHECK_VALUE(mesh.ndim() == 1,
                 "[{}] the mesh {} has {} dims, but buckets are distributed over one. Give a 1-D mesh.", kExactMapping,
                 to_string(mesh), mesh.ndim());
  SW_CHECK_VALUE(mesh.device_type() == c10::DeviceType::CPU || mesh.is_meta(),
                 "[{}] the mesh {} is on {}, and the map lives in host memory. Give a mesh of the same ranks on cpu; "
                 "ids may be anywhere.",
                 kExactMapping, to_string(mesh), c10::DeviceTypeName(mesh.device_type(), true));
  SW_CHECK_VALUE(options.n_rows >= 2,
                 "[{}] n_rows is {}: one row is the default row, so no id would get one. Use 2 or more.", kExactMapping,
                 options.n_rows);
  if (options.n_buckets == 0) options.n_buckets = std::max<int64_t>(1, options.n_rows / kRowsPerBucket);
  const int64_t most = std::min<int64_t>(options.n_rows / 2, int64_t{1} << 31);
  SW_CHECK_VALUE(options.n_buckets > 0 && options.n_buckets <= most,
                 "[{}] n_buckets is {}: each bucket needs at least 2 of the {} rows. Use a number in [1, {}], or 0.",
                 kExactMapping, options.n_buckets, options.n_rows, most);
  SW_CHECK_VALUE(options.default_row >= 0 && options.default_row < options.n_rows,
                 "[{}] default_row is {} of a table of {} rows. Use one in [0, {}).", kExactMapping,
                 options.default_row, options.n_rows, options.n_rows);
  return options;
}

/// Splits buckets over the places in the mesh as evenly as possible. Returns the first bucket of each place.
std::vector<int64_t> deal(int64_t n_buckets, int64_t n_places) {
  std::vector<int64_t> first;
  for (int64_t place = 0; place <= n_places; ++place)
    first.push_back(place * (n_buckets / n_places) + std::min(place, n_buckets % n_places));
  return first;
}

IdOwners owners_of(const ExactMappingOptions& options, const DeviceMesh& mesh) {
  IdOwners owners{{options.n_rows, options.n_buckets}, deal(options.n_buckets, mesh.size()), {}};
  for (const int64_t rank : mesh.grid().ranks)
    owners.member_at.push_back(mesh.is_member() ? mesh.group()->index_of(rank) : 0);
  return owners;
}

Interval own_buckets(const IdOwners& owners, const DeviceMesh& mesh) {
  if (!mesh.is_member() || mesh.is_meta()) return {0, 0};  // on meta nothing is mapped
  const int64_t place = (*mesh.coord())[0];
  return {owners.first_bucket[place], owners.first_bucket[place + 1]};
}

/// Fills the reassigned rows that are in `box`. `piece`: the values of the box.
void fill_rows(const at::Tensor& piece, const Box& box, const std::vector<Reassigned>& reassigned,
               const RowFill& fill) {
  const Interval held = box.interval(0), columns = piece.dim() == 2 ? box.interval(1) : Interval{0, 1};
  std::vector<int64_t> rows, ids;
  for (const auto& [row, id] : reassigned) {
    if (row < held.begin || row >= held.end) continue;
    rows.push_back(row - held.begin);
    ids.push_back(id);
  }
  if (rows.empty() || piece.numel() == 0) return;
  const at::Tensor places = at::tensor(rows, at::kLong).to(piece.device());
  at::Tensor values = piece;
  if (fill.values == Fill::kConstant) {
    values.index_fill_(0, places, fill.scale);
  } else {
    const at::Tensor filled = filled_rows(ids, columns, fill, piece.options());
    values.index_copy_(0, places, piece.dim() == 1 ? filled.view({-1}) : filled);
  }
}

const at::Tensor& piece_of(const at::Tensor& state) { return maybe_dtensor(state)->shards()[0]; }

}  // namespace

ExactMapping::ExactMapping(const ExactMappingOptions& options, const MeshPtr& mesh)
    : options_(checked(options, *mesh)),
      mesh_(mesh),
      owners_(owners_of(options_, *mesh)),
      rows_(owners_.buckets, own_buckets(owners_, *mesh), options_.default_row) {}

Placements ExactMapping::placements() const {
  std::vector<int64_t> sizes;
  for (int64_t place = 0; place < mesh_->size(); ++place) sizes.push_back(owners_.rows_at(place).length());
  return Layout({options_.n_rows}, mesh_->grid_ptr(), {Placement::shard(0, sizes)}).placements().vec();
}

IdMappingState ExactMapping::new_state() const {
  const auto per_row = [&](int64_t value) { return full({options_.n_rows}, value, mesh_, placements(), at::kLong); };
  IdMappingState state{per_row(0), per_row(-1), per_row(0),
                       full({kHeaderSize}, 0, mesh_, {Placement::replicate()}, at::kLong)};
  if (mesh_->is_member() && !mesh_->is_meta()) {
    auto* header = piece_of(state.header).mutable_data_ptr<int64_t>();
    std::ranges::copy(std::initializer_list<int64_t>{0, options_.n_rows, options_.n_buckets, options_.default_row},
                      header);
  }
  return state;
}

IdRowState ExactMapping::own(const IdMappingState& state) {
  return {piece_of(state.ids), piece_of(state.last_used), piece_of(state.counts)};
}

void ExactMapping::refresh(const IdMappingState& state) {
  const auto* header = piece_of(state.header).const_data_ptr<int64_t>();
  const std::array<std::tuple<const char*, int64_t, int64_t>, 3> options{
      {{"n_rows", options_.n_rows, header[1]},
       {"n_buckets", options_.n_buckets, header[2]},
       {"default_row", options_.default_row, header[3]}}};
  for (const auto& [name, wanted, found] : options)
    SW_CHECK_VALUE(
        found == wanted,
        "[{}] the state was made for another {} ({}). Make the mapping with n_rows={}, n_buckets={}, default_row={}.",
        kExactMapping, name, found, header[1], header[2], header[3]);
  std::vector<uint64_t> versions;
  for (const at::Tensor* tensor : {&state.ids, &state.last_used})
    versions.insert(versions.end(),
                    {reinterpret_cast<uintptr_t>(piece_of(*tensor).const_data_ptr()),
                     static_cast<uint64_t>(tensor->_version()), static_cast<uint64_t>(piece_of(*tensor)._version())});
  if (versions == versions_) return;
  versions_.clear();
  const int64_t misplaced = rows_.read(own(state));
  SW_CHECK_VALUE(misplaced < 0,
                 "[{}] the state is corrupt: row {} of rank {} holds an id that belongs elsewhere or occurs twice. "
                 "Load a checkpoint of this kind of state.",
                 kExactMapping, misplaced, mesh_->rank());
  versions_ = std::move(versions);
}

void ExactMapping::check_layout(const IdMappingState& state) const {
  const auto check = [&](const at::Tensor& tensor, const char* name, const Dims& sizes, Placements placements) {
    const Layout wanted(sizes, mesh_->grid_ptr(), std::move(placements));
    SW_CHECK_VALUE(is_dtensor(tensor) && tensor.scalar_type() == at::kLong && spec_of(tensor)->mesh() == mesh_ &&
                       spec_of(tensor)->layout() == wanted,
                   "[{}] {} is not an int64 DTensor {} on {}. Load checkpoints into the module's own state, which has "
                   "the layout of this mesh.",
                   kExactMapping, name, to_string(wanted), to_string(*mesh_));
  };
  const Dims per_row{options_.n_rows};
  check(state.ids, "ids", per_row, placements());
  check(state.last_used, "last_used", per_row, placements());
  check(state.counts, "counts", per_row, placements());
  check(state.header, "header", {kHeaderSize}, {Placement::replicate()});
}

void ExactMapping::check_headers(const NumbersByMember& headers, const RankError& error) const {
  if (std::ranges::any_of(headers, [](const auto& header) { return header[0] != 0; }))
    agree(*mesh_->group(), kExactMapping, Facts(), error);
  const auto& ranks = mesh_->group()->ranks;
  for (size_t i = 0; i < headers.size(); ++i)
    SW_CHECK_VALUE(headers[i] == headers[0],
                   "[{}] rank {} is at step {} and {} ids, rank {} at step {} and {}: all ranks must call it together. "
                   "Put the module into the same mode on all ranks, and load the same state.",
                   kExactMapping, ranks[0], headers[0][1], headers[0][2] ? "assigns" : "only finds", ranks[i],
                   headers[i][1], headers[i][2] ? "assigns" : "only finds");
}

void ExactMapping::check_verdicts(const NumbersByMember& verdicts) const {
  const auto worst = std::ranges::max_element(verdicts, {}, [](const auto& verdict) { return verdict[2]; });
  const int64_t bucket = (*worst)[1], n_ids = (*worst)[2];
  SW_CHECK_VALUE(bucket < 0,
                 "[{}] a step has {} ids of bucket {}, which can hold {}. Use more rows (there are {}), fewer buckets "
                 "(there are {}), or smaller batches.",
                 kExactMapping, n_ids, bucket, rows_.capacity(bucket), options_.n_rows, options_.n_buckets);
}

at::Tensor ExactMapping::transform(const IdMappingState& state, const at::Tensor& ids, bool assigns) {
  SW_CHECK_VALUE(mesh_->is_member(), "[{}] rank {} is outside the mesh {}. Call it on members.", kExactMapping,
                 mesh_->rank(), to_string(*mesh_));
  if (is_dtensor(ids)) {
    check_not_partial(kExactMapping, ids);
    check_has_ranks(kExactMapping, *mesh_, *spec_of(ids)->mesh());
    check_has_ranks(kExactMapping, *spec_of(ids)->mesh(), *mesh_);
  }
  check_layout(state);
  const RankError error = RankError::of([&] {
    SW_CHECK_TYPE(is_integer(ids),
                  "[{}] ids of rank {} are {}: they must be integers of up to 64 bits. Convert them, or hash them.",
                  kExactMapping, mesh_->rank(), c10::toString(ids.scalar_type()));
    if (!mesh_->is_meta()) refresh(state);
  });
  const CommScope scope(kExactMapping, CommScope::Cause::kProgram);
  IdExchange exchange(*mesh_->group(), owners_, is_integer(ids) ? flat_ids(ids) : at::empty({0}, at::kLong));
  auto* header = mesh_->is_meta() ? nullptr : piece_of(state.header).mutable_data_ptr<int64_t>();
  check_headers(exchange.send_headers({static_cast<int64_t>(error.type), header ? header[0] : 0, assigns}), error);

  const IdUses uses = exchange.send_ids(assigns, counts_here(ids));
  if (mesh_->is_meta()) {
    exchange.send_rows(at::empty({uses.ids.numel()}, at::kLong), std::vector<int64_t>(assigns ? kVerdictSize : 0));
    return laid_out_as(ids, exchange.rows());
  }
  const IdRowState own = this->own(state);
  if (!assigns) {
    exchange.send_rows(rows_.find(own, uses.ids, options_.default_row), {});
    return laid_out_as(ids, exchange.rows());
  }
  IdAssignment assignment = rows_.assign(own, uses.ids);
  const at::Tensor rows = at::empty({uses.ids.numel()}, at::kLong);
  std::ranges::transform(assignment.rows, rows.mutable_data_ptr<int64_t>(),
                         [&](int64_t row) { return rows_.rows().begin + row; });
  const auto verdicts = exchange.send_rows(
      rows, {static_cast<int64_t>(assignment.reassigned.size()), assignment.full_bucket, assignment.n_ids_there});
  check_verdicts(verdicts);
  rows_.commit(own, uses, header[0], assignment);
  ++header[0];
  reassigned_ = std::move(assignment.reassigned);
  n_reassigned_of_.clear();
  for (const auto& verdict : verdicts) n_reassigned_of_.push_back(verdict[0]);
  n_reassigned_ = std::accumulate(n_reassigned_of_.begin(), n_reassigned_of_.end(), int64_t{0});
  everywhere_.reset();
  return laid_out_as(ids, exchange.rows());
}

bool ExactMapping::holds_own_rows(const Spec& spec) const {
  const auto& ranks = mesh_->grid().ranks;
  for (size_t place = 0; place < ranks.size(); ++place) {
    const Interval known = owners_.rows_at(static_cast<int64_t>(place));
    for (const Box& box : spec.layout().boxes(ranks[place])) {
      const Interval held = box.interval(0);
      if (held.length() > 0 && (held.begin < known.begin || held.end > known.end)) return false;
    }
  }
  return true;
}

const std::vector<Reassigned>& ExactMapping::reassigned_everywhere() {
  if (everywhere_) return *everywhere_;
  std::vector<int64_t> own, n_words;
  for (const Reassigned& each : reassigned_) own.insert(own.end(), {each.row, each.id});
  for (const int64_t n : n_reassigned_of_) n_words.push_back(2 * n);
  everywhere_.emplace();
  for (const auto& numbers :
       exchange_numbers(*mesh_->group(), at::kCPU, NumbersByMember(mesh_->group()->size(), own), n_words))
    for (size_t i = 0; i < numbers.size(); i += 2) everywhere_->push_back({numbers[i], numbers[i + 1]});
  return *everywhere_;
}

void ExactMapping::reset_rows(const at::Tensor& tensor, const RowFill& fill) {
  constexpr const char* kResetRows = "reset_rows";
  const Spec& spec = *spec_of(tensor);
  SW_CHECK_VALUE(tensor.dim() > 0 && tensor.size(0) == options_.n_rows,
                 "[{}] a tensor of shape [{}] does not have the mapping's {} rows. Give [{}, ...].", kResetRows,
                 fmt::join(tensor.sizes(), ", "), options_.n_rows, options_.n_rows);
  check_not_partial(kResetRows, tensor);
  check_has_ranks(kResetRows, *mesh_, *spec.mesh());
  SW_CHECK_VALUE(fill.values == Fill::kConstant || tensor.dim() <= 2,
                 "[{}] random numbers are drawn for rows of 1 dim, but the tensor has shape [{}]. Use a constant.",
                 kResetRows, fmt::join(tensor.sizes(), ", "));
  if (n_reassigned_ == 0) return;
  const MemoryWrite write = maybe_dtensor(tensor)->begin_write();
  const CommScope scope(kResetRows, CommScope::Cause::kProgram);
  const std::vector<Reassigned>& reassigned = holds_own_rows(spec) ? reassigned_ : reassigned_everywhere();
  const Shards& pieces = maybe_dtensor(tensor)->shards();
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < pieces.size(); ++i) fill_rows(pieces[i], spec.boxes()[i], reassigned, fill);
  tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace shardwise
