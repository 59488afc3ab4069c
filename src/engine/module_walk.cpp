#include "engine/module_walk.h"

#include <fmt/format.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "fsdp/sync_batch_norm.h"
#include "libtorch/torch_compat.h"

namespace fsdp {
namespace {

// Returns true if `module` itself has a buffer that may be the running statistics of `parameter`: a
// floating buffer of the same shape.
bool has_statistics(const torch::nn::Module& module, const at::Tensor& parameter) {
  const auto buffers = module.named_buffers(/*recurse=*/false);
  return std::any_of(buffers.begin(), buffers.end(), [&](const auto& item) {
    const at::Tensor& buffer = item.value();
    return buffer.defined() && buffer.is_floating_point() && buffer.sizes() == parameter.sizes();
  });
}

[[noreturn]] void refuse(const std::string& fqn, std::string reason, std::string hint) {
  throw InvalidArgument({.what = fmt::format("parameter '{}' cannot be sharded: {}", fqn, reason),
                         .hint = std::move(hint)});
}

void check_parameter(const std::string& fqn, const at::Tensor& tensor, at::Device computes_on) {
  if (tensor.is_inference()) {
    refuse(fqn, "it was made under c10::InferenceMode",
           "build the model outside of c10::InferenceMode");
  }
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    refuse(fqn, "it is sparse or quantised", "list it in Options::ignore");
  }
  const at::Device device = tensor.device();
  // A parameter on another GPU is not refused here. Moving it throws an error that names both
  // devices.
  if (!device.is_cpu() && !device.is_cuda() && device != computes_on) {
    refuse(fqn, fmt::format("it is on {}", device.str()), "build the model on the CPU");
  }
  const auto dtype = dtype_of(tensor.scalar_type());
  if (!dtype || !is_floating(*dtype) || *dtype == DType::kFloat64) {
    refuse(fqn, fmt::format("its type is {}", c10::toString(tensor.scalar_type())),
           "use float32, bfloat16 or float16, or list it in Options::ignore");
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    refuse(fqn, "its elements overlap or leave gaps in memory", "make it contiguous");
  }
  if (tensor.grad().defined()) {
    refuse(fqn, "it has a gradient already", "call zero_grad before constructing the engine");
  }
}

void check_embedding(const std::string& fqn, bool renormalises, bool is_sparse) {
  if (renormalises) {
    refuse(join_fqn(fqn, "weight"), "its embedding renormalises it in forward (max_norm)",
           "renormalise it after the optimizer's step instead");
  }
  if (is_sparse) {
    refuse(join_fqn(fqn, "weight"), "its embedding makes sparse gradients", "use sparse(false)");
  }
}

void check_module(const std::string& fqn, const torch::nn::Module& module) {
  if (const auto* rows = dynamic_cast<const torch::nn::EmbeddingImpl*>(&module)) {
    check_embedding(fqn, rows->options.max_norm().has_value(), rows->options.sparse());
  } else if (const auto* bag = dynamic_cast<const torch::nn::EmbeddingBagImpl*>(&module)) {
    check_embedding(fqn, bag->options.max_norm().has_value(), bag->options.sparse());
  }
}

// Throws if two parameters share memory, because this memory would be sharded and updated twice.
void check_overlap(const std::vector<FoundUnit>& units) {
  struct Range {
    const char* begin;
    const char* end;
    const std::string* fqn;
  };
  std::vector<Range> ranges;
  for (const FoundUnit& unit : units) {
    for (const FoundParameter& found : unit.parameters) {
      if (found.tensor.numel() == 0 || found.tensor.is_meta()) continue;  // has no memory
      const auto* begin = static_cast<const char*>(found.tensor.const_data_ptr());
      ranges.push_back({begin, begin + found.tensor.nbytes(), &found.fqn});
    }
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin >= ranges[i - 1].end) continue;
    refuse(
        *ranges[i].fqn, fmt::format("it shares memory with '{}'", *ranges[i - 1].fqn),
        "register the same tensor under both names (a tie), or give each parameter its own memory");
  }
}

// A walk over a module tree in pre-order. It finds the units, and for each parameter the unit that
// owns it.
class Walk {
 public:
  explicit Walk(const Options& options) : options_(options) {}

  std::vector<FoundUnit> run(torch::nn::Module& root) {
    Neighbours none;
    visit(root, "", 0, none);
    // Parameters are added to their units at the end, because a tie that is found late can move a
    // parameter to an outer unit.
    for (auto& [tensor, place] : owners_) {
      FoundUnit& unit = units_[place.unit];
      unit.parameters.push_back(std::move(place.found));
    }
    if (options_.units.is_set() && !any_chosen_) refuse_policy(root);
    return std::move(units_);
  }

 private:
  struct Place {
    int unit;
    FoundParameter found;
  };

  // Neighbouring children of a module that form one unit.
  struct Neighbours {
    int layers = 0;  // number of layers of the unit; 0: no unit
    int left = 0;    // layers of the unit that are not visited yet
    int unit = -1;   // index of the unit; -1: no unit was made for the layers visited so far

    // Adds the next child. `layers_of_unit` is the number of layers of the unit for which the
    // policy chose the child. 0 means that the policy did not choose the child.
    void add(int layers_of_unit) {
      if (layers_of_unit != layers || left == 0) *this = {layers_of_unit, layers_of_unit};
      left = std::max(left - 1, 0);
    }
  };

