// wrappers/local_shards_convert.cpp: from a wrapper to a distributed tensor and back.
#include "text/check.h"
#include "wrappers/infer_layout.h"
#include "wrappers/local_shards_wrapper.h"

#include "placements/placement_list.h"
#include "runtime/api/gradients.h"
#include "runtime/api/local_form.h"
#include "runtime/api/local_pieces.h"
#include "runtime/tensor/autograd_node.h"
#include "runtime/tensor/dtensor_impl.h"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shardwise {
namespace {

using torch::autograd::variable_list;

class ShardsForm final : public LocalForm {
 public:
  explicit ShardsForm(bool has_pieces) : has_pieces_(has_pieces) {}

  std::string name() const override { return has_pieces_ ? "pieces" : "no pieces"; }
  at::Tensor to_local(const at::Tensor& dtensor, const std::optional<Placements>& grad_placements) const override;
  /// The wrapper over the pieces of a distributed tensor, below autograd. Writes to it count as writes to the tensor.
  at::Tensor over(const at::Tensor& dtensor) const;

 private:
  bool has_pieces_;
};

/// The forms of a tensor made from a wrapper with pieces and from one without; in the latter case this rank may still hold an empty shard.
const ShardsForm kPieces(true), kNoPieces(false);

at::Tensor wrap_pieces(const SpecPtr& spec, Shards shards, const LocalForm& form) {
  at::Tensor tensor = wrap(spec, std::move(shards));
  keep_local_form(tensor, &form);
  return tensor;
}

/// The wrapper's pieces as shards of `spec`. A wrapper without pieces gives empty shards.
Shards pieces_of(const at::Tensor& wrapper, const Spec& spec) {
  const auto& shards = maybe_local_shards(wrapper)->shards();
  Shards pieces(shards.begin(), shards.end());
  const auto options = at::TensorOptions().dtype(spec.dtype()).device(spec.mesh()->device());
  if (shards.empty())
    for (const Box& box : spec.boxes()) pieces.push_back(at::empty(box.sizes, options));
  return pieces;
}

at::Tensor ShardsForm::over(const at::Tensor& dtensor) const {
  const DTensorImpl& tensor = *maybe_dtensor(dtensor);
  const Spec& spec = *tensor.spec();
  const Shards& pieces = shards_read_by(tensor, "to_local");
  std::vector<at::Tensor> shards;
  std::vector<Dims> offsets;
  if (has_pieces_)
    for (const at::Tensor& piece : pieces) shards.push_back(detached(piece, tensor));
  for (size_t i = 0; i < shards.size(); ++i) offsets.push_back(spec.boxes()[i].offsets);
  const auto options = at::TensorOptions().dtype(spec.dtype()).device(tensor.device());
  at::Tensor wrapper = make_local_shards(std::move(shards), std::move(offsets), options, spec.dim());
  if (!tensor.view_link()) share_version(wrapper, dtensor);
  return wrapper;
}

/// The derivative of a conversion in one direction is the conversion in the other.
struct ConversionBackward final : torch::autograd::Node {
  SpecPtr grad_spec;
  const ShardsForm* form = nullptr;
  bool was_to_local = false;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return {at::Tensor()};
    return {was_to_local ? wrap_pieces(grad_spec, pieces_of(grads[0], *grad_spec), *form)
                         : form->over(redistribute(grads[0], grad_spec->mesh(), grad_spec->placements().vec()))};
  }
  std::string name() const override { return was_to_local ? "ToShardsBackward" : "FromShardsBackward"; }
};

/// Records that `result` was converted from `source`, if autograd records.
void record_conversion(const at::Tensor& source, const at::Tensor& result, const ShardsForm& form, const SpecPtr& spec,
                       const std::optional<Placements>& grad_placements, bool to_local) {
  SW_CHECK_NOT_IMPLEMENTED(!source._fw_grad(0).defined(),
                           "[LocalShardsWrapper] its conversions have no forward mode. Use reverse mode: backward().");
  if (!records(source)) return;
  auto node = make_node<ConversionBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(source));
  // The layout of gradients: the wanted one, by default the tensor's own, with Replicate in place of Partial.
  node->grad_spec = spec->with_placements(without_partial(grad_placements ? *grad_placements : spec->placements()));
  node->form = &form;
  node->was_to_local = to_local;
  torch::autograd::set_history(result, node);
}

