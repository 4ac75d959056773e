// runtime/api/local_form.h: the C++ tensor classes that this rank's part of a distributed tensor may be given in.
//
// A library makes a class known with register_local_class(). From then on from_local() takes its objects, and to_local() of the tensor, of
// its gradient and of results of the same layout gives objects again: `table * 2`, `zeros_like(table)` and `table.detach()` have the form,
// `table.t()` has not. The local shards of wrappers/ are such a class. Classes of Python: runtime/tensor/subclass.h.
#pragma once

#include "runtime/tensor/dtensor_impl.h"

#include <optional>
#include <string>
#include <vector>

namespace shardwise {

struct FromLocalOptions;

/// One shape that objects of a class come in. Lives as long as the process, and is known by its address.
class LocalForm {
 public:
  virtual ~LocalForm() = default;
  /// The name by which pickles know it. No two forms share one.
  virtual std::string name() const = 0;
  /// This rank's part of `dtensor` in this form, aliased, with its history. Nothing is sent.
  virtual at::Tensor to_local(const at::Tensor& dtensor, const std::optional<Placements>& grad_placements) const = 0;
};

struct LocalClass {
  bool (*holds)(const at::TensorBase& local);  // true for objects of the class
  /// from_local() of an object; it tells the tensor its form with keep_local_form().
  at::Tensor (*from_local)(const at::Tensor& local, const MeshPtr& mesh, Placements placements,
                           const FromLocalOptions& options);
  std::vector<const LocalForm*> forms;
  /// One of `forms`, for layouts that give some rank several pieces or none, which no single tensor can hold. Null: the class has no such form.
  const LocalForm* for_pieces = nullptr;
};

/// Called once per class, before its first object is made into a distributed tensor.
void register_local_class(LocalClass local_class);

/// The class of `local`; null for a plain tensor. Cost: one test per class.
const LocalClass* local_class_of(const at::TensorBase& local);
/// The form with this name; null for "", which stands for a plain tensor. Throws: c10::ValueError for an unknown name.
const LocalForm* local_form_named(const std::string& name);
/// The form for layouts in pieces; null where no class has one.
const LocalForm* local_form_for_pieces();

/// Gives `tensor` the form; null for a plain tensor's. Where it becomes a leaf its gradients are laid out as it and get the form too, through the
/// tensor's gradient hooks; hooks that Python sets take their place, and then only .grad of the same layout has the form.
void keep_local_form(const at::Tensor& tensor, const LocalForm* form);

/// detach() drops what autograd knows of a tensor; this one keeps the form. Called once, by register_dispatch().
void register_detach();

}  // namespace shardwise
