// shardwise/module_tensors.h: finds the places of a torch::nn module's parameters, and replaces parameters there.
//
// A module holds a parameter twice: registered by its name, which optimizers read, and as a member, which its forward reads. The members of
// torch::nn's own modules are known. A class that registers parameters of its own declares its members once, in any .cpp of the program:
//
//   struct ScaleImpl : torch::nn::Module {
//     ScaleImpl() { scale = register_parameter("scale", torch::ones({8})); }
//     torch::Tensor scale;
//   };
//   static const bool scale_is_known = sw::declare_tensors<ScaleImpl>({&ScaleImpl::scale});
//
// A module that only contains other modules declares nothing.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// Returns the members that hold tensors, for modules of a declared class or derived from it; nullopt for other modules.
using MembersOf = std::function<std::optional<std::vector<at::Tensor*>>(torch::nn::Module& module)>;

/// MembersOf for modules of class M and of derived classes, which returns these members.
template <class M>
MembersOf members_of_class(std::vector<at::Tensor M::*> members) {
  return [members](torch::nn::Module& module) -> std::optional<std::vector<at::Tensor*>> {
    auto* const known = dynamic_cast<M*>(&module);
    if (!known) return std::nullopt;
    return c10::fmap(members, [&](const auto member) { return &(known->*member); });
  };
}

/// Adds a class to the known ones. Safe to call from several threads, and before main(). Returns true.
bool declare_members(MembersOf members_of);

/// Declares the members of M that hold its own parameters; empty if its forward reads them from the module by name. Returns true.
template <class M>
bool declare_tensors(std::vector<at::Tensor M::*> members) {
  return declare_members(members_of_class<M>(std::move(members)));
}

/// A parameter by its place.
struct ParameterPlace {
  torch::nn::Module* module = nullptr;
  std::string path;                // of the module within the outermost one, "layers.0.up"; "" for the outermost
  std::string name;                // in the module, "weight"
  std::optional<size_t> member{};  // index of a known member, if only that is the place: `head->weight = table->weight`

  std::string full_name() const { return path.empty() ? name : path + "." + name; }
  const at::Tensor& tensor() const;
  /// Puts `tensor` into this place and into the members that hold the present tensor. Pre: is_replaceable().
  void replace(const at::Tensor& tensor) const;
  /// False if no known member of the module holds the parameter: the forward would continue to use the old tensor.
  bool is_replaceable() const;
};

/// One parameter and all its places, the registered one first. Tied parameters have several places.
using TiedPlaces = std::vector<ParameterPlace>;

/// The parameters of `module` and its submodules in the order in which they were registered, equal on all ranks. If a program assigned another
/// module's parameter to a known member, the member is a place of that parameter; the parameter still registered under the member's name, which no
/// forward reads, is left out.
/// Pre: a std::shared_ptr owns `module`. Throws: torch's error if none does.
std::vector<TiedPlaces> parameters_of(torch::nn::Module& module);

/// Throws: c10::ValueError if a place is not replaceable. The text says how to declare its member.
void check_replaceable(const char* op, const TiedPlaces& places);

/// Calls `make`, and adds the parameter's name to its ValueErrors and IndexErrors.
template <class Make>
void name_parameter(const char* op, const std::string& full_name, const Make& make) {
  const auto rename = [&](const c10::Error& error) {
    TORCH_CHECK_VALUE(false, "[", op, "] ", full_name, ": ", error.what_without_backtrace());
  };
  try {
    make();
  } catch (const c10::ValueError& error) {
    rename(error);
  } catch (const c10::IndexError& error) {
    rename(error);
  }
}

/// The kind of a module for errors: "Linear".
std::string kind_of(const torch::nn::Module& module);

/// A number that no other living module has.
inline int64_t id_of(const torch::nn::Module& module) { return reinterpret_cast<intptr_t>(&module); }

}  // namespace shardwise
