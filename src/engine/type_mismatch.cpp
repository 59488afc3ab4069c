#include "engine/type_mismatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/engine_parts.h"
#include "fsdp/error.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

std::string join(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

class BufferSearch {
 public:
  BufferSearch(const EngineParts& engine, DType computes)
      : engine_(engine), computes_(torch_compat::scalar_type_of(computes)) {}

  // Looks at `module` and what it holds, but not into the units inside it.
  void visit(const torch::nn::Module& module, const std::string& fqn) {
    look_at(module, fqn);
    for (const auto& child : module.named_children()) {
      const std::string name = join(fqn, child.key());
      const bool is_unit = std::ranges::any_of(
          engine_.model.units, [&](const auto& unit) { return unit->shard->fqn() == name; });
      if (!is_unit) visit(*child.value(), name);
    }
  }
  // "buffer 'layer.scale' is float32", of all that were found.
  const std::string& found() const { return found_; }

 private:
  void look_at(const torch::nn::Module& module, const std::string& fqn) {
    const std::vector<at::Tensor> parameters = module.parameters(/*recurse=*/false);
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      const at::Tensor& buffer = item.value();
      if (!buffer.defined() || !buffer.is_floating_point()) continue;
      const at::ScalarType type = buffer.scalar_type();
      // Running statistics keep the type of the parameters beside them.
      const bool fits = type == computes_ || std::ranges::any_of(parameters, [&](const auto& each) {
                          return each.defined() && each.scalar_type() == type;
                        });
      if (fits) continue;
      const auto dtype = torch_compat::dtype_of(type);
      found_ += fmt::format("{}buffer '{}' is {}", found_.empty() ? "" : ", ",
                            join(fqn, item.key()), dtype ? name_of(*dtype) : c10::toString(type));
    }
  }

  const EngineParts& engine_;
  const at::ScalarType computes_;
  std::string found_;
};

// "expected m1 and m2 to have the same dtype", "expected scalar type Half but found Float",
// "Input type (float) and bias type (c10::BFloat16) should be the same".
bool is_about_types(const std::string& text) { return text.find("type") != std::string::npos; }

}  // namespace

void refuse_buffers_of_other_type(const c10::Error& error, const EngineUnit& unit) {
  const EngineParts& engine = unit.owner;
  const std::string& fqn = unit.shard->fqn();
  const std::optional<DType>& computes = unit.place.options.param_dtype;
  if (!computes || !is_about_types(error.msg())) return;
  const auto modules = engine.model.root->named_modules();
  const auto* module = modules.find(fqn);
  if (module == nullptr) return;  // the module tree has changed since
  BufferSearch search(engine, *computes);
  search.visit(**module, fqn);
  if (search.found().empty()) return;
  const std::string text = error.msg();
  throw InvalidArgument(
      {.what = "an operator in the forward was given tensors of two types",
       .where = name_of_unit(fqn),
       .cause = fmt::format("{} where the unit computes in {} (LibTorch: {})", search.found(),
                            name_of(*computes), text.substr(0, text.find('\n'))),
       .hint = "cast what is computed from the buffer: .to(x.scalar_type()); or let the unit "
               "compute in the buffer's type: UnitOptions::param_dtype"});
}

}  // namespace fsdp
