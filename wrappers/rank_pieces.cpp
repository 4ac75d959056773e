#include "wrappers/rank_pieces.h"

#include "runtime/comm/collectives.h"
#include "runtime/comm/comm_trace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <unordered_map>

namespace shardwise {
namespace {

using Numbers = std::vector<int64_t>;

void put(Numbers& numbers, c10::IntArrayRef list) {
  numbers.push_back(static_cast<int64_t>(list.size()));
  numbers.insert(numbers.end(), list.begin(), list.end());
}

void put_maybe(Numbers& numbers, const std::optional<Dims>& maybe) {
  numbers.push_back(maybe.has_value());
  if (maybe) put(numbers, c10::IntArrayRef(*maybe));
}

Numbers to_numbers(const RankPieces& pieces) {
  Numbers numbers{pieces.rank, static_cast<int64_t>(pieces.dtype), static_cast<int64_t>(pieces.device_type)};
  put_maybe(numbers, pieces.shape);
  put_maybe(numbers, pieces.stride);
  put(numbers, c10::IntArrayRef(pieces.piece_strides));
  for (const Box& box : pieces.boxes) {
    put(numbers, c10::IntArrayRef(box.offsets));
    put(numbers, c10::IntArrayRef(box.sizes));
  }
  return numbers;
}

class Reader {
 public:
  explicit Reader(const Numbers& numbers) : numbers_(numbers) {}
  bool at_end() const { return next_ == numbers_.size(); }
  int64_t number() { return numbers_.at(next_++); }
  Dims list() {
    Dims dims(number());
    for (int64_t& dim : dims) dim = number();
    return dims;
  }
  std::optional<Dims> maybe() { return number() ? std::optional(list()) : std::nullopt; }

 private:
  const Numbers& numbers_;
  size_t next_ = 0;
};

RankPieces from_numbers(const Numbers& numbers) {
  TORCH_CHECK_VALUE(
      numbers.at(0) >= 0,
      "[from_local] some ranks give a LocalShardsWrapper and others a tensor. Give one kind on every rank.");
  Reader reader(numbers);
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
  std::vector<int64_t> everyone(mesh.world()->size());
  std::iota(everyone.begin(), everyone.end(), 0);
  const auto& process_group = mesh.world()->group(everyone)->process_group;
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

/// The store's key of this call: equal on all ranks that make the same calls.
std::string key_of_call(const DeviceMesh& mesh, const std::string& topic) {
  const std::string key = fmt::format("shardwise/pieces/{}/{}/{}", fmt::join(mesh.grid().ranks, ","),
                                      fmt::join(mesh.grid().shape, "x"), topic);
  return fmt::format("{}/{}", key, count_call(mesh.world(), key));
}

void publish(const DeviceMesh& mesh, const std::string& topic, const std::vector<Numbers>& all) {
  const auto store = store_of(mesh);
  if (!store) return;
  Numbers flat;
  for (const Numbers& numbers : all) put(flat, c10::IntArrayRef(numbers));
  const auto* bytes = reinterpret_cast<const uint8_t*>(flat.data());
  store->set(key_of_call(mesh, topic), std::vector<uint8_t>(bytes, bytes + flat.size() * sizeof(int64_t)));
}

std::vector<Numbers> read_published(const DeviceMesh& mesh, const std::string& topic) {
  const auto store = store_of(mesh);
  TORCH_CHECK_VALUE(
      store,
      fmt::format("[from_local] rank {} is outside the mesh {} and cannot read its members' pieces: the program has "
                  "no store. Give exact placements: Shard(dim, sizes=[...]) or EnumerableShard.",
                  mesh.rank(), to_string(mesh)));
  const std::string key = key_of_call(mesh, topic), n_readers = key + "/readers";
  const std::vector<uint8_t> bytes = store->get(key);
  if (store->add(n_readers, 1) == mesh.world()->size() - mesh.size()) {
    store->deleteKey(key);
    store->deleteKey(n_readers);
  }
  const auto* words = reinterpret_cast<const int64_t*>(bytes.data());
  const Numbers flat(words, words + bytes.size() / sizeof(int64_t));
  std::vector<Numbers> all;
  for (Reader reader(flat); !reader.at_end();) {
    const Dims numbers = reader.list();
    all.emplace_back(numbers.begin(), numbers.end());
  }
  return all;
}

}  // namespace

std::string list_of(c10::ArrayRef<Box> boxes) {
  std::vector<std::string> words;
  for (const Box& box : boxes) words.push_back(to_string(box));
  return words.empty() ? "no pieces" : fmt::format("{}", fmt::join(words, " "));
}

std::vector<RankPieces> gather_pieces(const RankPieces& mine, const DeviceMesh& mesh, const std::string& topic) {
  std::vector<Numbers> all;
  if (mesh.is_member()) {
    CommScope scope("from_local", CommScope::Cause::kProgram);
    all = all_gather_numbers(*mesh.group(), to_numbers(mine));
    const bool has_readers = mesh.size() < mesh.world()->size() && !topic.empty();
    if (has_readers && mesh.group()->index == 0) publish(mesh, topic, all);
  } else {
    all = read_published(mesh, topic);
  }
  std::vector<RankPieces> by_place(mesh.size());
  for (const Numbers& numbers : all) {
    RankPieces pieces = from_numbers(numbers);
    const auto& ranks = mesh.grid().ranks;
    by_place[std::ranges::find(ranks, pieces.rank) - ranks.begin()] = std::move(pieces);
  }
  return by_place;
}

}  // namespace shardwise
