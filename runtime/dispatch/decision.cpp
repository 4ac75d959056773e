#include "runtime/dispatch/decision.h"

#include "runtime/tensor/unused_meshes.h"

#include <c10/core/Scalar.h>

#include <algorithm>
#include <atomic>
#include <bit>

namespace shardwise {
namespace {

/// Tags that keep equal words of different types apart.
enum Tag : uint64_t {
  kNone = 0x11,
  kBool,
  kInt,
  kDouble,
  kComplex,
  kInts,
  kDoubles,
  kBools,
  kString,
  kDevice,
  kList,
  kOther
};

uint64_t next_unique() {
  static std::atomic<uint64_t> n = 0;
  return ++n;
}

}  // namespace

void DecisionKey::add_scalar(int64_t value, bool by_kind) {
  add(kInt);
  if (!by_kind) add(static_cast<uint64_t>(value));
}

void DecisionKey::add_scalar(bool value, bool by_kind) {
  add(kBool);
  if (!by_kind) add(value);
}

void DecisionKey::add_scalar(const c10::Scalar& value, bool by_kind) {
  if (value.isIntegral(/*includeBool=*/false)) return add_scalar(value.toLong(), by_kind);
  add_scalar(c10::IValue(value), by_kind);
}

void DecisionKey::add_ints(c10::IntArrayRef values) {
  add(kInts);
  add(values.size());
  for (const int64_t value : values) add(static_cast<uint64_t>(value));
}

void DecisionKey::add_plain(const at::Tensor& tensor) {
  add(static_cast<uint64_t>(tensor.scalar_type()) << 8 | (tensor.unsafeGetTensorImpl()->is_wrapped_number() ? 2 : 1));
}

void DecisionKey::add_scalar(const c10::IValue& value, bool by_kind) {
  auto add_all = [&](Tag tag, const auto& list, auto word_of) {
    add(tag);
    add(list.size());
    for (const auto& element : list) add(word_of(element));
  };
  if (value.isNone()) return add(kNone);
  if (value.isInt()) return add_scalar(value.toInt(), by_kind);
  if (value.isDouble()) return add(kDouble), by_kind ? void() : add(std::bit_cast<uint64_t>(value.toDouble()));
  if (value.isBool()) return add_scalar(value.toBool(), by_kind);
  if (value.isIntList()) return add_ints(value.toDimVector());
  if (value.isDoubleList())
    return add_all(kDoubles, value.toDoubleVector(), [](double d) { return std::bit_cast<uint64_t>(d); });
  if (value.isBoolList()) {
    add(kBools);
    for (bool b : value.toBoolList()) add(b);
    return;
  }
  if (value.isDevice())
    return add(kDevice),
           add(static_cast<uint64_t>(value.toDevice().type()) << 8 | static_cast<uint8_t>(value.toDevice().index()));
  if (value.isString()) return add_all(kString, value.toStringRef(), [](char c) { return static_cast<uint64_t>(c); });
  if (value.isComplexDouble()) {
    add(kComplex);
    if (by_kind) return;
    add(std::bit_cast<uint64_t>(value.toComplexDouble().real()));
    return add(std::bit_cast<uint64_t>(value.toComplexDouble().imag()));
  }
  if (value.isList()) {
    add(kList);
    add(value.toListRef().size());
    for (const c10::IValue& element : value.toListRef()) add_scalar(element, by_kind);
    return;
  }
  add(kOther);
  if (!value.isGenerator()) add(next_unique());  // a value that cannot be compared equals no other
}

DecisionCache& DecisionCache::of_thread() {
  thread_local DecisionCache cache;
  return cache;
}

std::shared_ptr<const Decision> DecisionCache::find(const DecisionKey& key) {
  const Entry* found = entries_.find(key);
  if (!found) found = by_numbers_.find(key);
  ++(found ? hits_ : misses_);
  return found ? found->decision : nullptr;
}

const Decision* DecisionCache::find_direct(const DecisionKey& key) {
  const Entry* found = entries_.find(key);
  if (!found || !found->decision->is_direct) return nullptr;
  ++hits_;
  return found->decision.get();
}

void DecisionCache::insert(DecisionKey key, std::shared_ptr<const Decision> decision, std::vector<SpecPtr> specs,
                           bool is_by_numbers) {
  drop_unused([&](const UnusedMeshes& unused) {
    const auto is_unused = [&](const Entry& entry) {
      return std::ranges::any_of(entry.specs, [&](const SpecPtr& spec) { return unused.has(spec); });
    };
    entries_.erase_if(is_unused);
    by_numbers_.erase_if(is_unused);
  });
  if (is_by_numbers)
    by_numbers_.insert(std::move(key), Entry{std::move(decision), std::move(specs)});
  else
    entries_.insert(std::move(key), Entry{std::move(decision), std::move(specs)});
}

}  // namespace shardwise
