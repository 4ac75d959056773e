#include "runtime/comm/call_notes.h"

#include "runtime/comm/world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <exception>
#include <thread>

namespace shardwise {
namespace {

constexpr size_t kShownRanks = 8;
constexpr std::chrono::milliseconds kPause{20};  // between two reads of the store

c10::intrusive_ptr<c10d::Store> current_store() {
  const auto world = World::maybe_current();
  if (!world) return nullptr;
  const auto& process_group = world->everyone()->process_group;  // made with the World: sends nothing
  return process_group ? process_group->getStore() : nullptr;
}

/// Part of the store's keys, because ranks that are threads share one store, and groups do too.
std::string key_of(const std::vector<int64_t>& ranks, int64_t rank) {
  return fmt::format("shardwise/call/{}/{}", fmt::join(ranks, ","), rank);
}

/// Parses a note in the store: "12 all_reduce for aten::mm".
std::optional<CallNote> find_note(c10d::Store& store, const std::string& key) {
  if (!store.check({key})) return std::nullopt;
  const std::vector<uint8_t> bytes = store.get(key);
  const std::string text(bytes.begin(), bytes.end());
  const size_t blank = text.find(' ');
  if (blank == std::string::npos) return std::nullopt;
  return CallNote{std::stoull(text), text.substr(blank + 1)};
}

}  // namespace

void leave_note(const std::vector<int64_t>& ranks, const CallNote& note) noexcept {
  try {
    const auto world = World::maybe_current();
    const auto store = current_store();
    if (!store) return;
    const std::string text = fmt::format("{} {}", note.call, note.text);
    store->set(key_of(ranks, world->rank()), std::vector<uint8_t>(text.begin(), text.end()));
  } catch (const std::exception&) {
    return;  // the store's process may be gone; the error behind this note matters more
  }
}

std::vector<std::optional<CallNote>> read_notes(const std::vector<int64_t>& ranks, uint64_t call,
                                                std::chrono::milliseconds patience) noexcept {
  std::vector<std::optional<CallNote>> notes(ranks.size());
  const auto deadline = std::chrono::steady_clock::now() + patience;
  try {
    const auto store = current_store();
    if (!store) return notes;
    for (size_t i = 0; i < ranks.size(); ++i)
      for (;;) {
        notes[i] = find_note(*store, key_of(ranks, ranks[i]));
        if ((notes[i] && notes[i]->call >= call) || std::chrono::steady_clock::now() >= deadline) break;
        std::this_thread::sleep_for(kPause);
      }
  } catch (const std::exception&) {
    return notes;
  }
  return notes;
}

std::string describe_notes(const std::vector<int64_t>& ranks, int64_t own_rank,
                           const std::vector<std::optional<CallNote>>& notes) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < ranks.size() && texts.size() < kShownRanks; ++i) {
    if (ranks[i] == own_rank) continue;
    if (!notes[i])
      texts.push_back(fmt::format("rank {}: nothing is known", ranks[i]));
    else
      texts.push_back(fmt::format("rank {}: {}{}", ranks[i],
                                  notes[i]->call > 0 ? fmt::format("call {}, ", notes[i]->call) : "", notes[i]->text));
  }
  return fmt::format("{}{}", fmt::join(texts, "; "), ranks.size() > kShownRanks + 1 ? "; ..." : "");
}

}  // namespace shardwise
