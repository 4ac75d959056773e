#include "runtime/tensor/mapped_memory.h"

#include "text/check.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace shardwise {
namespace {

/// The mapping behind a storage of mapped memory.
struct Mapping {
  void* begin;
  size_t n_bytes;
  std::string folder;
};

void unmap(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  munmap(mapping->begin, mapping->n_bytes);
}

/// Closes the file at the end; a mapping of it remains valid.
struct OpenFile {
  int descriptor;
  ~OpenFile() {
    if (descriptor >= 0) close(descriptor);
  }
};

std::unique_ptr<Mapping> new_mapping(const std::string& folder, size_t n_bytes) {
  const auto check = [&](bool is_well, int error, const char* what) {
    SW_CHECK_VALUE(
        is_well, "[mapped memory] cannot {} a file of {} bytes in {}: {}. Give a folder on a disk with that much room.",
        what, n_bytes, folder, std::strerror(error));
  };
  std::string name = folder + "/shardwise-XXXXXX";
  const OpenFile file{mkostemp(name.data(), O_CLOEXEC)};
  check(file.descriptor >= 0, errno, "make");
  unlink(name.c_str());
  const int error = posix_fallocate(file.descriptor, 0, static_cast<off_t>(n_bytes));
  check(error == 0, error, "reserve");
  void* begin = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.descriptor, 0);
  check(begin != MAP_FAILED, errno, "map");
  madvise(begin, n_bytes, MADV_RANDOM);  // rows are read at random: no read-ahead
  return std::make_unique<Mapping>(begin, n_bytes, folder);
}

}  // namespace

at::Tensor mapped_zeros(const std::string& folder, c10::IntArrayRef sizes, at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const size_t n_bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(dtype);
  if (n_bytes == 0) return at::empty(sizes, options);
  auto mapping = new_mapping(folder, n_bytes);
  void* const begin = mapping->begin;
  c10::DataPtr memory(begin, mapping.release(), &unmap, at::kCPU);
  const c10::Storage storage(c10::Storage::use_byte_size_t(), n_bytes, std::move(memory));
  return at::empty({0}, options).set_(storage, 0, sizes);
}

std::optional<std::string> mapped_folder(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !tensor.device().is_cpu()) return std::nullopt;
  const auto* mapping = tensor.storage().data_ptr().cast_context<Mapping>(&unmap);
  return mapping == nullptr ? std::nullopt : std::optional(mapping->folder);
}

}  // namespace shardwise
