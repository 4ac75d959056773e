// tests/kernels/cuda_kernels_test.cu: every kernel of kernels/cuda/ against its namesake for the CPU, on random tables, ids and gradients.
//
// Built by nvcc it runs on a GPU, and is skipped where none is. Built by the C++ compiler, as emulated_cuda_kernels_test, it runs
// anywhere; see emulated_cuda/.
#include "kernels/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace shardwise::kernels;

namespace {

std::mt19937_64 random_bits(7);
std::string now;  // what is being compared

void complain(const std::string& what, int64_t i, double found, double wanted) {
  ADD_FAILURE() << now << ", " << what << "[" << i << "]: GPU " << found << ", CPU " << wanted;
}

/// An array here and on the device. The device's part begins as far from a multiple of 16 bytes as `shift` says.
template <class T>
struct Both {
  std::vector<T> here;
  T* memory = nullptr;
  T* there = nullptr;

  explicit Both(std::vector<T> values, int64_t shift = 0) : here(std::move(values)) {
    cudaMalloc(reinterpret_cast<void**>(&memory), std::max<size_t>(here.size() + shift, 1) * sizeof(T));
    there = memory + shift;
    cudaMemcpy(there, here.data(), here.size() * sizeof(T), cudaMemcpyHostToDevice);
  }
  explicit Both(int64_t n, T value = {}) : Both(std::vector<T>(n, value)) {}
  Both(const Both&) = delete;
  ~Both() { cudaFree(memory); }

  std::vector<T> back() const {
    std::vector<T> values(here.size());
    cudaMemcpy(values.data(), there, values.size() * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }
};

/// Equal up to `tolerance`, relative above 1; two NaNs are equal.
template <class T>
void compare(const std::string& what, const Both<T>& both, double tolerance = 0, int64_t n = -1) {
  const std::vector<T> found = both.back();
  for (int64_t i = 0; i < (n < 0 ? static_cast<int64_t>(found.size()) : n); ++i) {
    const auto a = static_cast<double>(found[i]), b = static_cast<double>(both.here[i]);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (a != b && !(std::abs(a - b) <= tolerance * std::max(1.0, std::abs(b)))) return complain(what, i, a, b);
  }
}

template <class T>
constexpr Element kElement = std::is_same_v<T, float>    ? Element::kFloat
                             : std::is_same_v<T, double> ? Element::kDouble
                             : std::is_same_v<T, __half> ? Element::kHalf
                                                         : Element::kBFloat16;
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Sums of some hundred numbers around 1, rounded once.
template <class T>
constexpr double kTolerance = std::is_same_v<T, double>   ? 1e-12
                              : std::is_same_v<T, float>  ? 1e-4
                              : std::is_same_v<T, __half> ? 3e-3
                                                          : 2e-2;

template <class T>
std::vector<T> numbers(int64_t n, double low = -1, double high = 1) {
  std::vector<T> result(n);
  for (T& x : result) x = static_cast<T>(static_cast<Sum<T>>(std::uniform_real_distribution<>(low, high)(random_bits)));
  return result;
}

int64_t below(int64_t n) { return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(n)); }

constexpr int64_t kFirstRow = 10, kRows = 50, kTableRows = 80;  // the piece's rows are 10 to 59 of 80

/// Ids of the whole table: none; all alike often; few named very often; one only.
template <class Id>
std::vector<Id> some_ids(const std::string& kind, int64_t n) {
  std::vector<Id> ids(n);
  for (Id& id : ids) {
    if (kind == "uniform") id = static_cast<Id>(below(kTableRows));
    if (kind == "Zipf")
      id = static_cast<Id>(
          kFirstRow + static_cast<int64_t>(std::pow(70.0, 1 - std::pow(static_cast<double>(below(1000)) / 1000, 0.4))) -
          1);
    if (kind == "one") id = 17;
  }
  if (kind == "uniform" && n > 2) ids[1] = std::numeric_limits<Id>::min(), ids[2] = std::numeric_limits<Id>::max();
  return ids;
}

/// A table's piece, ids and what else the kernels take, and the comparisons.
template <class T, class Id>
struct Case {
  using S = Sum<T>;
  int64_t width, step, n;
  Both<T> table;
  Both<Id> ids;
  int64_t n_groups = 0;
  Both<int64_t> rows{n}, starts{n + 1}, order{n}, group_of{n};
  Both<char> sum_scratch{cuda::sum_scratch(GradRows{nullptr, kElement<T>, width, step, nullptr, nullptr, nullptr}, n)};
  static constexpr double kClose = kTolerance<T>;

