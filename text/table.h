// text/table.h: text in aligned columns.
//
//   rank  shape    bytes
//      0  [1, 16]     64
//      1  [3, 16]    192
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// The number of terminal columns that UTF-8 text takes: 2 for a wide character, 0 for a mark on the previous letter.
size_t width_of(std::string_view text);

enum class Align : uint8_t { kLeft, kRight };

class TextTable {
 public:
  struct Column {
    std::string_view head;
    Align align = Align::kLeft;
  };

  /// Each line begins with `indent` blanks.
  explicit TextTable(std::vector<Column> columns, size_t indent = 0);

  /// Adds a line with one text per column. `color`, an ANSI sequence, starts before the first text and ends after it.
  void add(std::vector<std::string> words, std::string color = {});
  /// A line of free text under the second column.
  void add_note(std::string note);

  /// The heads, then the lines, each ended by a newline and without trailing blanks.
  std::string to_string() const;

 private:
  struct Line {
    std::vector<std::string> words;
    std::string color, note;  // a note replaces the words
  };
  std::string line_of(const Line& line, const std::vector<size_t>& widths) const;

  std::vector<Column> columns_;
  size_t indent_;
  std::vector<Line> lines_;
};

/// "46,881,792".
std::string with_commas(int64_t number);

}  // namespace shardwise::detail
