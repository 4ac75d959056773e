// pictures/svg_figures.h: each kind of figure as a piece of an SVG drawing.
//
// Cells are groups of class sw-cell with data-ranks="0-3,8", the ranks of the cell, and a title of lines "name: value".
#pragma once

#include "pictures/picture.h"
#include "pictures/svg_writer.h"

namespace shardwise::detail {

/// The rows and columns of one slice, with a coordinate at each line; stripes for the ranks that share a cell, a stack of sheets for
/// the terms of a Partial tensor.
SvgBlock svg_of(const TensorFigure& figure, const Slice& slice);
/// The first slices of the figure, under its caption.
SvgBlock svg_of(const TensorFigure& figure);
SvgBlock svg_of(const MeshFigure& mesh);
/// A text line per line of the table, with its bar. If there are more than some dozens, one line replaces the last ones.
SvgBlock svg_of(const TableFigure& table);
/// A heat map: a row per sending block of ranks, a column per receiving block.
SvgBlock svg_of(const TrafficFigure& traffic);

}  // namespace shardwise::detail
