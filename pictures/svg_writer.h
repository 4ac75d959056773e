// pictures/svg_writer.h: elements of SVG as text. Whole numbers only, so that equal pictures are equal text everywhere.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// `text` with & < > " as entities.
std::string escaped(std::string_view text);

/// The width of `text` in pixels, in the monospaced font of pictures.
int64_t text_width(std::string_view text);

inline constexpr int64_t kLineHeight = 18;  // of text, in pixels

/// A part of a drawing, with its upper left corner at (0, 0).
struct SvgBlock {
  int64_t width = 0, height = 0;
  std::string body;
};

/// Writes elements one after the other. Attributes are written unchanged, with the leading blank: ` class="sw-ink"`.
class SvgWriter {
 public:
  enum class Anchor : uint8_t { kStart, kMiddle, kEnd };

  void rect(int64_t x, int64_t y, int64_t width, int64_t height, std::string_view attributes);
  /// `y`: of the baseline.
  void text(int64_t x, int64_t y, std::string_view words, std::string_view attributes = R"( class="sw-ink")",
            Anchor anchor = Anchor::kStart);
  /// Begins a group; `title` is shown while the mouse is over it.
  void open_group(std::string_view attributes, std::string_view title = {});
  /// Begins the group of a cell that `ranks` hold.
  void open_cell(c10::IntArrayRef ranks, std::string_view title = {});
  void close_group();
  /// Places `block` with its corner at (x, y).
  void place(const SvgBlock& block, int64_t x, int64_t y);

  SvgBlock take(int64_t width, int64_t height);

 private:
  std::string out_;
};

/// An <svg> element of the block, with a margin. `style`: its CSS rules, or "" if the page has them.
std::string svg_document(const SvgBlock& block, std::string_view style);

/// The CSS rules of the classes in drawings, light or dark by the viewer's preference.
std::string svg_style();
/// The same for a page; its root may have data-theme="light" or "dark".
std::string page_style();

}  // namespace shardwise::detail
