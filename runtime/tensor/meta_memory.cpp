#include "runtime/tensor/meta_memory.h"

#include "runtime/comm/comm_scope.h"
#include "runtime/tensor/device_mesh.h"
#include "runtime/tensor/dtensor_impl.h"
#include "text/check.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

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

/// The context of memory on the CPU that counts.
struct HostAllocation {
  Allocation allocation;
  c10::DataPtr memory;
};

void note_end(const Allocation& allocation) {
  const std::lock_guard lock(allocation.records->mutex);
  MetaAllocation& record = allocation.records->allocations[allocation.number];
  if (record.begin == kInKernel)
    record = {.bytes = 0, .begin = allocation.records->time, .end = allocation.records->time};
  else
    record.end = allocation.records->time++;
}

void release(void* context) {
  const std::unique_ptr<Allocation> allocation(static_cast<Allocation*>(context));
  note_end(*allocation);
}

void release_host(void* context) {
  const std::unique_ptr<HostAllocation> host(static_cast<HostAllocation*>(context));
  note_end(host->allocation);
}

}  // namespace

/// torch's allocator of meta, with records. Storages without memory need nothing else of it.
class RecordingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n_bytes) override {
    const std::shared_ptr<Records> records = std::atomic_load(&records_);
    if (!records || n_bytes == 0 || ShapesAlone::is_open()) return usual_->allocate(n_bytes);
    return {nullptr, new Allocation(noted(records, n_bytes)), &release, c10::Device(c10::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return usual_->raw_deleter(); }
  void copy_data(void* /*to*/, const void* /*from*/, std::size_t /*n_bytes*/) const override {}

  /// Notes an allocation that begins now.
  static Allocation noted(const std::shared_ptr<Records>& records, size_t n_bytes) {
    const std::lock_guard lock(records->mutex);
    KernelMemory* const kernel = KernelMemory::innermost();
    const size_t number = records->allocations.size();
    records->allocations.push_back({.bytes = static_cast<int64_t>(n_bytes),
                                    .begin = kernel ? kInKernel : records->time++,
                                    .label = LabelledMemory::current(),
                                    .op = CommScope::current_op()});
    if (kernel) kernel->allocated_.emplace_back(records, number);
    return {records, number};
  }

  /// Begins to record, or ends if `records` is null.
  void record(std::shared_ptr<Records> records) {
    if (usual_ == nullptr) usual_ = c10::GetAllocator(c10::kMeta);
    c10::SetAllocator(c10::kMeta, records ? this : usual_);
    std::atomic_store(&records_, std::move(records));
  }
  std::shared_ptr<Records> records() const { return std::atomic_load(&records_); }

 private:
  c10::Allocator* usual_ = nullptr;
  std::shared_ptr<Records> records_;
};

namespace {

RecordingAllocator& allocator() {
  static auto* const one = new RecordingAllocator;  // never destroyed: torch keeps it
  return *one;
}

/// torch's allocator of the CPU, with records of memory for operators for which ranks communicate, such as the ids of a lookup: they have values in a dry
/// run, too, and a run on the CPU holds them next to its tensors.
class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t n_bytes) override {
    c10::DataPtr memory = usual_->allocate(n_bytes);
    const auto records = allocator().records();
    if (!records || n_bytes == 0 || *CommScope::current_op() == '\0') return memory;
    void* const data = memory.get();
    auto* const context = new HostAllocation{RecordingAllocator::noted(records, n_bytes), std::move(memory)};
    return {data, context, &release_host, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t n_bytes) const override {
    usual_->copy_data(to, from, n_bytes);
  }

  void use(bool is_used) {
    if (usual_ == nullptr) usual_ = c10::GetCPUAllocator();
    c10::SetCPUAllocator(is_used ? this : usual_);
  }

 private:
  c10::Allocator* usual_ = nullptr;
};

HostAllocator& host_allocator() {
  static auto* const one = new HostAllocator;  // never destroyed: tensors keep it
  return *one;
}

}  // namespace

MetaMemory::MetaMemory() : records_(std::make_shared<Records>()) {
  SW_CHECK_VALUE(!allocator().records(),
                 "[dry_run] the memory of meta tensors is being counted already. End the other dry run first.");
  allocator().record(records_);
  if (planned_device_on_meta() == c10::kCPU) host_allocator().use(true);
}

void MetaMemory::stop() {
  if (!std::exchange(is_open_, false)) return;
  allocator().record(nullptr);
  host_allocator().use(false);
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
