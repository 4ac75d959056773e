// runtime/api/local_form.h: the C++ tensor class of a higher room that to_local() may return and from_local() takes.
//
// The class is that of the local shards of wrappers/. Once set_local_class() was called, from_local() takes its objects, and to_local() returns
// objects again for the tensor, for its gradient and for results of the same layout: `table * 2`, `zeros_like(table)` and `table.detach()` keep
// the form, `table.t()` does not. For Python classes see runtime/tensor/subclass.h.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

struct FromLocalOptions;

/// One form that objects of a class come in. It lives as long as the process and is identified by its address.
class LocalForm {
 public:
  virtual ~LocalForm() = default;
  /// The unique name by which pickles refer to the form.
  virtual std::string name() const = 0;
  /// This rank's part of `dtensor` in this form, aliased, with its autograd history. Nothing is sent.
  virtual at::Tensor to_local(const at::Tensor& dtensor, const std::optional<Placements>& grad_placements) const = 0;
};

struct LocalClass {
  bool (*holds)(const at::TensorBase& local);  // true for objects of the class
  /// from_local() for an object; it must set the tensor's form with keep_local_form().
  at::Tensor (*from_local)(const at::Tensor& local, const MeshPtr& mesh, Placements placements,
                           const FromLocalOptions& options);
  std::vector<const LocalForm*> forms;
  /// The one of `forms` for layouts that give some rank several pieces or none, which no single tensor can hold. Null: the class has none.
  const LocalForm* for_pieces = nullptr;
};

/// Called once, before from_local() gets its first object. `local_class` lives as long as the process.
void set_local_class(const LocalClass& local_class);

/// The class of `local`; null for a plain tensor.
const LocalClass* local_class_of(const at::TensorBase& local);
/// The form with this name; null for "" (a plain tensor). Throws: c10::ValueError for an unknown name.
const LocalForm* local_form_named(const std::string& name);
/// The form for layouts in pieces; null if no class has one.
const LocalForm* local_form_for_pieces();

/// Sets the tensor's form; null stands for a plain tensor. If the tensor is a leaf, its gradient hooks lay out its gradients as the tensor
/// and set their form too. Hooks that Python sets replace them, and then only a .grad of the same layout has the form.
void keep_local_form(const at::Tensor& tensor, const LocalForm* form);

/// Registers a detach() that keeps the form, which torch's own detach() drops. Called once, by register_dispatch().
void register_detach();

}  // namespace shardwise
