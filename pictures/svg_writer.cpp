#include "pictures/svg_writer.h"

#include "text/rank_names.h"
#include "text/table.h"

#include <fmt/format.h>

#include <array>

namespace shardwise::detail {
namespace {

constexpr int64_t kMargin = 8;

/// A class, and its colour on light and on dark pages.
struct Tone {
  std::string_view selector, property, light, dark;
};

constexpr std::array kTonesOfClasses = {
    Tone{".sw-ink", "fill", "#1f2328", "#e6edf3"},    // text
    Tone{".sw-faint", "fill", "#59636e", "#9198a1"},  // coordinates and notes
    Tone{".sw-cell rect", "stroke", "#1f2328", "#0d1117"},
    Tone{".sw-gap", "fill", "#eff2f5", "#212830"},  // parts left out
    Tone{".sw-gap", "stroke", "#d1d9e0", "#3d444d"},
    Tone{".sw-heat", "fill", "#0969da", "#58a6ff"},
    Tone{".sw-on-heat", "fill", "#ffffff", "#0d1117"},
    Tone{".sw-frame", "stroke", "#afb8c1", "#3d444d"},
    Tone{".sw-bar", "fill", "#8c959f", "#6e7681"},
};

constexpr std::string_view kBase =
    "svg.sw text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    "svg.sw .sw-name{fill:#1f2328}svg.sw .sw-head{font-weight:600}";

std::string rules(std::string_view prefix, bool is_dark) {
  std::string text;
  for (const Tone& tone : kTonesOfClasses)
    text += fmt::format("{}{}{{{}:{}}}", prefix, tone.selector, tone.property, is_dark ? tone.dark : tone.light);
  return text;
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // XML has no other control characters.
        out += c >= 0 && c < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return out;
}

int64_t text_width(std::string_view text) { return (static_cast<int64_t>(width_of(text)) * 73 + 9) / 10; }

void SvgWriter::rect(int64_t x, int64_t y, int64_t width, int64_t height, std::string_view attributes) {
  out_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{}/>\n", x, y, width, height, attributes);
}

void SvgWriter::text(int64_t x, int64_t y, std::string_view words, std::string_view attributes, Anchor anchor) {
  constexpr std::array<std::string_view, 3> kAnchors = {"", R"( text-anchor="middle")", R"( text-anchor="end")"};
  out_ += fmt::format("<text x=\"{}\" y=\"{}\"{}{}>{}</text>\n", x, y, kAnchors[static_cast<size_t>(anchor)],
                      attributes, escaped(words));
}

void SvgWriter::open_group(std::string_view attributes, std::string_view title) {
  out_ += fmt::format("<g{}>", attributes);
  if (!title.empty()) out_ += fmt::format("<title>{}</title>", escaped(title));
  out_ += '\n';
}

void SvgWriter::open_cell(c10::IntArrayRef ranks, std::string_view title) {
  open_group(fmt::format(" class=\"sw-cell\" data-ranks=\"{}\"", rank_runs(ranks)), title);
}

void SvgWriter::close_group() { out_ += "</g>\n"; }

void SvgWriter::place(const SvgBlock& block, int64_t x, int64_t y) {
  out_ += fmt::format("<g transform=\"translate({},{})\">\n{}</g>\n", x, y, block.body);
}

SvgBlock SvgWriter::take(int64_t width, int64_t height) { return {width, height, std::move(out_)}; }

std::string svg_document(const SvgBlock& block, std::string_view style) {
  const int64_t width = block.width + 2 * kMargin, height = block.height + 2 * kMargin;
  std::string text =
      fmt::format(R"(<svg class="sw" xmlns="http://www.w3.org/2000/svg" viewBox="{} {} {} {}" width="{}" height="{}">)"
                  "\n",
                  -kMargin, -kMargin, width, height, width, height);
  if (!style.empty()) text += fmt::format("<style>{}</style>\n", style);
  return text + block.body + "</svg>\n";
}

std::string svg_style() {
  return std::string(kBase) + rules("", false) + "@media (prefers-color-scheme:dark){" + rules("", true) + "}";
}

std::string page_style() {
  return std::string(kBase) + rules("", false) + "@media (prefers-color-scheme:dark){" +
         rules(":root:not([data-theme=light]) ", true) + "}" + rules(":root[data-theme=dark] ", true);
}

}  // namespace shardwise::detail
