// python/package.h: the functions of the Python package that C++ calls.
//
// The package passes them to C++ when it is imported (python/shardwise/_handed_over.py). C++ does not import modules by name, so its calls do not
// depend on sys.modules.
#pragma once

#include "python/bindings.h"

#include <string>

namespace shardwise {

/// Null before the package is imported. Never freed: the interpreter may end first.
struct Package {
  std::string folder;  // of the package's modules, with a trailing slash

  py::handle install;  // makes torch support our tensors; called for the first mesh

  py::handle default_group;        // of torch.distributed: the group of all processes, or None
  py::handle new_group;            // the name of a new group of some ranks
  py::handle group_by_members;     // the name of a group of some ranks, which these make without the other ranks
  py::handle members_make_groups;  // whether ranks make all groups so
  py::handle lone_group;           // the group of this rank alone
  py::handle group_of;             // the group with a name
  py::handle ranks_of;             // its ranks

  py::handle mesh_of;             // a new shardwise.DeviceMesh for a mesh that has none
  py::handle mesh_from_torch;     // our mesh for one of torch's
  py::handle current_torch_mesh;  // of the innermost `with` block

  py::handle as_local;       // converts a tensor of another library's class to a local piece of a DTensor,
  py::handle as_piece;       // to a piece of a LocalShardsWrapper,
  py::handle as_whole;       // and to a whole tensor to distribute
  py::handle strided_shard;  // torch's _StridedShard

  py::handle flatten, unflatten;  // tensor subclasses: taken apart and put together,
  py::handle have_same_context;   // and properties of them
  py::handle says_places, holds_traced;

  // Sizes that are a tracer's symbols:
  py::handle symbol_values;     // their values in the call that is traced,
  py::handle fix_symbols;       // these values with a guard,
  py::handle without_symbols;   // a piece with such values for its sizes,
  py::handle evaluate_symbols;  // and the sizes for other values of the symbols
};

const Package& package();

}  // namespace shardwise
