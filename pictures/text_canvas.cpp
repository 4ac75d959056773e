#include "pictures/text_canvas.h"

#include "text/rank_names.h"

namespace shardwise::detail {
namespace {

void append_utf8(std::string& out, char32_t glyph) {
  if (glyph < 0x80) {
    out += static_cast<char>(glyph);
  } else {  // our drawing characters are in [U+0800, U+FFFF]: three bytes
    out += static_cast<char>(0xE0 | (glyph >> 12));
    out += static_cast<char>(0x80 | ((glyph >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (glyph & 0x3F));
  }
}

}  // namespace

TextCanvas::TextCanvas(int64_t n_rows, int64_t n_columns) : rows_(n_rows, std::vector<Place>(n_columns)) {}

void TextCanvas::put(int64_t row, int64_t column, char32_t glyph) {
  if (row < 0 || row >= static_cast<int64_t>(rows_.size())) return;
  if (column < 0 || column >= static_cast<int64_t>(rows_[row].size())) return;
  rows_[row][column].glyph = glyph;
}

void TextCanvas::text(int64_t row, int64_t column, std::string_view ascii) {
  for (const char letter : ascii) put(row, column++, static_cast<unsigned char>(letter));
}

void TextCanvas::paint(int64_t row, int64_t column, int64_t rank) { rows_.at(row).at(column).rank = rank; }

std::string TextCanvas::to_string(bool color) const {
  std::string out;
  for (const auto& row : rows_) {
    size_t end = row.size();
    while (end > 0 && row[end - 1].glyph == U' ' && (!color || row[end - 1].rank < 0)) --end;
    int64_t current = -1;
    for (size_t column = 0; column < end; ++column) {
      const int64_t rank = color ? row[column].rank : -1;
      if (rank != current) {
        if (current >= 0) out += kPlain;
        if (rank >= 0) out += background(rank);
        current = rank;
      }
      append_utf8(out, row[column].glyph);
    }
    if (current >= 0) out += kPlain;
    out += '\n';
  }
  return out;
}

}  // namespace shardwise::detail
