// shardwise/pictures.h: pictures of the parts of a tensor on the ranks, of meshes, and of the traffic of a move. Nothing is sent, and every rank gets
// the same picture.
//
//   sw::visualize_sharding(table);                               // text, on std::cout
//   sw::save(sw::picture_of(table), "table.svg");                // as text, SVG or JSON, by the suffix
//   std::cout << sw::difference_of(table, {sw::Replicate()});    // what table.redistribute({sw::Replicate()}) sends
//
// draw(picture, {.format = "svg"}) of pictures/picture.h returns a string. HTML pages are drawn by the Python package.
#pragma once

#include "pictures/picture.h"
#include "shardwise/device_mesh.h"
#include "shardwise/placements.h"

#include <ATen/core/Tensor.h>

#include <iostream>
#include <string>

namespace shardwise {

/// The layout of `tensor`, with the names of its mesh's dims. Throws: c10::TypeError for a plain tensor, as all functions below.
Picture picture_of(const at::Tensor& tensor);
/// The ranks of `mesh` in their places.
Picture picture_of(const Mesh& mesh);

/// The traffic if `tensor` is redistributed to `placements` with the default options of redistribute(): both layouts, the bytes between ranks and per
/// link, and the boxes that move. Throws: c10::ValueError for placements that do not fit.
Picture difference_of(const at::Tensor& tensor, std::vector<Placement> placements);

/// Writes `picture` in the format of the suffix of `path` (pictures/picture_formats.h). Throws: c10::ValueError for any other suffix, c10::Error for a file
/// that cannot be written.
void save(const Picture& picture, const std::string& path);

/// The picture as text.
std::ostream& operator<<(std::ostream& stream, const Picture& picture);

/// Prints picture_of(tensor) under `header`, on the ranks that call it.
void visualize_sharding(const at::Tensor& tensor, const std::string& header = "", std::ostream& stream = std::cout);

}  // namespace shardwise