  Case(const std::string& kind, int64_t n_ids, int64_t table_width, int64_t padding, int64_t shift)
      : width(table_width),
        step(table_width + padding),
        n(n_ids),
        table(numbers<T>(kRows * (table_width + padding)), shift),
        ids(some_ids<Id>(kind, n_ids)) {}

  Rows rows_of(const void* data) const { return {const_cast<void*>(data), kElement<T>, kFirstRow, kRows, width, step}; }
  Ids ids_of(const Id* data) const { return {data, sizeof(Id) == 4, n}; }

  void look_up_rows(Miss miss, int64_t result_step) {
    now += miss == Miss::kZero ? " look_up zero" : " look_up keep";
    Both<T> results(numbers<T>(n * result_step));
    look_up(rows_of(table.here.data()), ids_of(ids.here.data()), miss, results.here.data(), result_step, 0, n);
    cuda::look_up(rows_of(table.there), ids_of(ids.there), miss, results.there, result_step, nullptr);
    compare("results", results);
  }

  void group(int64_t skipped) {
    now += " group_ids";
    if (n > 0 && *std::ranges::min_element(ids.here) >= 0)
      cuda::check_rows(ids_of(ids.there), int64_t{*std::ranges::max_element(ids.here)} + 1, nullptr);
    Both<uint64_t> digest(1);
    cuda::digest_of(ids_of(ids.there), digest.there, nullptr);
    const uint64_t wanted_digest = digest_of(ids_of(ids.here.data()), 0, n), found_digest = digest.back()[0];
    if (wanted_digest != found_digest)
      complain("digest", 0, static_cast<double>(found_digest), static_cast<double>(wanted_digest));
    std::vector<uint64_t> scratch(2 * n + 1);
    Both<uint64_t> scratch_there(cuda::group_scratch(n));
    n_groups = group_ids(
        ids_of(ids.here.data()), kFirstRow, kRows, skipped,
        GroupMemory{rows.here.data(), starts.here.data(), order.here.data(), group_of.here.data(), scratch.data()});
    const int64_t n_found = cuda::group_ids(
        ids_of(ids.there), kFirstRow, kRows, skipped,
        GroupMemory{rows.there, starts.there, order.there, group_of.there, scratch_there.there}, nullptr);
    if (n_found != n_groups) complain("groups", 0, static_cast<double>(n_found), static_cast<double>(n_groups));
    compare("rows", rows, 0, n_groups);
    compare("starts", starts, 0, n_groups + 1);
    compare("order", order, 0, starts.here[n_groups]);
    compare("group_of", group_of);
  }

  Groups here_groups() const { return {order.here.data(), starts.here.data(), n_groups, n}; }
  Groups groups() const { return {order.there, starts.there, n_groups, n}; }

  /// Gradients per id; per bag, with factors; per bag, chosen; one for all.
  void sums(const std::string& kind) {
    now += " gradients " + kind;
    const bool in_bags = kind == "of bags" || kind == "chosen";
    const int64_t n_grads = kind == "one" ? 1 : in_bags ? n / 3 + 1 : n, grad_step = kind == "one" ? 0 : step;
    Both<T> data(numbers<T>(n_grads * step));
    Both<S> factors(numbers<S>(n));
    Both<int64_t> row_of(n), chosen(n_grads * width);
    for (int64_t k = 0; k < n; ++k) row_of.here[k] = k / 3;
    for (int64_t i = 0; i < n_grads * width; ++i) chosen.here[i] = std::max<int64_t>(0, i / width * 3 + below(4) - 1);
    Both<int64_t> row_of_there(row_of.here), chosen_there(chosen.here);
    const auto grads = [&](const T* at, const int64_t* bag, const S* factor, const int64_t* choice) {
      return GradRows{at,
                      kElement<T>,
                      width,
                      grad_step,
                      in_bags ? bag : nullptr,
                      kind == "of bags" ? factor : nullptr,
                      kind == "chosen" ? choice : nullptr};
    };
    const GradRows here = grads(data.here.data(), row_of.here.data(), factors.here.data(), chosen.here.data());
    const GradRows there = grads(data.there, row_of_there.there, factors.there, chosen_there.there);
    write_sums(here, there, true);
    write_sums(here, there, false);
    using Method = RowUpdate::Method;
    for (const Method update : {Method::kSgd, Method::kAdagrad, Method::kRowWiseAdagrad, Method::kAdam,
                                Method::kRowWiseAdam, Method::kLamb, Method::kRowWiseLamb}) {
      take_in({update, 0.1, 1e-3, 0.9, 0.99}, here, there);
      if (kind == "per id")
        take_in({update, 0.1, 1e-3, 0.9, 0.99, 0.5, 0.01, 0.02, {true, 7, 3, kFirstRow, 5}}, here, there);
    }
  }

