#include "pictures/picture_formats.h"
#include "pictures/svg_figures.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwise::detail {
namespace {

constexpr size_t kSlicesDrawn = 6;
constexpr int64_t kRowWidth = 1060;  // of slices side by side
constexpr int64_t kGap = 24;
constexpr size_t kLongestLine = 130;  // characters
constexpr int64_t kCaptionWidth = 72;

/// Puts blocks below and beside each other.
class SvgColumn {
 public:
  void line(std::string_view words, std::string_view attributes = R"( class="sw-ink")") {
    size_t n = std::min(words.size(), kLongestLine);
    while (n < words.size() && n > 0 && (words[n] & 0xC0) == 0x80) --n;  // names of mesh dims may be any text in UTF-8
    std::string shown(words.substr(0, n));
    if (n < words.size()) shown += "...";
    y_ += kLineHeight;
    out_.text(0, y_ - 5, shown, attributes);
    width_ = std::max(width_, text_width(shown));
    right_ = 0;
  }

  void below(const SvgBlock& block) {
    begin_ = y_;
    right_ = 0;
    beside(block);
  }

  /// Places `block` to the right of the last block, if there is room.
  void beside(const SvgBlock& block) {
    if (right_ > 0 && right_ + block.width > kRowWidth) {
      begin_ = y_;
      right_ = 0;
    }
    out_.place(block, right_, begin_ + 4);
    right_ += block.width + kGap;
    width_ = std::max(width_, right_ - kGap);
    y_ = std::max(y_, begin_ + 4 + block.height);
  }

  void space() { y_ += kGap / 2; }
  SvgBlock take() { return out_.take(width_, y_); }

 private:
  SvgWriter out_;
  int64_t y_ = 0, width_ = 0;
  int64_t begin_ = 0, right_ = 0;  // top of the last block, and where the next one beside it begins
};

SvgBlock svg_of_slice(const TensorFigure& figure, const Slice& slice) {
  SvgColumn column;
  const std::string where = heading(slice, figure.sizes);
  if (slice.cells.empty()) {
    column.line(fmt::format("{} left out", where), R"( class="sw-faint")");
  } else {
    column.line(where);
    column.below(svg_of(figure, slice));
  }
  return column.take();
}

SvgBlock svg_under_heading(const Figure& figure) {
  const SvgBlock block = std::visit([](const auto& content) { return svg_of(content); }, figure.content);
  if (figure.heading.empty()) return block;
  SvgColumn column;
  column.line(figure.heading, R"( class="sw-ink sw-head")");
  column.below(block);
  return column.take();
}

}  // namespace

SvgBlock svg_of(const TensorFigure& figure) {
  const auto& slices = figure.slices;
  SvgColumn column;
  column.line(caption(figure, kCaptionWidth));
  if (slices.empty()) column.line("no elements, nothing to draw", R"( class="sw-faint")");
  if (slices.size() == 1 && figure.sizes.size() <= 2) {
    column.below(svg_of(figure, slices[0]));
  } else {
    for (size_t i = 0; i < std::min(slices.size(), kSlicesDrawn); ++i) {
      const SvgBlock block = svg_of_slice(figure, slices[i]);
      i % 2 == 0 ? column.below(block) : column.beside(block);
    }
  }
  if (slices.size() > kSlicesDrawn)
    column.line(fmt::format("... slices from {} to {} left out", heading(slices[kSlicesDrawn], figure.sizes),
                            heading(slices.back(), figure.sizes)),
                R"( class="sw-faint")");
  if (const std::string note = note_on_terms(figure); !note.empty()) column.line(note, R"( class="sw-faint")");
  return column.take();
}

std::string draw_svg(const Picture& picture, const PictureOptions& /*options*/) {
  SvgColumn column;
  if (!picture.title.empty()) column.line(picture.title, R"( class="sw-ink sw-head")");
  for (const Figure& figure : picture.figures) {
    if (figure.is_beside) {
      column.beside(svg_under_heading(figure));
    } else {
      column.space();
      column.below(svg_under_heading(figure));
    }
  }
  return svg_document(column.take(), svg_style());
}

}  // namespace shardwise::detail
