#include "runtime/api/to_local.h"

#include "runtime/api/from_local.h"
#include "runtime/api/gradient_layout.h"
#include "runtime/api/gradients.h"
#include "runtime/api/local_form.h"
#include "runtime/tensor/autograd_node.h"
#include "runtime/tensor/flat_part.h"
#include "runtime/tensor/subclass.h"
#include "runtime/tensor/traced_pieces.h"
#include "text/check.h"

#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <atomic>

namespace shardwise {
namespace {

std::atomic<bool> answers_outside = false;

using torch::autograd::variable_list;

/// The piece `grad`, in memory in the order of the strides of `spec`: a piece of a channels-last tensor is channels-last.
at::Tensor in_order_of(const Spec& spec, const at::Tensor& grad) {
  if (is_subclass(grad) || grad.layout() != at::kStrided) return grad;
  const Dims sizes = sizes_of(grad), strides = dense_strides(sizes, spec.strides());
  if (strides_of(grad) == strides) return grad;
  fix_symbols(grad.sym_sizes());
  return at::empty_strided(sizes, strides, grad.options()).copy_(grad);
}

/// Autograd node. A torch::autograd::Function would cost a microsecond more.
struct ToPiecesBackward final : torch::autograd::Node {
  SpecPtr grad_spec;
  bool is_flat = false;  // the only output is all pieces in a row

  variable_list apply(variable_list&& grads) override {
    const auto options = at::TensorOptions().dtype(grad_spec->dtype()).device(grad_spec->mesh()->device());
    if (is_flat && grad_spec->flat_sizes()) {
      const at::Tensor own = grads[0].defined() ? grads[0].contiguous() : at::zeros(*grad_spec->flat_sizes(), options);
      return {from_local(own, grad_spec->mesh(), grad_spec->placements().vec(), {.shape = Dims(grad_spec->sizes())})};
    }
    const bool is_row_major = grad_spec->strides().equals(row_major_strides(grad_spec->sizes()));
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) grads[i] = at::zeros(grad_spec->boxes()[i].sizes, options);
      if (!is_row_major) grads[i] = in_order_of(*grad_spec, grads[i]);
    }
    return {from_pieces(grads, grad_spec)};
  }
  std::string name() const override { return "ToPiecesBackward"; }
};

/// True if some rank's part is not a single tensor.
bool needs_form(const Layout& layout) {
  return layout.has_listed_boxes() &&
         std::ranges::any_of(layout.grid().ranks, [&](int64_t rank) { return layout.boxes(rank).size() != 1; });
}

bool has_history(const at::Tensor& tensor) { return records(tensor) || tensor._fw_grad(0).defined(); }

/// `hides_alias`: torch.compile makes views of an alias again, and gets the alias by to_local() without arguments.
/// Pre: has_history(tensor).
variable_list with_history(const at::Tensor& tensor, const Shards& shards, const SpecPtr& grad_spec,
                           bool is_flat = false, bool hides_alias = false) {
  variable_list pieces;
  const Shards given = is_flat ? Shards{flat_part(*spec_of(tensor), shards)} : shards;
  for (const at::Tensor& piece : given)
    pieces.push_back(is_subclass(piece) ? alias_of(piece) : detached(piece, *maybe_dtensor(tensor)));
  if (hides_alias)
    for (at::Tensor& piece : pieces) piece = at::_unsafe_view_symint(piece, piece.sym_sizes());
  if (records(tensor)) {
    auto node = make_node<ToPiecesBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(tensor));
    node->grad_spec = grad_spec;
    node->is_flat = is_flat;
    torch::autograd::set_history(pieces, node);
  }
  if (const at::Tensor& tangent = tensor._fw_grad(0); tangent.defined()) {
    const variable_list of_tangent = with_history(tangent, maybe_dtensor(tangent)->local_tensors(), grad_spec, is_flat);
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i]._set_fw_grad(of_tangent[i], 0, /*is_inplace_op=*/false);
  }
  return pieces;
}

