#include "text/table.h"

#include "text/rank_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace shardwise::detail {
namespace {

// The first and the last letters of blocks: the wide characters of Unicode 15's EastAsianWidth.txt, in whole blocks.
constexpr std::array<char32_t, 30> kWide = {0x1100,  0x115F,  0x2E80,  0x303E,  0x3041,  0x33FF, 0x3400, 0x4DBF,
                                            0x4E00,  0x9FFF,  0xA000,  0xA4CF,  0xA960,  0xA97F, 0xAC00, 0xD7A3,
                                            0xF900,  0xFAFF,  0xFE30,  0xFE6F,  0xFF00,  0xFF60, 0xFFE0, 0xFFE6,
                                            0x1F300, 0x1F64F, 0x1F680, 0x1FAFF, 0x20000, 0x3FFFD};
// Combining marks, joiners and variation selectors.
constexpr std::array<char32_t, 14> kWithoutWidth = {0x0300, 0x036F, 0x1AB0, 0x1AFF, 0x1DC0, 0x1DFF, 0x200B,
                                                    0x200F, 0x20D0, 0x20FF, 0xFE00, 0xFE0F, 0xFE20, 0xFE2F};

template <size_t kN>
bool is_in(const std::array<char32_t, kN>& blocks, char32_t letter) {
  for (size_t i = 0; i < kN; i += 2)
    if (blocks[i] <= letter && letter <= blocks[i + 1]) return true;
  return false;
}

bool continues(char c) { return (c & 0xC0) == 0x80; }

/// The text on one line: control characters would shift the columns after it.
std::string in_line(std::string word) {
  std::replace_if(word.begin(), word.end(), [](char c) { return (c >= 0 && c < 0x20) || c == 0x7F; }, '?');
  return word;
}

}  // namespace

size_t width_of(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    char32_t letter = first < 0x80 ? first : first < 0xE0 ? first & 0x1F : first < 0xF0 ? first & 0x0F : first & 0x07;
    for (++i; i < text.size() && continues(text[i]); ++i) letter = letter << 6 | (text[i] & 0x3F);
    width += letter < 0x300 ? 1 : is_in(kWithoutWidth, letter) ? 0 : is_in(kWide, letter) ? 2 : 1;
  }
  return width;
}

TextTable::TextTable(std::vector<Column> columns, size_t indent) : columns_(std::move(columns)), indent_(indent) {}

void TextTable::add(std::vector<std::string> words, std::string color) {
  for (std::string& word : words) word = in_line(std::move(word));
  lines_.push_back({std::move(words), std::move(color), ""});
}

void TextTable::add_note(std::string note) { lines_.push_back({{}, "", std::move(note)}); }

std::string TextTable::line_of(const Line& line, const std::vector<size_t>& widths) const {
  std::string text(indent_, ' ');
  for (size_t i = 0; i < columns_.size(); ++i) {
    const std::string& word = line.words[i];
    const std::string blanks(widths[i] - width_of(word), ' ');
    const std::string cell = columns_[i].align == Align::kRight ? blanks + word : word + blanks;
    text += (i == 0 && !line.color.empty() ? line.color + cell + kPlain : cell) + "  ";
  }
  return text.erase(text.find_last_not_of(' ') + 1) + "\n";
}

std::string TextTable::to_string() const {
  Line heads;
  std::vector<size_t> widths;
  for (const Column& column : columns_) {
    heads.words.emplace_back(column.head);
    widths.push_back(width_of(column.head));
  }
  for (const Line& line : lines_)
    for (size_t i = 0; i < line.words.size(); ++i) widths[i] = std::max(widths[i], width_of(line.words[i]));
  std::string text = line_of(heads, widths);
  for (const Line& line : lines_)
    text += line.note.empty() ? line_of(line, widths) : std::string(indent_ + widths[0] + 2, ' ') + line.note + "\n";
  return text;
}

std::string with_commas(int64_t number) { return fmt::format("{}", fmt::group_digits(number)); }

}  // namespace shardwise::detail
