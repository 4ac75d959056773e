#include "wrappers/embedding_plan/plan_json.h"

#include "text/check.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

namespace shardwise {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFormat = "shardwise.embedding_plan";
constexpr int64_t kVersion = 1;

/// A value within a JSON text, and its path for errors.
class Place {
 public:
  Place(const Json& value, std::string path) : value_(value), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& needed) const {
    std::string shown = value_.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    SW_CHECK_VALUE(false, "[EmbeddingPlan.from_json] {} is {}: {} is needed.", path_, shown, needed);
  }

  bool has(const char* key) const { return value_.contains(key); }
  bool is_list() const { return value_.is_array(); }
  size_t size() const { return value_.size(); }

  /// Checks that the value is an object without other keys than these.
  const Place& object(std::initializer_list<std::string_view> keys) const {
    if (!value_.is_object()) refuse("an object");
    for (const auto& [key, value] : value_.items())
      SW_CHECK_VALUE(std::ranges::find(keys, key) != keys.end(),
                     "[EmbeddingPlan.from_json] {} has \"{}\", which is not known. Use {}.", path_, key,
                     fmt::join(keys.begin(), keys.end(), ", "));
    return *this;
  }
  Place at(const char* key) const {
    if (!value_.is_object()) refuse("an object");
    SW_CHECK_VALUE(value_.contains(key), "[EmbeddingPlan.from_json] {} has no \"{}\". Give it one.", path_, key);
    return {value_.at(key), fmt::format("{}.{}", path_, key)};
  }
  const Place& list() const {
    if (!value_.is_array()) refuse("a list");
    return *this;
  }
  Place at(size_t i) const { return {value_.at(i), fmt::format("{}[{}]", path_, i)}; }

  int64_t integer() const {
    if (!value_.is_number_integer()) refuse("a whole number");
    if (value_.is_number_unsigned() && value_.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      refuse("a number below 2^63");
    return value_.get<int64_t>();
  }
  double number() const {
    if (!value_.is_number()) refuse("a number");
    return value_.get<double>();
  }
  std::string text() const {
    if (!value_.is_string()) refuse("a text");
    return value_.get<std::string>();
  }
  Interval interval() const {
    if (!value_.is_array() || value_.size() != 2) refuse("a pair [begin, end]");
    return {at(size_t{0}).integer(), at(size_t{1}).integer()};
  }
  /// The result of `read` for the text; its errors are prefixed with this path.
  template <class Read>
  auto word(const Read& read) const {
    const std::string name = text();
    try {
      return read(name);
    } catch (const c10::ValueError& error) {
      SW_CHECK_VALUE(false, "[EmbeddingPlan.from_json] {}: {}", path_, error.msg());
    }
  }

 private:
  const Json& value_;
  std::string path_;
};

Json parse(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::out_of_range& error) {
    SW_CHECK_VALUE(false,
                   "[EmbeddingPlan.from_json] a number is too large for a double. The parser says: {}. Give the number "
                   "that is meant.",
                   error.what());
  } catch (const Json::parse_error& error) {
    const size_t at = std::min(error.byte, text.size());
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    SW_CHECK_VALUE(false, "[EmbeddingPlan.from_json] line {}, byte {}: this is no JSON. The parser says: {}", line,
                   error.byte, error.what());
  }
}

Json json_of(const TableConfig& table) {
  return {{"name", table.name},
          {"n_rows", table.n_rows},
          {"n_columns", table.n_columns},
          {"dtype", table.dtype},
          {"combiner", to_string(table.combiner)},
          {"ids_per_sample", table.ids_per_sample},
          {"skew", table.skew}};
}

TableConfig table_of(const Place& place) {
  place.object({"name", "n_rows", "n_columns", "dtype", "combiner", "ids_per_sample", "skew"});
  TableConfig table{place.at("name").text(), place.at("n_rows").integer(), place.at("n_columns").integer()};
  if (place.has("dtype")) {
    table.dtype = place.at("dtype").text();
    place.at("dtype").word([](const std::string& name) { return element_bytes(name); });
  }
  if (place.has("combiner")) table.combiner = place.at("combiner").word(&combiner_from_string);
  if (place.has("ids_per_sample")) table.ids_per_sample = place.at("ids_per_sample").number();
  if (place.has("skew")) table.skew = place.at("skew").number();
  return table;
}