std::vector<at::Tensor> without_history(const DTensorImpl& impl, const Shards& shards) {
  return c10::fmap(shards, [&](const at::Tensor& piece) { return piece_for_caller(piece, impl); });
}

}  // namespace

at::Tensor to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const SpecPtr& spec = spec_of(tensor);
  const LocalForm* form = maybe_dtensor(tensor)->local_form();
  if (!form && needs_form(spec->layout())) form = local_form_for_pieces();
  if (auto* impl = maybe_dtensor(tensor); grad_placements && wants_gradient_layout(*impl)) lay_out_gradient(*impl);
  return form ? form->to_local(tensor, grad_placements) : to_piece(tensor, std::move(grad_placements));
}

void AnswersOutside::set(bool are_on) { answers_outside = are_on; }
bool AnswersOutside::are_on() { return answers_outside; }

at::Tensor to_piece(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const SpecPtr& spec = spec_of(tensor);
  const DTensorImpl& impl = *maybe_dtensor(tensor);
  const Shards& shards = shards_read_by(impl, "to_local");
  const bool is_flat = spec->flat_sizes() && !impl.is_sparse();
  SW_CHECK_VALUE(shards.size() <= 1 || is_flat,
                 "[to_piece] rank {} holds {} pieces of {}. Use to_pieces(), or to_local() for a LocalShardsWrapper.",
                 spec->mesh()->rank(), shards.size(), to_string(*spec));
  if (shards.empty() && !is_flat) {
    const auto options = at::TensorOptions().dtype(spec->dtype()).device(tensor.device()).layout(tensor.layout());
    const bool is_zero = AnswersOutside::are_on() && tensor.dim() == 0 && !spec->mesh()->is_member();
    return is_zero ? at::zeros({}, options) : at::empty({0}, options);
  }
  if (has_history(tensor))
    return with_history(tensor, shards, grad_placements ? spec->with_placements(*grad_placements) : spec->reduced(),
                        is_flat, grad_placements && is_traced(shards))[0];
  if (is_flat) return detached(flat_part(*spec, shards), impl);
  // With grad mode on, the caller may call requires_grad_() on the result, which must not affect the tensor's own piece.
  return c10::GradMode::is_enabled() ? detached(shards[0], impl) : piece_for_caller(shards[0], impl);
}

std::vector<at::Tensor> to_pieces(const at::Tensor& tensor) {
  const SpecPtr& spec = spec_of(tensor);
  const DTensorImpl& impl = *maybe_dtensor(tensor);
  const Shards& shards = shards_read_by(impl, "to_local");
  return has_history(tensor) ? with_history(tensor, shards, spec->reduced()) : without_history(impl, shards);
}

std::vector<at::Tensor> detached_pieces(const at::Tensor& tensor, const char* reader) {
  spec_of(tensor);  // throws for other tensors
  const DTensorImpl& impl = *maybe_dtensor(tensor);
  return without_history(impl, shards_read_by(impl, reader));
}

at::Tensor whole_piece(const at::Tensor& tensor, const char* reader) {
  const Spec& spec = *spec_of(tensor);
  const std::vector<at::Tensor> pieces = detached_pieces(tensor, reader);
  const bool is_whole = pieces.size() == 1 && pieces[0].sizes() == spec.sizes() && !spec.layout().has_terms();
  SW_CHECK_VALUE(is_whole && (pieces[0].numel() < 2 || pieces[0].strides() == tensor.strides()),
                 "[{}] rank {} does not hold all values of {}{}. Use to_local() for the rank's values or full_tensor() "
                 "for all values; for a whole model use torch.distributed.checkpoint.state_dict.get_model_state_dict "
                 "with full_state_dict=True.",
                 reader, spec.mesh()->rank(), to_string(spec), is_whole ? " in the order of its strides" : "");
  return pieces[0];
}

}  // namespace shardwise