at::Tensor ShardsForm::to_local(const at::Tensor& dtensor, const std::optional<Placements>& grad_placements) const {
  if (const at::Tensor& given = maybe_dtensor(dtensor)->given(); given.defined() && !records(dtensor)) return given;
  at::Tensor wrapper = over(dtensor);
  record_conversion(dtensor, wrapper, *this, spec_of(dtensor), grad_placements, /*to_local=*/true);
  return wrapper;
}

RankPieces pieces_here(const at::Tensor& wrapper, const DeviceMesh& mesh, const FromLocalOptions& options) {
  const auto* impl = maybe_local_shards(wrapper);
  RankPieces pieces{mesh.rank(), wrapper.scalar_type(), wrapper.device().type(), options.shape, options.stride, {}, {}};
  pieces.boxes = boxes_of_shards(impl->shards(), impl->offsets());
  if (!impl->shards().empty()) pieces.piece_strides = Dims(impl->shards()[0].strides());
  return pieces;
}

/// The spec, if the arguments determine it without an exchange; else null.
SpecPtr given_spec(const at::Tensor& wrapper, const MeshPtr& mesh, const Placements& placements,
                   const FromLocalOptions& options) {
  if (!options.shape || !are_exact(placements) || (options.run_check && mesh->is_member())) return nullptr;
  const auto& shards = maybe_local_shards(wrapper)->shards();
  const Dims strides = options.stride                         ? *options.stride
                       : mesh->is_member() && !shards.empty() ? dense_strides(*options.shape, shards[0].strides())
                                                              : row_major_strides(*options.shape);
  return Spec::intern(mesh->on(wrapper.device().type()), *options.shape, placements, strides, wrapper.scalar_type());
}

/// Compares offsets, sizes and device.
void check_pieces_here(const at::Tensor& wrapper, const Spec& spec) {
  if (!spec.is_member()) return;
  const auto* impl = maybe_local_shards(wrapper);
  const std::vector<Box> given = boxes_of_shards(impl->shards(), impl->offsets());
  SW_CHECK_VALUE(
      c10::ArrayRef<Box>(given) == spec.boxes() || (given.empty() && std::ranges::all_of(spec.boxes(), &Box::empty)),
      "[from_local] rank {} gives {}, but {} of shape [{}] places {} there. Correct the pieces' offsets, or the "
      "placements.",
      spec.mesh()->rank(), list_of(given), to_string(spec.placements()), fmt::join(spec.sizes(), ", "),
      list_of(spec.boxes()));
  const Shards pieces = pieces_of(wrapper, spec);
  check_pieces({pieces.begin(), pieces.end()}, spec);
}

/// On meta, where this rank's pieces alone are known: `placements` with lengths_around() its piece. Without shape=, all ranks have as much.
SpecPtr planned_spec(const RankPieces& mine, const MeshPtr& mesh, const Placements& placements,
                     const at::Tensor& wrapper) {
  SW_CHECK_VALUE(mine.shape || mine.boxes.size() == 1,
                 "[from_local] rank {} gives {}, and on meta nothing is known of the others' pieces. Give shape= and "
                 "exact placements: Shard(dim, sizes=[...]) or EnumerableShard.",
                 mine.rank, list_of(mine.boxes));
  Dims shape = mine.shape.value_or(mine.boxes[0].sizes);
  Placements exact = placements;
  for (int64_t m = 0; m < mesh->ndim(); ++m) {
    const int64_t dim = placements[m].split_dim(), n = mesh->size(m), place = (*mesh->coord())[m];
    if (dim < 0 || !placements[m].sizes().empty()) continue;
    if (!mine.shape) shape[dim] = mine.boxes[0].offsets[dim] + (n - place) * mine.boxes[0].sizes[dim];
    const Interval own = mine.boxes.empty() ? planned_interval(shape[dim], n, place, 0) : mine.boxes[0].interval(dim);
    exact[m] = placements[m].with_sizes(lengths_around(own, shape[dim], n, place));
  }
  const Dims strides = mine.stride          ? *mine.stride
                       : mine.boxes.empty() ? row_major_strides(shape)
                                            : dense_strides(shape, mine.piece_strides);
  SpecPtr spec = Spec::intern(mesh, shape, exact, strides, mine.dtype);
  check_pieces_here(wrapper, *spec);
  return spec;
}

