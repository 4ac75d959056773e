// runtime/tensor/meta_memory.h: counts the memory that tensors on meta would take.
//
//   MetaMemory memory;
//   const auto x = at::empty({1024, 1024}, at::kMeta);
//   memory.allocations()[0].bytes;                       // 4,194,304
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace shardwise {

/// The storage of one tensor on meta and of its views. Times count allocations and releases, from 0.
struct MetaAllocation {
  int64_t bytes = 0;  // 0 if a kernel has released it
  int64_t begin = 0;
  int64_t end = -1;  // -1 while it lives
  int64_t label = 0;
  const char* op = "";  // the operator for which ranks communicated, or the kernel, that allocated it
};

/// Records allocations on meta, of all threads, until stop(), and their releases also after that. Cost: 32 bytes and a lock per allocation.
class MetaMemory {
 public:
  /// Throws: c10::ValueError if another one records.
  MetaMemory();
  ~MetaMemory() { stop(); }
  C10_DISABLE_COPY_AND_ASSIGN(MetaMemory);

  /// Records no further allocations and keeps the recorded ones. A second call does nothing.
  void stop();

  int64_t n_allocations() const;
  std::vector<MetaAllocation> allocations() const;
  /// Labels the memory of a tensor on meta, or of the pieces of a distributed one. Other memory is left alone.
  void label(const at::Tensor& tensor, int64_t label);

  struct Records;

 private:
  std::shared_ptr<Records> records_;
  bool is_open_ = true;
};

/// Labels of MetaAllocation that are set here; others are the program's.
enum MetaLabel : int64_t { kUnlabelled = 0, kMessageBuffers = 1 };

/// During its lifetime, what this thread allocates on meta has this label.
class LabelledMemory {
 public:
  explicit LabelledMemory(MetaLabel label) : outer_(std::exchange(current(), label)) {}
  ~LabelledMemory() { current() = outer_; }
  C10_DISABLE_COPY_AND_ASSIGN(LabelledMemory);

  static int64_t& current();

 private:
  const int64_t outer_;
};

/// A kernel that this thread runs, from its construction to its end. Memory that it allocates and releases does not count: on meta, many
/// kernels are composed of operators that a device with memory does not run. Memory that it leaves begins at its end.
class KernelMemory {
 public:
  KernelMemory() : outer_(std::exchange(innermost(), this)) {}
  ~KernelMemory();
  C10_DISABLE_COPY_AND_ASSIGN(KernelMemory);

 private:
  friend class RecordingAllocator;
  static KernelMemory*& innermost();

  KernelMemory* const outer_;
  std::vector<std::pair<std::shared_ptr<MetaMemory::Records>, size_t>> allocated_;
};

/// During its lifetime, this thread's tensors on meta are not counted, and neither is work on them: only their shapes are wanted.
class ShapesAlone {
 public:
  ShapesAlone() { ++depth(); }
  ~ShapesAlone() { --depth(); }
  C10_DISABLE_COPY_AND_ASSIGN(ShapesAlone);

  static bool is_open() { return depth() > 0; }

 private:
  static int& depth();
};

}  // namespace shardwise
