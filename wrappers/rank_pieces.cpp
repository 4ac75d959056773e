#include "wrappers/rank_pieces.h"

#include "runtime/comm/agreement.h"
#include "text/check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

namespace shardwise {
namespace {

Facts facts_of(const RankPieces& pieces) {
  Facts facts("a LocalShardsWrapper");
  facts.number(pieces.rank)
      .number(static_cast<int64_t>(pieces.dtype))
      .number(static_cast<int64_t>(pieces.device_type))
      .maybe(pieces.shape)
      .maybe(pieces.stride)
      .list(pieces.piece_strides);
  for (const Box& box : pieces.boxes) facts.list(box.offsets).list(box.sizes);
  return facts;
}

RankPieces pieces_of(const Facts& facts) {
  FactReader reader(facts);
  RankPieces pieces;
  pieces.rank = reader.number();
  pieces.dtype = static_cast<c10::ScalarType>(reader.number());
  pieces.device_type = static_cast<c10::DeviceType>(reader.number());
  pieces.shape = reader.maybe();
  pieces.stride = reader.maybe();
  pieces.piece_strides = reader.list();
  while (!reader.at_end()) {
    Dims offsets = reader.list();
    pieces.boxes.push_back({std::move(offsets), reader.list()});
  }
  return pieces;
}

c10::intrusive_ptr<c10d::Store> store_of(const DeviceMesh& mesh) {
  const auto& process_group = mesh.world()->everyone()->process_group;
  return process_group ? process_group->getStore() : nullptr;
}

/// Counts this rank's calls of each topic while its World lives.
int64_t count_call(const std::shared_ptr<World>& world, const std::string& topic) {
  static std::mutex mutex;
  static auto* counts =  // outlives ranks that end at exit
      new std::map<std::weak_ptr<World>, std::unordered_map<std::string, int64_t>, std::owner_less<>>;
  const std::lock_guard lock(mutex);
  std::erase_if(*counts, [](const auto& entry) { return entry.first.expired(); });
  return ++(*counts)[world][topic];
}

/// The store's key for this call, equal on all ranks that make the same calls.
std::string key_of_call(const DeviceMesh& mesh, const std::string& topic) {
  const std::string key = fmt::format("shardwise/pieces/{}/{}/{}", fmt::join(mesh.grid().ranks, ","),
                                      fmt::join(mesh.grid().shape, "x"), topic);
  return fmt::format("{}/{}", key, count_call(mesh.world(), key));
}

void publish(const DeviceMesh& mesh, const std::string& topic, const std::vector<Facts>& all) {
  const auto store = store_of(mesh);
  if (!store) return;
  Facts published;
  for (const Facts& facts : all) published.list(facts.words());
  const auto* bytes = reinterpret_cast<const uint8_t*>(published.words().data());
  store->set(key_of_call(mesh, topic), std::vector<uint8_t>(bytes, bytes + published.words().size() * sizeof(int64_t)));
}

std::vector<Facts> read_published(const DeviceMesh& mesh, const std::string& topic) {
  const auto store = store_of(mesh);
  SW_CHECK_VALUE(store,
                 "[from_local] rank {} is outside the mesh {} and cannot read its members' pieces: the program has no "
                 "store. Give exact placements: Shard(dim, sizes=[...]) or EnumerableShard.",
                 mesh.rank(), to_string(mesh));
  const std::string key = key_of_call(mesh, topic), n_readers = key + "/readers";
  const std::vector<uint8_t> bytes = store->get(key);
  if (store->add(n_readers, 1) == mesh.world()->size() - mesh.size()) {
    store->deleteKey(key);
    store->deleteKey(n_readers);
  }
  const auto* words = reinterpret_cast<const int64_t*>(bytes.data());
  const Facts published = Facts::of_words({words, words + bytes.size() / sizeof(int64_t)});
  std::vector<Facts> all;
  for (FactReader reader(published); !reader.at_end();) {
    const Dims each = reader.list();
    all.push_back(Facts::of_words({each.begin(), each.end()}));
  }
  return all;
}

}  // namespace

std::string list_of(c10::ArrayRef<Box> boxes) {
  std::vector<std::string> words = c10::fmap(boxes, [&](const Box& box) { return to_string(box); });
  return words.empty() ? "no pieces" : fmt::format("{}", fmt::join(words, " "));
}

std::vector<RankPieces> gather_pieces(const RankPieces& mine, const DeviceMesh& mesh, const std::string& topic) {
  std::vector<Facts> all;
  if (mesh.is_member()) {
    all = agree(*mesh.group(), "from_local", facts_of(mine));
    const bool has_readers = mesh.size() < mesh.world()->size() && !topic.empty();
    if (has_readers && mesh.group()->index == 0) publish(mesh, topic, all);
  } else {
    all = read_published(mesh, topic);
  }
  std::vector<RankPieces> by_place(mesh.size());
  for (const Facts& facts : all) {
    RankPieces pieces = pieces_of(facts);
    const auto& ranks = mesh.grid().ranks;
    by_place[std::ranges::find(ranks, pieces.rank) - ranks.begin()] = std::move(pieces);
  }
  return by_place;
}

}  // namespace shardwise
