#include "shardwise/pictures.h"

#include "pictures/picture_formats.h"
#include "plans/plan.h"
#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace shardwise {
namespace {

/// Throws: c10::ValueError for a suffix that names no format.
std::string format_of(const std::string& path) {
  const std::string suffix = std::filesystem::path(path).extension().string();
  std::vector<std::string_view> known;
  for (const detail::PictureFormat& format : detail::kPictureFormats) {
    if (format.suffix.empty()) continue;
    if (format.suffix == suffix) return std::string(format.name);
    known.push_back(format.suffix);
  }
  SW_CHECK_VALUE(false,
                 "[picture] file '{}' has a suffix that names no format: the suffix of a file sets its format. End its "
                 "name in one of {}.",
                 path, fmt::join(known, ", "));
}

}  // namespace

Picture picture_of(const at::Tensor& tensor) {
  const Spec& spec = *spec_of(tensor);
  return picture_of(spec.layout(), spec.element_bytes(), spec.mesh()->names());
}

Picture picture_of(const Mesh& mesh) { return picture_of(mesh->grid(), mesh.mesh_dim_names()); }

Picture difference_of(const at::Tensor& tensor, std::vector<Placement> placements) {
  const Spec& spec = *spec_of(tensor);
  const Layout& source = spec.layout();
  const Layout destination(source.sizes(), source.grid_ptr(), std::move(placements));
  const auto& names = spec.mesh()->names();
  return difference_of(plan(source, destination, spec.element_bytes()), {names, names});
}

void save(const Picture& picture, const std::string& path) {
  const std::string drawn = draw(picture, {.format = format_of(path)});
  std::ofstream file(path, std::ios::binary);
  file << drawn;
  file.close();
  SW_CHECK(file, "[picture] file '{}' cannot be written: {}. Give a path in an existing folder that is writable.", path,
           std::strerror(errno));
}

std::ostream& operator<<(std::ostream& stream, const Picture& picture) { return stream << draw(picture); }

void visualize_sharding(const at::Tensor& tensor, const std::string& header, std::ostream& stream) {
  if (!header.empty()) stream << header << '\n';
  stream << picture_of(tensor) << '\n';
}

}  // namespace shardwise
