#include "text/table.h"

#include "text/rank_names.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwise::detail {

namespace {

/// Characters, not bytes: those of UTF-8 that start one.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

TextTable::TextTable(std::vector<Column> columns, size_t indent) : columns_(std::move(columns)), indent_(indent) {}

void TextTable::add(std::vector<std::string> words, std::string color) {
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

std::string with_commas(int64_t number) {
  std::string digits = fmt::format("{}", number);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

}  // namespace shardwise::detail
