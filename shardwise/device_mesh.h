// shardwise/device_mesh.h: meshes as values, slices by names of dims, and the start of a program.
//
//   auto mesh = sw::init_device_mesh("cpu", {2, 2}, {"dp", "tp"});
//   sw::Mesh tp = mesh["tp"];                  // the two ranks along "tp" that this rank is one of
//   mesh.get_local_rank("dp")                  // 0 or 1
#pragma once

#include "runtime/tensor/device_mesh.h"

#include <chrono>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace shardwise {

/// The counterpart of Python's DeviceMesh: a handle of a DeviceMesh, which converts to a MeshPtr. Two meshes are equal if their ranks, shape, names,
/// device and World are equal.
class Mesh {
 public:
  /// Throws: c10::ValueError for a null pointer.
  Mesh(MeshPtr mesh);  // NOLINT(google-explicit-constructor)

  /// The slice along the named dim, or dims, that this rank is in. Collective over the world if it is new.
  /// Throws: c10::ValueError for an unknown name, naming the known ones.
  Mesh operator[](const std::string& mesh_dim_name) const { return submesh({mesh_dim_name}); }
  Mesh operator[](std::initializer_list<std::string> mesh_dim_names) const { return submesh(mesh_dim_names); }
  Mesh operator[](int mesh_dim) const = delete;  // slices are taken by name
  Mesh submesh(const std::vector<std::string>& mesh_dim_names) const { return mesh_->submesh(mesh_dim_names); }
  /// The mesh that this one was sliced or flattened from, or itself.
  Mesh root() const { return mesh_->root(); }
  /// The mesh of the same ranks in one dim. root() knows it by its name, "dp_tp" unless one is given: mesh["dp_tp"].
  Mesh flatten(const std::string& mesh_dim_name = "") const { return mesh_->flatten(mesh_dim_name); }
  /// The mesh of the same ranks with dims of these sizes and names in place of one dim. Collective over the world.
  Mesh unflatten(int64_t mesh_dim, c10::IntArrayRef mesh_sizes, const std::vector<std::string>& mesh_dim_names) const {
    return mesh_->unflatten(mesh_dim, mesh_sizes, mesh_dim_names);
  }
  /// The mesh of the dims of all these slices of one mesh, in this order. Throws: c10::Error if there is no such mesh.
  static Mesh concatenate(const std::vector<Mesh>& meshes) {
    return DeviceMesh::concatenate(std::vector<MeshPtr>(meshes.begin(), meshes.end()));
  }

  int64_t ndim() const { return mesh_->ndim(); }
  /// The number of ranks, in total or along `mesh_dim`.
  int64_t size() const { return mesh_->size(); }
  int64_t size(int64_t mesh_dim) const { return mesh_->size(mesh_->checked_dim(mesh_dim)); }
  c10::IntArrayRef shape() const { return mesh_->grid().shape; }
  const std::vector<std::string>& mesh_dim_names() const { return mesh_->names(); }
  c10::DeviceType device_type() const { return mesh_->device_type(); }

  /// This rank's global number.
  int64_t get_rank() const { return mesh_->rank(); }
  /// This rank's coordinate along a dim. A 1-D mesh needs no name.
  /// Throws: c10::ValueError for an unknown name, if a name is missing, and on ranks outside the mesh.
  int64_t get_local_rank(const std::string& mesh_dim_name = "") const;
  /// This rank's coordinates in the mesh; nullopt on ranks outside it.
  const std::optional<Dims>& get_coordinate() const { return mesh_->coord(); }

  operator const MeshPtr&() const { return mesh_; }  // NOLINT(google-explicit-constructor)
  const DeviceMesh* operator->() const { return mesh_.get(); }
  const DeviceMesh& operator*() const { return *mesh_; }
  bool operator==(const Mesh& other) const { return mesh_ == other.mesh_; }

 private:
  MeshPtr mesh_;
};

/// "(dp=2, tp=2)".
std::ostream& operator<<(std::ostream& stream, const Mesh& mesh);

/// Initialises this process of the program: under torchrun as init_from_env(), else as single_world(). Collective over all processes.
std::shared_ptr<World> init_process_group(std::chrono::milliseconds timeout = std::chrono::minutes(30));

/// The mesh of ranks 0, 1, 2, ... in row-major order, on "cpu" or "cuda". Calls init_process_group() if the program has not. Collective over the
/// world. Throws: c10::ValueError if the world has fewer ranks, if names are not one per dim, for another device, and for a device with an index.
Mesh init_device_mesh(const std::string& device_type, c10::IntArrayRef mesh_shape,
                      std::vector<std::string> mesh_dim_names = {});

}  // namespace shardwise
