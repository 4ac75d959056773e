// pictures/picture.h: the content of a picture of layouts, meshes and moves, as a value that every format draws in its way.
//
//   Layout, RankGrid or Plan -> picture_of -> Picture (figures: values) -> a format of pictures/picture_formats.h -> text
#pragma once

#include "pictures/tensor_figure.h"
#include "plans/traffic_matrix.h"

#include <string>
#include <variant>
#include <vector>

namespace shardwise {

/// The ranks of a mesh, in their places.
struct MeshFigure {
  RankGrid grid;
  std::vector<std::string> dim_names;  // one per mesh dim, or none
};

/// A table: lines of text under heads.
struct TableFigure {
  struct Head {
    std::string text;
    bool is_number = false;  // aligned to the right of its column
  };
  struct Line {
    std::vector<std::string> words;  // one per head; none in a note
    int64_t rank = -1;               // the line has the colour of this rank; -1: none
    double fraction = -1;            // length of the bar beside the line, relative to the longest; below 0: no bar
    std::string note;                // in place of words
    int64_t detail = -1;             // index in Picture::details of the figure that the line opens
  };
  std::vector<Head> heads;
  std::vector<Line> lines;
  std::vector<std::string> notes;  // below the table
};

/// Bytes sent between ranks.
struct TrafficFigure {
  TrafficMatrix matrix;
};

struct Figure {
  std::string heading;     // a line above the figure, or ""
  bool is_beside = false;  // stands beside the previous figure, if the format has room for that
  std::variant<TensorFigure, MeshFigure, TableFigure, TrafficFigure> content;
};

struct Picture {
  std::string title;  // one line
  std::vector<Figure> figures;
  std::vector<TensorFigure> details;  // opened by lines of tables, if the format can do that
};

struct PictureOptions {
  int64_t element_bytes = 4;    // bytes of one element
  bool color = false;           // text: ANSI background colours, one per rank
  int64_t max_width = 100;      // text: columns of the terminal
  std::string format = "text";  // a name of pictures/picture_formats.h
};

/// The grid of the distinct boxes, each naming its ranks; the mesh beside it; a line per rank (pieces' shape, offsets, bytes, share of the total),
/// and the imbalance (largest rank's bytes over the mean). Tensors of more than 2 dims are slices of their last two. `dim_names`: names of the mesh
/// dims, one per dim, or none. Throws: c10::ValueError for another number of names, as all functions below.
Picture picture_of(const Layout& layout, int64_t element_bytes, const std::vector<std::string>& dim_names = {});

/// The shards of one rank, at true coordinates, and a line per shard.
Picture picture_of(const LocalShards& shards, int64_t element_bytes);

/// Ranks in their places. Throws: c10::ValueError for a grid whose shape does not fit its ranks.
Picture picture_of(const RankGrid& grid, const std::vector<std::string>& dim_names = {});

/// The steps of a plan: the tensor before, and after each step that changes it, and the bytes sent between ranks. `names`: of the mesh dims, if they
/// have names. Cost: O(messages), and one picture per step.
Picture picture_of(const Plan& plan, const MeshNames& names = {});

/// A plan from end to end: both layouts, all traffic between them, the bytes per link, and the boxes that move.
Picture difference_of(const Plan& plan, const MeshNames& names = {});

/// A tensor of a list, such as the parameters of a module.
struct NamedTensor {
  std::string name;
  Dims sizes;
  std::string dtype;
  int64_t element_bytes = 0;
  /// monostate: an ordinary tensor, which every rank holds by itself.
  std::variant<std::monostate, Layout, LocalShards> place;
  std::string placements = {};  // as the program spells them; "": those of the layout
};

/// A line per tensor with its bytes and imbalance, then the bytes of each rank over all tensors. `rank`: this rank, which holds the local shards, and
/// the ordinary tensors if no tensor has a layout.
Picture picture_of(const std::vector<NamedTensor>& tensors, int64_t rank = 0);

/// Throws: c10::ValueError for an unknown format, naming the known ones.
std::string draw(const Picture& picture, const PictureOptions& options = {});

/// draw(picture_of(layout)). Throws: as draw().
std::string picture(const Layout& layout, const PictureOptions& options = {});

}  // namespace shardwise
