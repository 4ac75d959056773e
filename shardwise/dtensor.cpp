#include "shardwise/dtensor.h"

#include "text/check.h"

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <fmt/ranges.h>

#include <ostream>

namespace shardwise {
namespace {

Placements or_replicated(Placements placements, const Mesh& mesh) {
  return placements.empty() ? Placements(mesh.ndim()) : std::move(placements);
}

/// Throws: c10::ValueError for options that a distributed tensor cannot have.
void check_options(const char* op, const at::TensorOptions& options, const Mesh& mesh) {
  SW_CHECK_VALUE(options.layout() == at::kStrided, "[{}] layout {} cannot be distributed. Use torch::kStrided.", op,
                 c10::str(options.layout()));
  SW_CHECK_VALUE(!options.has_device() || options.device().type() == mesh.device_type(),
                 "[{}] device {} is not the mesh's, {}. Leave it out.", op, options.device().str(),
                 c10::DeviceTypeName(mesh.device_type(), true));
}

/// The result of `make(sizes, mesh, placements, dtype)`, with the options checked and applied.
template <class Make>
DTensor made(const char* op, c10::IntArrayRef sizes, const Mesh& mesh, Placements placements,
             const at::TensorOptions& options, at::ScalarType dtype, const Make& make) {
  check_options(op, options, mesh);
  const MeshPtr& home = mesh;
  if (options.has_dtype()) dtype = c10::typeMetaToScalarType(options.dtype());
  DTensor tensor(make(sizes, home, or_replicated(std::move(placements), mesh), dtype));
  tensor.requires_grad_(options.requires_grad());
  return tensor;
}

at::ScalarType default_dtype() { return c10::get_default_dtype_as_scalartype(); }

/// The dtype of torch::tensor(value).
at::ScalarType dtype_of(const at::Scalar& value) {
  if (value.isComplex()) return c10::toComplexType(default_dtype());
  return value.isFloatingPoint() ? default_dtype() : value.type();
}

}  // namespace

DTensor::DTensor(at::Tensor tensor) : at::Tensor(std::move(tensor)) {
  SW_CHECK_TYPE(!defined() || is_dtensor(*this),
                "[DTensor] got a plain tensor of shape [{}]. Make a distributed one of it with distribute_tensor(x, "
                "mesh, placements) or DTensor::from_local(x, mesh, placements).",
                fmt::join(sizes(), ", "));
}

DTensor DTensor::from_local(const at::Tensor& local, const Mesh& mesh, Placements placements,
                            const FromLocalOptions& options) {
  return DTensor(shardwise::from_local(local, mesh, or_replicated(std::move(placements), mesh), options));
}

DTensor DTensor::redistribute(Placements placements, const RedistributeOptions& options) const {
  return DTensor(shardwise::redistribute(*this, spec_of(*this)->mesh(), std::move(placements), options));
}

DTensor DTensor::redistribute(const Mesh& mesh, Placements placements, const RedistributeOptions& options) const {
  return DTensor(shardwise::redistribute(*this, mesh, std::move(placements), options));
}

at::Tensor DTensor::full_tensor(std::optional<Placements> grad_placements) const {
  return shardwise::full_tensor(*this, std::move(grad_placements));
}

at::Tensor DTensor::to_local(std::optional<Placements> grad_placements) const {
  return shardwise::to_local(*this, std::move(grad_placements));
}

std::vector<at::Tensor> DTensor::to_pieces() const { return shardwise::to_pieces(*this); }

const DTensor& DTensor::requires_grad_(bool requires_grad) const {
  set_requires_grad(requires_grad);
  return *this;
}

std::ostream& operator<<(std::ostream& stream, const Placement& placement) { return stream << to_string(placement); }

std::ostream& operator<<(std::ostream& stream, const Placements& placements) {
  return stream << to_string(c10::ArrayRef<Placement>(placements));
}

std::ostream& operator<<(std::ostream& stream, const DTensor& tensor) {
  if (!is_dtensor(tensor)) return stream << static_cast<const at::Tensor&>(tensor);  // assigned to the base class
  const auto& impl = *maybe_dtensor(tensor);
  stream << to_string(*impl.spec());
  if (impl.is_stale()) return stream << "\nstale: its values come again when an operator reads it";
  const auto pieces = detached_pieces(tensor, "print");
  const auto boxes = impl.spec()->boxes();
  if (boxes.empty()) stream << fmt::format("\nrank {} has none of it", impl.spec()->mesh()->rank());
  for (size_t i = 0; i < boxes.size(); ++i)
    stream << fmt::format("\nrank {} has [{}] from [{}]\n", impl.spec()->mesh()->rank(),
                          fmt::join(boxes[i].sizes, ", "), fmt::join(boxes[i].offsets, ", "))
           << pieces[i];
  return stream;
}

DTensor distribute_tensor(const at::Tensor& tensor, const Mesh& mesh, Placements placements,
                          std::optional<int64_t> src_data_rank) {
  const MeshPtr& home = mesh;
  return DTensor(distribute_tensor(tensor, home, or_replicated(std::move(placements), mesh), src_data_rank));
}

DTensor full(c10::IntArrayRef sizes, const at::Scalar& fill_value, const Mesh& mesh, Placements placements,
             const at::TensorOptions& options) {
  return made("full", sizes, mesh, std::move(placements), options, dtype_of(fill_value),
              [&](c10::IntArrayRef whole, const MeshPtr& home, Placements laid_out, at::ScalarType dtype) {
                return full(whole, fill_value, home, std::move(laid_out), dtype);
              });
}

DTensor zeros(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, const at::TensorOptions& options) {
  return full(sizes, 0, mesh, std::move(placements), options.has_dtype() ? options : options.dtype(default_dtype()));
}

DTensor ones(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, const at::TensorOptions& options) {
  return full(sizes, 1, mesh, std::move(placements), options.has_dtype() ? options : options.dtype(default_dtype()));
}

DTensor empty(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, const at::TensorOptions& options) {
  return made("empty", sizes, mesh, std::move(placements), options, default_dtype(),
              [](auto&&... args) { return empty(std::forward<decltype(args)>(args)...); });
}

DTensor rand(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, const at::TensorOptions& options) {
  return made("rand", sizes, mesh, std::move(placements), options, default_dtype(),
              [](auto&&... args) { return rand(std::forward<decltype(args)>(args)...); });
}

DTensor randn(c10::IntArrayRef sizes, const Mesh& mesh, Placements placements, const at::TensorOptions& options) {
  return made("randn", sizes, mesh, std::move(placements), options, default_dtype(),
              [](auto&&... args) { return randn(std::forward<decltype(args)>(args)...); });
}

}  // namespace shardwise
