// Finds a model's units, and the parameters that each unit owns.
#pragma once

#include <ATen/core/Tensor.h>
#include <fsdp/mesh.h>
#include <fsdp/options.h>
#include <fsdp/unit.h>
#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp {

// A parameter that an engine will shard.
struct FoundParameter {
  std::string fqn;
  at::Tensor tensor;
  // True if the parameter's module has a floating buffer of the parameter's shape. Such a buffer
  // may be the running statistics of a normalisation. LibTorch's kernels require statistics and
  // parameter to have the same type. Therefore such a parameter is never computed in a narrower
  // type than its constructed type.
  bool has_statistics = false;
};

// A module of a unit, and its name in the model.
struct NamedModule {
  std::string fqn;
  std::shared_ptr<torch::nn::Module> module;
};

// A unit of the model, before it is sharded.
struct FoundUnit {
  std::string fqn;                   // "layers.0"; for several modules "layers.0-3"
  UnitBase* unit = nullptr;          // null if a policy chose the unit
  std::vector<NamedModule> modules;  // one, or several neighbours chosen by policy
  int parent = 0;                    // index of the enclosing unit; for the root its own index
  std::vector<FoundParameter> parameters;
};

// Returns "layers.0" for "layers" and "0".
std::string join_fqn(const std::string& prefix, const std::string& name);

// Returns the units in pre-order, the root first. A parameter belongs to the innermost unit around
// it. If it has several registrations, it belongs to the innermost unit around all of them.
// Options::units chooses units among the modules that are not an fsdp::Unit. Options::ignore
// excludes parameters.
// Errors: InvalidArgument for embeddings with max_norm or sparse gradients, for a policy that
//   chooses nothing, and for an fsdp::Unit inside a unit of several layers.
std::vector<FoundUnit> find_units(torch::nn::Module& root, const Options& options);

// Throws InvalidArgument that names the parameter if ranks that compute on `computes_on` cannot
// shard a parameter. A parameter cannot be sharded if it is sparse, quantised, complex or an
// inference tensor, if its dtype is not float32, bfloat16 or float16, if it is on an unsupported
// device, if its strides have holes or overlap, if it shares memory with another parameter, or if
// it already has a gradient.
void check_shardable(const std::vector<FoundUnit>& units, at::Device computes_on);

// Returns the parameters of the module tree for which `known` returns false. Throws as find_units
// and check_shardable do. Used by BuildScope.
std::vector<FoundParameter> find_parameters(torch::nn::Module& module,
                                            const std::function<bool(const at::Tensor&)>& known,
                                            at::Device computes_on);

// If the tree contains a SyncBatchNorm, makes the mesh's communicator for modules now, so that the
// first step does not have to make it. Collective over all ranks.
void connect_modules(const torch::nn::Module& root, const Mesh& mesh);

}  // namespace fsdp
