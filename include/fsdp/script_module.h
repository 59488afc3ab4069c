// Makes the module tree of a TorchScript model, which has no C++ class, for an engine.
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

// Returns a tree of modules with the names, parameters and buffers of `script`; the tensors are
// shared. A submodule with several parents is one module in the tree too. Choose units by
// each_child_of or by_name. Engine::describe shows a module's TorchScript class. TorchScript may
// differentiate several units' forwards as one; backward then gathers all of them at once.
std::shared_ptr<torch::nn::Module> modules_of(const torch::jit::Module& script);

}  // namespace fsdp