  void write_sums(const GradRows& here, const GradRows& there, bool to_rows) {
    Both<T> results((to_rows ? kRows : n_groups) * width);
    if (to_rows) {
      sum_rows(here, here_groups(), rows.here.data(), results.here.data(), 0, kRows);
      cuda::sum_rows(there, groups(), rows.there, results.there, sum_scratch.there, nullptr);
    } else {
      sum_groups(here, here_groups(), results.here.data(), 0, n_groups);
      cuda::sum_groups(there, groups(), results.there, sum_scratch.there, nullptr);
    }
    compare("sums", results, kClose);
  }

  /// By totals found in passing, and by given ones.
  void take_in(const RowUpdate& update, const GradRows& here, const GradRows& there) {
    const std::string name = "update " + std::to_string(static_cast<int>(update.method));
    const auto piece_of = [&](const void* data, S* first, S* second) {
      Rows piece = rows_of(data);
      piece.first_row = 0;
      return UpdatedPiece{piece, {first, second}, update};
    };
    Both<S> first(numbers<S>(kRows * width, 0.5, 1)), second(numbers<S>(kRows * width, 0.5, 1));
    const UpdatedPiece whole = piece_of(table.here.data(), first.here.data(), second.here.data());
    const UpdatedPiece whole_there = piece_of(table.there, first.there, second.there);
    Both<double> squares(n_groups), pairs(2 * n_groups);
    grad_squares(whole, here, here_groups(), rows.here.data(), squares.here.data(), 0, n_groups);
    cuda::grad_squares(whole_there, there, groups(), rows.there, squares.there, sum_scratch.there, nullptr);
    compare(name + " squares", squares, 1e-4);
    if (is_lamb(update.method)) {
      lamb_squares(whole, here, here_groups(), rows.here.data(), {}, pairs.here.data(), 0, n_groups);
      cuda::lamb_squares(whole_there, there, groups(), rows.there, {}, pairs.there, sum_scratch.there, nullptr);
      compare(name + " LAMB's squares", pairs, 1e-4);
    }
    for (double& square : squares.here) square /= static_cast<double>(width);
    const Both<double> means(squares.here), ratios(numbers<double>(n_groups, 0.5, 2));
    const RowTotals given{means.here.data(), ratios.here.data()}, given_there{means.there, ratios.there};
    for (const bool are_given : {false, true}) {
      Both<T> updated(table.here);
      Both<S> one(first.here), two(second.here);
      const UpdatedPiece piece = piece_of(updated.here.data(), one.here.data(), two.here.data());
      const UpdatedPiece piece_there = piece_of(updated.there, one.there, two.there);
      update_rows({&piece, 1}, here, here_groups(), rows.here.data(), are_given ? given : RowTotals{}, 0, n_groups);
      cuda::update_rows({&piece_there, 1}, there, groups(), rows.there, are_given ? given_there : RowTotals{},
                        sum_scratch.there, nullptr);
      // A number on the edge between two roundings may be rounded to either.
      compare(name + " rows", updated, update.rounding.is_on ? 3 * kClose : kClose);
      compare(name + " first", one, kClose < 1e-5 ? 1e-10 : 1e-4);
      compare(name + " second", two, kClose < 1e-5 ? 1e-10 : 1e-4);
    }
  }

  /// The piece as three, the second without rows and with another update, against the whole.
  void in_pieces() {
    now += " in pieces";
    constexpr int64_t kParts[] = {0, 21, 21, kRows};
    const auto pieces_of = [&](const T* data, S* first, S* second) {
      std::vector<UpdatedPiece> pieces;
      for (int p = 0; p < 3; ++p) {
        const int64_t begin = kParts[p];
        RowUpdate update{p == 0 ? RowUpdate::Method::kRowWiseLamb : RowUpdate::Method::kAdam, 0.1 * (p + 1), 1e-3, 0.9,
                         0.99};
        update.rounding = {true, 5, 2, begin, 0};
        pieces.push_back({{const_cast<T*>(data) + begin * step, kElement<T>, begin, kParts[p + 1] - begin, width, step},
                          {first + begin * width, second + begin * width},
                          update});
      }
      return pieces;
    };
    const Both<T> grads(numbers<T>(n * width));
    Both<T> updated(table.here);
    Both<S> first(numbers<S>(kRows * width, 0.5, 1)), second(numbers<S>(kRows * width, 0.5, 1));
    const auto of_host = pieces_of(updated.here.data(), first.here.data(), second.here.data());
    const Both<UpdatedPiece> of_device(pieces_of(updated.there, first.there, second.there));
    const auto grads_at = [&](const T* data) {
      return GradRows{data, kElement<T>, width, width, nullptr, nullptr, nullptr};
    };
    update_rows({of_host.data(), 3}, grads_at(grads.here.data()), here_groups(), rows.here.data(), {}, 0, n_groups);
    cuda::update_rows({of_device.here.data(), 3, of_device.there}, grads_at(grads.there), groups(), rows.there, {},
                      sum_scratch.there, nullptr);
    compare("updated pieces", updated, 3 * kClose);
    compare("first of pieces", first, kClose < 1e-5 ? 1e-10 : 1e-4);
    compare("second of pieces", second, kClose < 1e-5 ? 1e-10 : 1e-4);
  }

