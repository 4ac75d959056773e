// pictures/text_canvas.h: a rectangle of characters to draw on, with a background colour per rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// Rows count from the top, columns from the left. Drawing outside of the rectangle has no effect.
class TextCanvas {
 public:
  TextCanvas(int64_t n_rows, int64_t n_columns);

  void put(int64_t row, int64_t column, char32_t glyph);
  void text(int64_t row, int64_t column, std::string_view ascii);
  /// Gives a place the background colour of `rank`.
  void paint(int64_t row, int64_t column, int64_t rank);

  /// The lines in UTF-8, each with a newline and without trailing blanks; with colours if `color`.
  std::string to_string(bool color) const;

 private:
  struct Place {
    char32_t glyph = U' ';
    int64_t rank = -1;  // of the background colour; -1: none
  };
  std::vector<std::vector<Place>> rows_;
};

}  // namespace shardwise::detail