SpecPtr inferred_spec(const std::vector<RankPieces>& all, const MeshPtr& mesh, const Placements& placements) {
  const auto holder = std::ranges::find_if(all, [](const RankPieces& each) { return !each.boxes.empty(); });
  const MeshPtr on = holder == all.end() ? mesh : mesh->on(holder->device_type);
  InferredLayout inferred = infer_layout(all, on->grid_ptr(), placements, on->device_type());
  return Spec::intern(on, std::move(inferred.layout), inferred.strides, inferred.dtype);
}

/// The wrapper, or one of the same pieces without memory.
at::Tensor on_meta(const at::Tensor& wrapper) {
  if (wrapper.is_meta()) return wrapper;
  std::vector<at::Tensor> shards = local_shards(wrapper);
  for (at::Tensor& shard : shards) shard = shard.to(at::kMeta);
  return make_local_shards(std::move(shards), local_offsets(wrapper), wrapper.options().device(at::kMeta),
                           wrapper.dim());
}

SpecPtr spec_here(const at::Tensor& wrapper, const MeshPtr& mesh, const Placements& placements,
                  const FromLocalOptions& options) {
  SW_CHECK_VALUE(
      mesh->is_member() || options.shape,
      "[from_local] rank {} is outside the mesh {} and cannot know the tensor's shape. Give shape= (and stride=).",
      mesh->rank(), to_string(*mesh));
  if (SpecPtr given = given_spec(wrapper, mesh, placements, options)) {
    check_pieces_here(wrapper, *given);
    return given;
  }
  const bool has_readers = options.shape && !are_exact(placements);  // on ranks outside the mesh
  const std::string topic = has_readers
                                ? fmt::format("{}/{}/{}", fmt::join(*options.shape, ","),
                                              options.stride ? fmt::format("{}", fmt::join(*options.stride, ",")) : "?",
                                              to_string(placements))
                                : "";
  const RankPieces mine = pieces_here(wrapper, *mesh, options);
  const std::vector<RankPieces> all = gather_pieces(mine, *mesh, topic);
  return mesh->is_meta() && mesh->is_member() ? planned_spec(mine, mesh, placements, wrapper)
                                              : inferred_spec(all, mesh, placements);
}

/// The first dim in which a piece is shorter than the tensor; 0 if none is. Pre: shapes are set.
int64_t sharded_dim(const std::vector<RankPieces>& all) {
  const Dims& shape = *all[0].shape;
  for (size_t dim = 0; dim < shape.size(); ++dim)
    for (const RankPieces& each : all)
      for (const Box& box : each.boxes)
        if (box.sizes.size() == shape.size() && box.sizes[dim] < shape[dim]) return static_cast<int64_t>(dim);
  return 0;
}

[[maybe_unused]] const bool is_set = [] {
  set_local_class(*new LocalClass{&is_local_shards, &from_local_shards, {&kPieces, &kNoPieces}, &kPieces});
  return true;
}();

}  // namespace

at::Tensor from_local_shards(const at::Tensor& given, const MeshPtr& mesh, Placements placements,
                             const FromLocalOptions& options) {
  const at::Tensor wrapper = mesh->is_meta() ? on_meta(given) : given;
  const size_t n_pieces = local_offsets(wrapper).size();
  const SpecPtr spec = spec_here(wrapper, mesh, placements, options);
  if (!mesh->is_member()) return wrap_pieces(spec, {}, kNoPieces);
  const ShardsForm& form = n_pieces > 0 ? kPieces : kNoPieces;
  const at::Tensor tensor = wrap_pieces(spec, pieces_of(wrapper, *spec), form);
  record_conversion(wrapper, tensor, form, spec, options.grad_placements, /*to_local=*/false);
  share_version(tensor, wrapper);
  // The wrapper of a rank without pieces may have another dtype than the tensor.
  if (!wrapper.requires_grad() && wrapper.scalar_type() == spec->dtype()) maybe_dtensor(tensor)->set_given(wrapper);
  return tensor;
}

at::Tensor from_known_shards(const at::Tensor& wrapper, const MeshPtr& mesh, const std::vector<RankPieces>& all) {
  const Placements along(mesh->ndim(), Placement::shard(sharded_dim(all)));
  const SpecPtr spec = inferred_spec(all, mesh, along);
  if (!mesh->is_member()) return wrap_pieces(spec, {}, kNoPieces);
  check_pieces_here(wrapper, *spec);
  const at::Tensor tensor = wrap_pieces(spec, pieces_of(wrapper, *spec), kPieces);
  share_version(tensor, wrapper);
  return tensor;
}

}  // namespace shardwise
