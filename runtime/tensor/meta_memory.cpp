#include "runtime/tensor/meta_memory.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"

#include <c10/core/Allocator.h>

#include <mutex>
#include <utility>

namespace shardwise {

struct MetaMemory::Records {
  std::mutex mutex;
  std::vector<MetaAllocation> allocations;
  int64_t time = 0;
};

namespace {

using Records = MetaMemory::Records;

constexpr int64_t kInKernel = -1;  // the begin of an allocation whose kernel runs

/// The context of a storage without memory. It outlives the meter.
struct Allocation {
  std::shared_ptr<Records> records;
  size_t number;
};

void release(void* context) {
  const std::unique_ptr<Allocation> allocation(static_cast<Allocation*>(context));
  const std::lock_guard lock(allocation->records->mutex);
  MetaAllocation& record = allocation->records->allocations[allocation->number];
  if (record.begin == kInKernel)
    record = {.bytes = 0, .begin = allocation->records->time, .end = allocation->records->time};
  else
    record.end = allocation->records->time++;
}

}  // namespace

/// torch's allocator of meta, with records. Storages without memory need nothing else of it.
class RecordingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n_bytes) override {
    const std::shared_ptr<Records> records = std::atomic_load(&records_);
    if (!records || n_bytes == 0 || ShapesAlone::is_open()) return usual_->allocate(n_bytes);
    const std::lock_guard lock(records->mutex);
    KernelMemory* const kernel = KernelMemory::innermost();
    const size_t number = records->allocations.size();
    records->allocations.push_back({.bytes = static_cast<int64_t>(n_bytes),
                                    .begin = kernel ? kInKernel : records->time++,
                                    .label = LabelledMemory::current(),
                                    .op = CommScope::current_op()});
    if (kernel) kernel->allocated_.emplace_back(records, number);
    return {nullptr, new Allocation{records, number}, &release, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*n_bytes*/) const override {}

  /// Begins to record, or ends if `records` is null.
  void record(std::shared_ptr<Records> records) {
    if (usual_ == nullptr) usual_ = c10::GetAllocator(c10::kMeta);
    c10::SetAllocator(c10::kMeta, records ? this : usual_);
    std::atomic_store(&records_, std::move(records));
  }
  bool is_recording() const { return std::atomic_load(&records_) != nullptr; }

 private:
  c10::Allocator* usual_ = nullptr;
  std::shared_ptr<Records> records_;
};

namespace {

RecordingAllocator& allocator() {
  static auto* const one = new RecordingAllocator;  // never destroyed: torch keeps it
  return *one;
}

}  // namespace

MetaMemory::MetaMemory() : records_(std::make_shared<Records>()) {
  SW_CHECK_VALUE(!allocator().is_recording(),
                 "[dry_run] the memory of meta tensors is being counted already. End the other dry run first.");
  allocator().record(records_);
}

void MetaMemory::stop() {
  if (std::exchange(is_open_, false)) allocator().record(nullptr);
}

int64_t MetaMemory::n_allocations() const {
  const std::lock_guard lock(records_->mutex);
  return static_cast<int64_t>(records_->allocations.size());
}

std::vector<MetaAllocation> MetaMemory::allocations() const {
  const std::lock_guard lock(records_->mutex);
  return records_->allocations;
}

void MetaMemory::label(const at::Tensor& tensor, int64_t label) {
  if (const DTensorImpl* impl = maybe_dtensor(tensor)) {
    for (const at::Tensor& piece : impl->local_tensors()) this->label(piece, label);
    return;
  }
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) return;
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() != &release) return;
  const auto& allocation = *static_cast<const Allocation*>(memory.get_context());
  if (allocation.records != records_) return;
  const std::lock_guard lock(records_->mutex);
  records_->allocations[allocation.number].label = label;
}

int64_t& LabelledMemory::current() {
  static thread_local int64_t label = kUnlabelled;
  return label;
}

KernelMemory*& KernelMemory::innermost() {
  static thread_local KernelMemory* open = nullptr;
  return open;
}

KernelMemory::~KernelMemory() {
  innermost() = outer_;
  for (const auto& [records, number] : allocated_) {
    const std::lock_guard lock(records->mutex);
    if (MetaAllocation& record = records->allocations[number]; record.begin == kInKernel)
      record.begin = records->time++;
  }
}

int& ShapesAlone::depth() {
  static thread_local int depth = 0;
  return depth;
}

}  // namespace shardwise
