// runtime/tensor/bounded_map.h: a hash map of bounded size, for caches.
#pragma once

#include <cstddef>
#include <functional>
#include <unordered_map>
#include <utility>

namespace shardwise {

/// Holds at most `kMost` entries. The entries are in two halves: those that were inserted or found lately, and older ones. When the first half
/// is full, the older entries are dropped. So an entry that is in use stays, whatever else is inserted. Not thread-safe.
template <class Key, class Value, size_t kMost, class Hash = std::hash<Key>>
class BoundedMap {
 public:
  /// Null if there is no such entry. Valid until the next call. Cost: one or two hash lookups.
  Value* find(const Key& key) {
    if (const auto known = recent_.find(key); known != recent_.end()) return &known->second;
    if (older_.empty()) return nullptr;
    auto node = older_.extract(key);
    if (node.empty()) return nullptr;
    make_room();
    return &recent_.insert(std::move(node)).position->second;
  }

  Value& insert(Key key, Value value) {
    older_.erase(key);
    make_room();
    return recent_.insert_or_assign(std::move(key), std::move(value)).first->second;
  }

  void erase(const Key& key) { recent_.erase(key), older_.erase(key); }

  /// Erases the entries whose value fulfils `is_unwanted`.
  template <class IsUnwanted>
  void erase_if(const IsUnwanted& is_unwanted) {
    for (Entries* entries : {&recent_, &older_})
      std::erase_if(*entries, [&](const auto& entry) { return is_unwanted(entry.second); });
  }

  template <class See>
  void for_each(const See& see) const {
    for (const Entries* entries : {&recent_, &older_})
      for (const auto& [key, value] : *entries) see(value);
  }

  size_t size() const { return recent_.size() + older_.size(); }

 private:
  using Entries = std::unordered_map<Key, Value, Hash>;

  void make_room() {
    if (recent_.size() >= kMost / 2) older_ = std::exchange(recent_, {});
  }

  Entries recent_, older_;
};

}  // namespace shardwise