std::vector<TableConfig> tables_of(const Place& place) {
  std::vector<TableConfig> tables;
  for (size_t i = 0; i < place.list().size(); ++i) tables.push_back(table_of(place.at(i)));
  return tables;
}

Json json_of(const EmbeddingPlanOptions& options) {
  Json links = Json::array();
  for (const Link& link : options.links)
    links.push_back({{"latency_us", link.latency_us}, {"gb_per_s", link.gb_per_s}});
  Json result{{"strategy", to_string(options.strategy)}};
  const auto add = [&](const char* name, const std::optional<int64_t>& number) {
    if (number) result[name] = *number;
  };
  add("column_slice_threshold", options.column_slice_threshold);
  add("row_slice_threshold", options.row_slice_threshold);
  add("data_parallel_threshold", options.data_parallel_threshold);
  add("memory_per_rank", options.memory_per_rank);
  result["batch_per_rank"] = options.batch_per_rank;
  result["state_bytes_per_element"] = options.state_bytes_per_element;
  result["state_bytes_per_row"] = options.state_bytes_per_row;
  result["mesh_shape"] = options.mesh_shape;
  result["links"] = std::move(links);
  result["machine"] = {{"memory_gb_per_s", options.machine.memory_gb_per_s},
                       {"ns_per_row", options.machine.ns_per_row},
                       {"ns_per_segment", options.machine.ns_per_segment}};
  return result;
}

EmbeddingPlanOptions options_of(const Place& place) {
  place.object({"strategy", "column_slice_threshold", "row_slice_threshold", "data_parallel_threshold",
                "memory_per_rank", "batch_per_rank", "state_bytes_per_element", "state_bytes_per_row", "mesh_shape",
                "links", "machine"});
  const auto maybe = [&](const char* name) {
    return place.has(name) ? std::optional(place.at(name).integer()) : std::nullopt;
  };
  EmbeddingPlanOptions options;
  options.strategy = place.at("strategy").word(&strategy_from_string);
  options.column_slice_threshold = maybe("column_slice_threshold");
  options.row_slice_threshold = maybe("row_slice_threshold");
  options.data_parallel_threshold = maybe("data_parallel_threshold");
  options.memory_per_rank = maybe("memory_per_rank");
  options.batch_per_rank = place.at("batch_per_rank").integer();
  options.state_bytes_per_element = place.at("state_bytes_per_element").integer();
  options.state_bytes_per_row = place.at("state_bytes_per_row").integer();
  const Place mesh_shape = place.at("mesh_shape"), links = place.at("links"), machine = place.at("machine");
  for (size_t i = 0; i < mesh_shape.list().size(); ++i) options.mesh_shape.push_back(mesh_shape.at(i).integer());
  for (size_t i = 0; i < links.list().size(); ++i) {
    const Place link = links.at(i);
    link.object({"latency_us", "gb_per_s"});
    options.links.push_back({link.at("latency_us").number(), link.at("gb_per_s").number()});
  }
  machine.object({"memory_gb_per_s", "ns_per_row", "ns_per_segment"});
  options.machine = {machine.at("memory_gb_per_s").number(), machine.at("ns_per_row").number(),
                     machine.at("ns_per_segment").number()};
  return options;
}

bool is_balanced(const TableConfig& table, const TablePlan& plan, int64_t n_ranks) {
  if (plan.treatment != Treatment::kRowParallel || static_cast<int64_t>(plan.slices.size()) != n_ranks) return false;
  int64_t rank = 0;
  for (const TableSlice& slice : plan.slices) {
    if (slice.rank != rank || slice.rows != balanced_part(table.n_rows, n_ranks, rank)) return false;
    ++rank;
  }
  return true;
}

Json json_of(const TableConfig& table, const TablePlan& plan, int64_t n_ranks) {
  Json result{{"treatment", to_string(plan.treatment)}, {"reason", plan.reason}};
  if (plan.treatment == Treatment::kReplicated || is_balanced(table, plan, n_ranks)) return result;
  result["slices"] = Json::array();
  for (const TableSlice& slice : plan.slices) {
    Json box{{"rank", slice.rank}, {"columns", {slice.columns.begin, slice.columns.end}}};
    if (slice.rows != Interval{0, table.n_rows}) box["rows"] = {slice.rows.begin, slice.rows.end};
    result["slices"].push_back(std::move(box));
  }
  return result;
}

