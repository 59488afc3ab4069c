#include "engine/type_mismatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "engine/engine_parts.h"
#include "fsdp/error.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

// Appends "buffer 'layer.scale' is float32" for each floating buffer of the module whose type is
// not `computes`.
void look_at(const torch::nn::Module& module, const std::string& fqn, at::ScalarType computes,
             std::string& found) {
  const std::vector<at::Tensor> parameters = module.parameters(/*recurse=*/false);
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    const at::Tensor& buffer = item.value();
    if (!buffer.defined() || !buffer.is_floating_point()) continue;
    const at::ScalarType type = buffer.scalar_type();
    // A buffer that has the type of a parameter of its module, such as the running statistics of a
    // BatchNorm, does not cause the error.
    const bool fits = type == computes || std::ranges::any_of(parameters, [&](const auto& each) {
                        return each.defined() && each.scalar_type() == type;
                      });
    if (fits) continue;
    const auto dtype = dtype_of(type);
    found += fmt::format("{}buffer '{}' is {}", found.empty() ? "" : ", ",
                         join_fqn(fqn, item.key()), dtype ? name_of(*dtype) : c10::toString(type));
  }
}

// Returns true if LibTorch's text is about types: "expected m1 and m2 to have the same dtype",
// "expected scalar type Half but found Float", "Input type (float) and bias type (c10::BFloat16)
// should be the same".
bool is_about_types(const std::string& text) { return text.find("type") != std::string::npos; }

}  // namespace

void refuse_buffers_of_other_type(const c10::Error& error, const EngineUnit& unit) {
  const std::optional<DType>& computes = unit.place.precision.param;
  if (!computes || !is_about_types(error.msg())) return;
  std::string found;
  unit.owner.model.for_each_own_module(
      unit, [&, type = scalar_type_of(*computes)](const std::string& fqn,
                                                  const torch::nn::Module& module) {
        look_at(module, fqn, type, found);
      });
  if (found.empty()) return;
  const std::string text = error.msg();
  throw InvalidArgument(
      {.what = "an operator in the forward was given tensors of two types",
       .where = name_of_unit(unit.shard->fqn()),
       .cause = fmt::format("{}, but the unit computes in {} (LibTorch: {})", found,
                            name_of(*computes), text.substr(0, text.find('\n'))),
       .hint = "cast the values that the forward computes from the buffer (.to(x.scalar_type())), "
               "or let the unit compute in the buffer's type (UnitOptions::mixed_precision)"});
}

}  // namespace fsdp