  // Visits `module` and the modules inside it. `enclosing` is the index of the unit around
  // `module`. `beside` describes the siblings that were visited before `module`.
  void visit(torch::nn::Module& module, const std::string& fqn, int enclosing, Neighbours& beside) {
    int unit = enclosing;
    auto* base = dynamic_cast<UnitBase*>(&module);
    const bool is_root = units_.empty();
    const int layers = is_root ? 0 : options_.units.layers_of_unit(fqn, module);
    any_chosen_ = any_chosen_ || layers > 0;
    beside.add(std::max(layers, 0));
    if (base != nullptr || layers > 0 || is_root) {
      if (base != nullptr && layers > 1) refuse_unit_among_layers(fqn, layers);
      // A module that is registered twice is one unit, which is called twice.
      if (!seen_units_.insert(&module).second) return;
      if (beside.unit < 0) {
        beside.unit = static_cast<int>(units_.size());
        units_.push_back({.fqn = fqn, .unit = base, .parent = enclosing});
      } else {
        // The name of a unit of several layers ends with the number of its last layer:
        // "layers.0-3".
        std::string& name = units_[beside.unit].fqn;
        name = units_[beside.unit].modules.front().fqn + "-" + fqn.substr(fqn.rfind('.') + 1);
      }
      unit = beside.unit;
      units_[unit].modules.push_back({fqn, module.shared_from_this()});
    }
    check_module(fqn, module);
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      add({join_fqn(fqn, item.key()), item.value()}, module, unit);
    }
    Neighbours children;
    for (const auto& child : module.named_children())
      visit(*child.value(), join_fqn(fqn, child.key()), unit, children);
  }

  void add(FoundParameter parameter, const torch::nn::Module& module, int unit) {
    if (!parameter.tensor.defined() || (options_.ignore && options_.ignore(parameter.fqn))) return;
    parameter.has_statistics = has_statistics(module, parameter.tensor);
    // named_parameters does not remove duplicates. Tied parameters are one tensor registered
    // several times, so their TensorImpl is the key.
    const c10::TensorImpl* key = parameter.tensor.unsafeGetTensorImpl();
    const auto found = index_.find(key);
    if (found != index_.end()) {
      Place& place = owners_[found->second].second;
      place.unit = common(place.unit, unit);
      place.found.has_statistics |= parameter.has_statistics;
      return;
    }
    index_[key] = owners_.size();
    owners_.push_back({key, {unit, std::move(parameter)}});
  }

  int depth(int unit) const { return unit == 0 ? 0 : 1 + depth(units_[unit].parent); }

  // Returns the innermost unit that contains both units. The deeper unit is replaced by its parent
  // until both are equal.
  int common(int a, int b) const {
    while (a != b) (depth(a) >= depth(b) ? a : b) = units_[depth(a) >= depth(b) ? a : b].parent;
    return a;
  }

  [[noreturn]] void refuse_unit_among_layers(const std::string& fqn, int layers) const {
    throw InvalidArgument(
        {.what = fmt::format("'{}' is a fsdp::Unit, but {} puts it into a unit of {} layers", fqn,
                             options_.units.described(), layers),
         .where = "Options::units",
         .cause = "a fsdp::Unit is gathered alone, when it is called",
         .hint = "make these layers plain modules, not fsdp::Unit"});
  }

  [[noreturn]] void refuse_policy(torch::nn::Module& root) const {
    std::string children;
    for (const auto& child : root.named_children()) {
      children += fmt::format("{}'{}' ({})", children.empty() ? "" : ", ", child.key(),
                              child.value()->name());
    }
    throw InvalidArgument({.what = fmt::format("{} chooses no module", options_.units.described()),
                           .where = "Options::units",
                           .cause = children.empty() ? "the model has no inner modules"
                                                     : "the model consists of " + children,
                           .hint = "choose the layers that repeat: by the type of their module "
                                   "(BlockImpl), or by the name of the module that holds them"});
  }

  const Options& options_;
  bool any_chosen_ = false;
  std::vector<FoundUnit> units_;
  std::unordered_set<const torch::nn::Module*> seen_units_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_;
  std::vector<std::pair<const c10::TensorImpl*, Place>> owners_;  // in the order of registration
};

}  // namespace

std::string join_fqn(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::vector<FoundUnit> find_units(torch::nn::Module& root, const Options& options) {
  return Walk(options).run(root);
}

void check_shardable(const std::vector<FoundUnit>& units, at::Device computes_on) {
  for (const FoundUnit& unit : units) {
    for (const FoundParameter& found : unit.parameters) {
      check_parameter(found.fqn, found.tensor, computes_on);
    }
  }
  check_overlap(units);
}

std::vector<FoundParameter> find_parameters(torch::nn::Module& module,
                                            const std::function<bool(const at::Tensor&)>& known,
                                            at::Device computes_on) {
  // Inner units are already sharded, so each parameter for which `known` is false belongs to this
  // unit.
  std::vector<FoundParameter> result;
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto visit = [&](auto&& self, torch::nn::Module& each, const std::string& fqn) -> void {
    check_module(fqn, each);
    for (const auto& item : each.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || known(tensor)) continue;
      if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      check_parameter(join_fqn(fqn, item.key()), tensor, computes_on);
      result.push_back({join_fqn(fqn, item.key()), tensor, has_statistics(each, tensor)});
    }
    for (const auto& child : each.named_children()) {
      self(self, *child.value(), join_fqn(fqn, child.key()));
    }
  };
  visit(visit, module, "");
  return result;
}

void connect_modules(const torch::nn::Module& root, const Mesh& mesh) {
  const bool any = std::ranges::any_of(root.modules(), [](const auto& module) {
    return dynamic_cast<const SyncBatchNormImpl*>(module.get()) != nullptr;
  });
  if (any && mesh.world_size() > 1) state_of(mesh).module_communicator();
}

}  // namespace fsdp