  /// Bags of every length, empty ones too.
  void bags(bool weighted, int64_t padding) {
    now += " bags";
    std::vector<int64_t> offsets{0, 0};
    while (offsets.back() < n) offsets.push_back(std::min(n, offsets.back() + below(9) * below(9)));
    offsets.push_back(n);
    const auto n_bags = static_cast<int64_t>(offsets.size());
    const Both<int64_t> begins(offsets);
    const Both<T> weights(numbers<T>(n));
    const Bags here{begins.here.data(), n_bags, n, padding, weighted ? weights.here.data() : nullptr};
    const Bags there{begins.there, n_bags, n, padding, weighted ? weights.there : nullptr};
    Both<T> nan_table(table.here);
    if (!table.here.empty()) nan_table.here[table.here.size() / 2] = static_cast<T>(std::nanf(""));
    const Both<T> values(nan_table.here);
    for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kMax}) {
      const std::string name = "pool " + std::to_string(static_cast<int>(pooling));
      Both<T> results(n_bags * width);
      Both<int64_t> chosen(n_bags * width);
      const bool is_max = pooling == Pooling::kMax;
      pool(rows_of(values.here.data()), ids_of(ids.here.data()), here, pooling, results.here.data(),
           is_max ? chosen.here.data() : nullptr, 0, n_bags);
      cuda::pool(rows_of(values.there), ids_of(ids.there), there, pooling, results.there,
                 is_max ? chosen.there : nullptr, nullptr);
      compare(name, results, kClose);
      compare(name + " chosen", chosen);
      Both<int64_t> bag_of(n);
      Both<S> factors(n);
      spread_bags(here, ids_of(ids.here.data()), pooling, kElement<T>, bag_of.here.data(), factors.here.data(), 0,
                  n_bags);
      cuda::spread_bags(there, ids_of(ids.there), pooling, kElement<T>, bag_of.there, factors.there, nullptr);
      compare("spread_bags", bag_of);
      compare("spread_bags factors", factors, 1e-6);
      if (pooling != Pooling::kSum) continue;
      const Both<T> grads(numbers<T>(n_bags * step));
      const Both<int64_t> row_of(bag_of.here);
      Both<T> dots(n);
      dot_rows(rows_of(table.here.data()), ids_of(ids.here.data()), padding,
               GradRows{grads.here.data(), kElement<T>, width, step, row_of.here.data(), nullptr, nullptr},
               dots.here.data(), 0, n);
      cuda::dot_rows(rows_of(table.there), ids_of(ids.there), padding,
                     GradRows{grads.there, kElement<T>, width, step, row_of.there, nullptr, nullptr}, dots.there,
                     nullptr);
      compare("dot_rows", dots, kClose);
    }
  }

  void packed_rows() {
    now += " packed rows";
    std::vector<int32_t> words(kRows * packed_words(width));
    for (int32_t& word : words) word = static_cast<int32_t>(below(1 << 30));
    for (size_t row = 0; row < words.size(); row += packed_words(width)) {
      const float numbers[2] = {static_cast<float>(below(100)) / 2e4f, -static_cast<float>(below(100)) / 100};
      std::memcpy(&words[row + packed_words(width) - 2], numbers, sizeof numbers);
    }
    const Both<int32_t> both(words);
    Both<T> results(numbers<T>(n * step));
    look_up_packed({both.here.data(), kFirstRow, kRows, width}, ids_of(ids.here.data()), kElement<T>,
                   results.here.data(), step, 0, n);
    cuda::look_up_packed({both.there, kFirstRow, kRows, width}, ids_of(ids.there), kElement<T>, results.there, step,
                         nullptr);
    compare("unpacked", results, kClose);
    std::vector<int64_t> offsets{0, 0};
    while (offsets.back() < n) offsets.push_back(std::min(n, offsets.back() + below(9) * below(9)));
    const auto n_bags = static_cast<int64_t>(offsets.size());
    const Both<int64_t> begins(offsets);
    const Both<T> weights(numbers<T>(n));
    for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kMax}) {
      const bool is_weighted = pooling == Pooling::kSum;
      Both<T> pooled(n_bags * width);
      Both<int64_t> chosen(n_bags * width, -1);
      pool_packed({both.here.data(), kFirstRow, kRows, width}, ids_of(ids.here.data()),
                  {begins.here.data(), n_bags, n, 17, is_weighted ? weights.here.data() : nullptr}, pooling,
                  kElement<T>, pooled.here.data(), nullptr, 0, n_bags);
      cuda::pool_packed({both.there, kFirstRow, kRows, width}, ids_of(ids.there),
                        {begins.there, n_bags, n, 17, is_weighted ? weights.there : nullptr}, pooling, kElement<T>,
                        pooled.there, chosen.there, nullptr);
      compare("packed bags", pooled, kClose);
    }
  }

  void norms(double p) {
    now += " norm " + std::to_string(p);
    std::vector<int64_t> some;
    for (int64_t row = 0; row < kRows && n > 0; ++row)
      if (below(3) > 0) some.push_back(row);
    const auto n_some = static_cast<int64_t>(some.size());
    const Both<int64_t> chosen(some);
    Both<double> powers(n_some);
    row_powers(rows_of(table.here.data()), chosen.here.data(), p, powers.here.data(), 0, n_some);
    cuda::row_powers(rows_of(table.there), chosen.there, n_some, p, powers.there, nullptr);
    compare("powers", powers, 1e-12);
    const double most = p == 2 ? std::sqrt(static_cast<double>(width) / 3) : 0.9;  // about half of the rows are longer
    Both<T> shortened(table.here);
    shorten_rows(rows_of(shortened.here.data()), chosen.here.data(), p, most, powers.here.data(), 0, n_some);
    const Both<double> same_powers(powers.here);
    cuda::shorten_rows(rows_of(shortened.there), chosen.there, n_some, p, most, same_powers.there, nullptr);
    compare("shortened", shortened, kClose);
  }
};

