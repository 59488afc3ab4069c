// Finds a model's units and which parameters each of them owns.
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

struct FoundParameter {
  std::string fqn;
  at::Tensor tensor;
  // Its module keeps floating buffers of the parameter's shape: the running statistics of a
  // normalisation, with which LibTorch's kernels want it in one type. It is never computed in a
  // narrower one than it was built in.
  bool has_statistics = false;
};

// A module of a unit, and its name in the model.
struct NamedModule {
  std::string fqn;
  std::shared_ptr<torch::nn::Module> module;
};

struct FoundUnit {
  std::string fqn;                   // "layers.0"; of several modules "layers.0-3"
  UnitBase* unit = nullptr;          // null: chosen by policy
  std::vector<NamedModule> modules;  // one; or by policy several neighbours
  int parent = 0;                    // index of the enclosing unit; the root's is itself
  std::vector<FoundParameter> parameters;
};

// Returns "layers.0" for "layers" and "0".
std::string join_fqn(const std::string& prefix, const std::string& name);

// Units in pre-order, the root first. A parameter belongs to the innermost unit around it; one that
// is registered under several units belongs to the innermost unit around all of them.
// Options::units chooses among modules that are no Unit, Options::ignore leaves parameters out.
// Errors: InvalidArgument for embeddings with max_norm or sparse gradients, and for a policy that
// chooses nothing, or a fsdp::Unit for a unit of several layers.
std::vector<FoundUnit> find_units(torch::nn::Module& root, const Options& options);

// Errors: InvalidArgument naming the parameter, for what cannot be sharded by ranks that compute on
//   `computes_on`: dtypes other than float32, bfloat16 and float16, sparse, quantised or complex
//   ones, other devices, strides with holes or overlap, memory shared between different parameters,
//   gradients that exist already, inference tensors.
void check_shardable(const std::vector<FoundUnit>& units, at::Device computes_on);

// The parameters of one module tree that have not been found before (BuildScope), by the same
// rules.
std::vector<FoundParameter> find_parameters(torch::nn::Module& module,
                                            const std::function<bool(const at::Tensor&)>& known,
                                            at::Device computes_on);

// Makes the mesh's communicator for modules if the tree has a SyncBatchNorm, so that no step has
// to. Collective over all ranks.
void connect_modules(const torch::nn::Module& root, const Mesh& mesh);

}  // namespace fsdp
