// Tensors whose memory is a file: what is in the folder, what they hold, what stays, and disks without room.
#include "runtime/tensor/mapped_memory.h"

#include "tests/support/ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace shardwise::mapped_memory_test {
namespace {

/// A folder that is gone at the end.
struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "mapped_memory_test-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  bool is_empty() const { return std::filesystem::is_empty(path); }
  /// Files of this folder that this process has mapped.
  int n_mapped() const {
    std::ifstream maps("/proc/self/maps");
    int n = 0;
    for (std::string line; std::getline(maps, line);) n += line.find(path.string()) != std::string::npos;
    return n;
  }
};

/// Files of this process can have no more bytes than this while it lives.
struct FileLimit {
  rlimit before{};
  void (*handler)(int);
  explicit FileLimit(rlim_t n_bytes) : handler(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit limit{n_bytes, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
  }
};

std::string error_of(const std::string& folder, c10::IntArrayRef sizes) {
  try {
    mapped_zeros(folder, sizes, at::kFloat);
  } catch (const c10::ValueError& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(MappedMemoryTest, ZerosThatKeepWhatIsWrittenAndLeaveNoFile) {
  const Folder folder;
  {
    const at::Tensor one = mapped_zeros(folder.path, {1000, 3}, at::kDouble),
                     other = mapped_zeros(folder.path, {7}, at::kHalf);
    EXPECT_TRUE(folder.is_empty());
    EXPECT_EQ(folder.n_mapped(), 2);
    EXPECT_EQ(one.sizes(), at::IntArrayRef({1000, 3}));
    EXPECT_TRUE(one.is_contiguous() && one.eq(0).all().item<bool>() && other.eq(0).all().item<bool>());
    const at::Tensor values = at::randn({1000, 3}, at::kDouble);
    one.copy_(values);
    other.fill_(2);
    EXPECT_TRUE(one.equal(values) && other.eq(2).all().item<bool>());
  }
  EXPECT_EQ(folder.n_mapped(), 0);
  EXPECT_TRUE(folder.is_empty());
}

TEST(MappedMemoryTest, ViewsKeepTheFileAndKnowItsFolder) {
  const Folder folder;
  at::Tensor rows = mapped_zeros(folder.path, {100, 4}, at::kFloat);
  EXPECT_EQ(mapped_folder(rows), folder.path.string());
  rows = rows.narrow(0, 40, 2).view({8});
  rows.fill_(3);
  EXPECT_EQ(mapped_folder(rows), folder.path.string());
  EXPECT_EQ(folder.n_mapped(), 1);
  EXPECT_TRUE(rows.eq(3).all().item<bool>());
  EXPECT_FALSE(mapped_folder(rows.clone()).has_value());
  EXPECT_FALSE(mapped_folder(at::ones({3})).has_value());
}

TEST(MappedMemoryTest, NothingNeedsNoFile) {
  const at::Tensor nothing = mapped_zeros("/no such folder", {0, 4}, at::kFloat);
  EXPECT_EQ(nothing.sizes(), at::IntArrayRef({0, 4}));
  EXPECT_FALSE(mapped_folder(nothing).has_value());
}

TEST(MappedMemoryTest, FoldersThatTakeNoFileAreErrors) {
  const Folder folder;
  expect_error("cannot make a file of 32 bytes in /no such folder: No such file or directory",
               error_of("/no such folder", {2, 4}));
  const std::filesystem::path file = folder.path / "file";
  std::ofstream(file) << "x";
  expect_error("Not a directory. Give a folder on a disk with that much room", error_of(file, {2, 4}));
}

TEST(MappedMemoryTest, DisksWithoutRoomAreErrorsThatLeaveNothing) {
  const Folder folder;
  expect_error("cannot reserve a file of 4611686018427387904 bytes", error_of(folder.path, {int64_t{1} << 60}));
  {
    const FileLimit limit(1 << 16);
    expect_error("cannot reserve a file of 80000 bytes", error_of(folder.path, {20000}));
    EXPECT_EQ(error_of(folder.path, {10000}), "");
  }
  EXPECT_TRUE(folder.is_empty());
  EXPECT_EQ(folder.n_mapped(), 0);
  EXPECT_EQ(error_of(folder.path, {20000}), "");
}

}  // namespace
}  // namespace shardwise::mapped_memory_test
