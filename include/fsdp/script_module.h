// TorchScript models: what an engine needs of a model that has no C++ class.
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

// A tree of modules with the names, parameters and buffers of `script`: the same tensors. A
// submodule that stands at several places is one module there, too. Units are chosen by
// each_child_of or by_name; a module's type in Engine::describe is its TorchScript class.
// TorchScript may differentiate the forwards of several units as one: backward then holds all of
// them at once.
std::shared_ptr<torch::nn::Module> modules_of(const torch::jit::Module& script);

}  // namespace fsdp
