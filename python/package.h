// python/package.h: the functions of the Python package that C++ calls.
//
// The package hands them over when it is imported (python/shardwise/_handed_over.py). C++ looks no module up by its name, so that what it calls does not
// depend on what stands in sys.modules.
#pragma once

#include "python/bindings.h"

#include <string>

namespace shardwise {

/// Null before the package is imported. Never freed: the interpreter may end first.
struct Package {
  std::string folder;  // of its modules, with a slash at its end

  py::handle install;  // teaches torch our tensors, when the first mesh is made

  py::handle default_group;  // of torch.distributed: the group of all processes, None where there is none
  py::handle new_group;      // the name of a new group of some ranks
  py::handle lone_group;     // the group of this rank alone
  py::handle group_of;       // the group of a name

  py::handle mesh_of;             // a new shardwise.DeviceMesh for a mesh that has none
  py::handle mesh_from_torch;     // our mesh of one of torch's
  py::handle current_torch_mesh;  // of the innermost `with` block

  py::handle as_local;       // what a tensor of another library's class is taken for as the piece of a DTensor,
  py::handle as_piece;       // as a piece of a wrapper,
  py::handle as_whole;       // and as a tensor to be distributed
  py::handle strided_shard;  // torch's _StridedShard

  py::handle flatten, unflatten;  // tensors of a class of their own, taken apart and put together,
  py::handle have_same_context;   // and what is asked of them besides
  py::handle says_places, holds_traced;
};

const Package& package();

}  // namespace shardwise
