// shardwise/module_tensors.h: where the parameters of a torch::nn module lie, and how others are put in their place.
//
// A module holds a parameter twice: registered by its name, which optimizers read, and as a member, which its forward reads. Of torch::nn's own
// modules the members are known. A class that registers parameters of its own says which members they are, once, in any .cpp of the program:
//
//   struct ScaleImpl : torch::nn::Module {
//     ScaleImpl() { scale = register_parameter("scale", torch::ones({8})); }
//     torch::Tensor scale;
//   };
//   static const bool scale_is_known = sw::declare_tensors<ScaleImpl>({&ScaleImpl::scale});
//
// A module made of other modules declares nothing.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace shardwise {

/// The members of a module, of the class that was declared or derived from it, that hold tensors; nothing for other modules.
using MembersOf = std::function<std::optional<std::vector<at::Tensor*>>(torch::nn::Module& module)>;

/// Of modules of class M, and of classes derived from it, these members.
template <class M>
MembersOf members_of_class(std::vector<at::Tensor M::*> members) {
  return [members](torch::nn::Module& module) -> std::optional<std::vector<at::Tensor*>> {
    auto* const known = dynamic_cast<M*>(&module);
    if (!known) return std::nullopt;
    std::vector<at::Tensor*> result;
    for (const auto member : members) result.push_back(&(known->*member));
    return result;
  };
}

/// Adds to what is known. Safe to call from several threads, and before main(). Gives true.
bool declare_members(MembersOf members_of);

/// The members of M that hold its own parameters; none where its forward reads them from the module by name. Gives true.
template <class M>
bool declare_tensors(std::vector<at::Tensor M::*> members) {
  return declare_members(members_of_class<M>(std::move(members)));
}

/// A parameter by its place.
struct ParameterPlace {
  torch::nn::Module* module = nullptr;
  std::string path;                // of the module within the outermost, "layers.0.up"; "" for that itself
  std::string name;                // in the module, "weight"
  std::optional<size_t> member{};  // of the known ones, where that alone is the place: `head->weight = table->weight`

  std::string full_name() const { return path.empty() ? name : path + "." + name; }
  const at::Tensor& tensor() const;
  /// Puts `tensor` there and in the members that hold the present one. Pre: is_replaceable().
  void replace(const at::Tensor& tensor) const;
  /// False where no known member of the module holds it, so that its forward would go on with the old one.
  bool is_replaceable() const;
};

/// One parameter and every place where it lies, first where it is registered: those that are tied have several.
using TiedPlaces = std::vector<ParameterPlace>;

/// The parameters of `module` and its submodules in the order in which they were registered, the same on all ranks. A known member that
/// a program assigned another's parameter is a place of that one; the parameter that is still registered in its stead, which no forward
/// reads, is left out.
/// Pre: a std::shared_ptr owns `module`. Throws: what torch does where none does.
std::vector<TiedPlaces> parameters_of(torch::nn::Module& module);

/// Throws: c10::ValueError, saying how to declare its member, where a place is not replaceable.
void check_replaceable(const char* op, const TiedPlaces& places);

/// Calls `make`, and says in its errors on values and indices which parameter they are of.
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

/// The kind of a module as an error names it: "Linear".
std::string kind_of(const torch::nn::Module& module);

}  // namespace shardwise
