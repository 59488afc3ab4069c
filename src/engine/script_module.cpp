#include "fsdp/script_module.h"

#include <string>
#include <unordered_map>

namespace fsdp {
namespace {

// A module that registers the tensors of a script module under the same names.
class ScriptModule final : public torch::nn::Module {
 public:
  explicit ScriptModule(std::string type) : torch::nn::Module(std::move(type)) {}
};

// The modules made so far, by the address of the script module's object. If an object is registered
// at two places, both get the same module, so tied parameters remain tied.
using Known = std::unordered_map<const void*, std::shared_ptr<torch::nn::Module>>;

std::shared_ptr<torch::nn::Module> tree_of(const torch::jit::Module& script, Known& known) {
  std::shared_ptr<torch::nn::Module>& module = known[script._ivalue().get()];
  if (module) return module;
  const auto made = std::make_shared<ScriptModule>(script.type()->name()->name());
  module = made;
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    made->register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) {
    made->register_buffer(buffer.name, buffer.value);
  }
  for (const auto& child : script.named_children()) {
    made->register_module(child.name, tree_of(child.value, known));
  }
  return made;
}

}  // namespace

std::shared_ptr<torch::nn::Module> modules_of(const torch::jit::Module& script) {
  Known known;
  return tree_of(script, known);
}

}  // namespace fsdp
