// Makes a module tree for an engine from a TorchScript model, which has no C++ class.
//
//   torch::jit::Module model = torch::jit::load("model.pt");
//   fsdp::Engine engine(fsdp::modules_of(model), mesh, {.units = fsdp::each_child_of("layers")});
//   at::Tensor loss =
//       engine.forward([&](at::Tensor x) { return model.forward({x}).toTensor().sum(); }, x);
#pragma once

#include <torch/nn/module.h>
#include <torch/script.h>

#include <memory>

namespace fsdp {

// Returns a tree of modules that have the names, parameters and buffers of `script`. The tree
// shares the tensors of `script`. A submodule with several parents in `script` is one module in the
// tree, too. Choose units by each_child_of or by_name. Engine::describe shows the TorchScript class
// of a module. TorchScript may combine the forwards of several units into one autograd node.
// Backward then gathers all of these units at once.
std::shared_ptr<torch::nn::Module> modules_of(const torch::jit::Module& script);

}  // namespace fsdp
