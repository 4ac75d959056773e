// wrappers/fsdp/unit_call.h: the calls of modules whose parameters are a group (a unit), for the hooks of both languages.
//
//   enter_call(unit, "Linear", id, inputs);   // the parameters are whole; `inputs` are the tensors to compute with
//   ...                                       // the forward of the module
//   leave_call(unit, id, outputs);            // the parameters are freed; `outputs` are the tensors to return
//
// The backward of a call begins with the gradient of an output and ends with the gradients of all inputs. It ends before the backward of the unit
// that gave the inputs begins, so no more than two units are whole at once.
#pragma once

#include "wrappers/fsdp/gather_schedule.h"

#include <string>
#include <vector>

namespace shardwise {

/// Begins a call of `module`, an identifier that is unique among the unit's modules. `inputs`: the tensors among its arguments. With gradients
/// enabled, leaves that require one are replaced by views, because autograd gives a leaf its gradient before it goes on with the module's backward.
/// Collective over the sharding ranks, as ParameterGroup::gather().
/// Throws: c10::ValueError, naming the module as `name`, on a rank outside the mesh of the parameters, and for a DTensor over that mesh.
void enter_call(const std::shared_ptr<GroupSchedule>& unit, const std::string& name, int64_t module,
                const std::vector<at::Tensor*>& inputs);

/// Ends the last call, if it is one of `module`; otherwise enter_call() has failed, and nothing is done. Also called, without outputs, after a
/// forward that failed. Outputs that are inputs are replaced by views: the backward of the call would otherwise end before it begins. `releases`:
/// false keeps the parameters until the backward, because it may come by other tensors than `outputs`.
void leave_call(const std::shared_ptr<GroupSchedule>& unit, int64_t module, const std::vector<at::Tensor*>& outputs,
                bool releases = true);

}  // namespace shardwise