template <class T, class Id>
void run_cases() {
  const int64_t widths[] = {1, 7, 64, 100, 128, 130, 264};
  const char* kinds[] = {"uniform", "Zipf", "one"};
  const int64_t paddings[] = {0, 8, 3};  // between rows: none; aligned, the rows themselves not; not aligned
  int turn = 0;
  for (const int64_t width : widths)
    for (const int64_t n : {0, 1, 128, 700}) {
      const char* kind = kinds[turn % 3];
      const int64_t padding = paddings[turn++ / 3 % 3];
      const std::string base = "width " + std::to_string(width) + " + " + std::to_string(padding) + ", " +
                               std::to_string(n) + " ids " + kind + ":";
      Case<T, Id> c(kind, n, width, padding, padding == 8 ? 1 : 0);
      now = base;
      c.look_up_rows(turn % 2 == 0 ? Miss::kZero : Miss::kKeep, width + padding);
      now = base;
      c.group(turn % 2 == 0 ? -1 : kFirstRow + 2);
      for (const char* grads : {"per id", "of bags", "chosen", "one"}) {
        now = base;
        c.sums(grads);
      }
      now = base;
      c.in_pieces();
      now = base;
      c.packed_rows();
      now = base;
      c.bags(turn % 2 == 0, turn % 4 < 2 ? -1 : 17);
      const double norms[] = {1, 2, 3, std::numeric_limits<double>::infinity(), 0, 2.5};
      now = base;
      c.norms(norms[turn % 6]);
    }
}

template <class Types>
struct CudaKernelsTest : testing::Test {
  void SetUp() override {
    int n_devices = 0;
    if (cudaGetDeviceCount(&n_devices) != cudaSuccess || n_devices == 0) GTEST_SKIP() << "no CUDA device";
  }
};
using Types = testing::Types<std::pair<float, int64_t>, std::pair<float, int32_t>, std::pair<double, int64_t>,
                             std::pair<__nv_bfloat16, int32_t>, std::pair<__half, int64_t>>;
TYPED_TEST_SUITE(CudaKernelsTest, Types);

TYPED_TEST(CudaKernelsTest, GiveWhatTheCpusGive) {
  run_cases<typename TypeParam::first_type, typename TypeParam::second_type>();
}

}  // namespace