TablePlan plan_of(const Place& place, size_t t, const TableConfig& table) {
  place.object({"treatment", "reason", "slices"});
  TablePlan plan;
  plan.treatment = place.at("treatment").word(&treatment_from_string);
  plan.reason = place.at("reason").text();
  if (!place.has("slices")) return plan;
  std::vector<TableSlice> slices;
  const Place all = place.at("slices");
  for (size_t i = 0; i < all.list().size(); ++i) {
    const Place slice = all.at(i);
    slice.object({"rank", "rows", "columns"});
    const Interval rows = slice.has("rows") ? slice.at("rows").interval() : Interval{0, table.n_rows};
    slices.push_back({t, slice.at("rank").integer(), rows, slice.at("columns").interval()});
  }
  plan.slices = std::move(slices);
  return plan;
}

}  // namespace

std::string to_json(const EmbeddingPlan& plan) {
  Json tables = Json::array(), plans = Json::array();
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    tables.push_back(json_of(plan.tables[t]));
    plans.push_back(json_of(plan.tables[t], plan.table_plans[t], plan.n_ranks));
  }
  const Json result{{"format", kFormat},           {"version", kVersion},
                    {"n_ranks", plan.n_ranks},     {"options", json_of(plan.options)},
                    {"tables", std::move(tables)}, {"plans", std::move(plans)}};
  return result.dump(1) + "\n";
}

EmbeddingPlan embedding_plan_from_json(std::string_view text) {
  const Json json = parse(text);
  const Place top(json, "$");
  if (top.at("format").text() != kFormat) top.at("format").refuse(fmt::format("\"{}\"", kFormat));
  if (top.at("version").integer() != kVersion) top.at("version").refuse(fmt::format("{}", kVersion));
  top.object({"format", "version", "n_ranks", "options", "tables", "plans"});
  std::vector<TableConfig> tables = tables_of(top.at("tables"));
  const Place plans = top.at("plans");
  if (plans.list().size() != tables.size())
    plans.refuse(fmt::format("a list of {} plans, one per table", tables.size()));
  std::vector<TablePlan> table_plans;
  for (size_t t = 0; t < tables.size(); ++t) table_plans.push_back(plan_of(plans.at(t), t, tables[t]));
  return arrange_embeddings(tables, top.at("n_ranks").integer(), options_of(top.at("options")), std::move(table_plans));
}

std::vector<TableConfig> tables_from_json(std::string_view text) {
  const Json json = parse(text);
  const Place top(json, "$");
  std::vector<TableConfig> tables = tables_of(top.is_list() ? top : top.at("tables"));
  check_tables(tables);
  return tables;
}

void save_embedding_plan(const EmbeddingPlan& plan, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code unknown;
  std::string file = path;
  if (fs::is_symlink(path, unknown))  // the file behind the link is replaced, not the link
    file = fs::weakly_canonical(fs::path(path).parent_path() / fs::read_symlink(path, unknown), unknown).string();
  const bool is_device = fs::exists(file, unknown) && !fs::is_regular_file(file, unknown);
  const std::string part = is_device ? file : file + ".part", text = to_json(plan);
  errno = 0;
  std::ofstream out(part, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  const bool is_saved = out.good() && (is_device || std::rename(part.c_str(), file.c_str()) == 0);
  const int reason = errno;
  if (!is_saved && !is_device) std::remove(part.c_str());
  SW_CHECK_VALUE(is_saved, "[EmbeddingPlan.save] {} cannot be written: {}. Give a writable path.", path,
                 std::strerror(reason));
}

EmbeddingPlan load_embedding_plan(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (file) text << file.rdbuf();
  SW_CHECK_VALUE(file && text, "[EmbeddingPlan.load] {} cannot be read: {}. Give the path of a saved plan.", path,
                 std::strerror(errno));
  return embedding_plan_from_json(text.str());
}

}  // namespace shardwise
