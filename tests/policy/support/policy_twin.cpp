#include "policy/support/policy_twin.h"

#include <fmt/format.h>

#include "libtorch/torch_compat.h"

namespace fsdp::testing {
namespace {

constexpr double kRate = 0.25;

std::map<std::string, at::Tensor> copies_of(const torch::OrderedDict<std::string, at::Tensor>& of) {
  std::map<std::string, at::Tensor> result;
  for (const auto& item : of) result[item.key()] = item.value().detach().clone();
  return result;
}

at::Tensor cast(const at::Tensor& tensor, std::optional<at::ScalarType> dtype) {
  if (!dtype || !tensor.is_floating_point()) return tensor;
  return tensor.to(*dtype);
}

// Returns true if a parameter belongs to a normalization with running statistics. Such parameters
// are computed in the dtype in which they were made (docs/numerics.md).
bool has_statistics(torch::nn::Module& root, const at::Tensor& parameter) {
  for (const auto& module : root.modules()) {
    for (const at::Tensor& own : module->parameters(/*recurse=*/false)) {
      if (own.is_same(parameter)) return !module->buffers(/*recurse=*/false).empty();
    }
  }
  return false;
}

}  // namespace

PolicyResult train_rank(const PlainModel& model, const Mesh& mesh, Options options) {
  PolicyResult result;
  options.units = model.units;
  const auto module = build_seeded(3, model.make);
  Engine engine(module, mesh, options);
  torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(kRate));
  engine.observe_events([&](std::string_view event, std::string_view unit) {
    result.events.push_back(fmt::format("{} {}", event, unit));
  });
  for (int step = 0; step < kPolicySteps; ++step) {
    result.events.clear();
    Tensors inputs = model.inputs(step, mesh.rank());
    for (at::Tensor& input : inputs) input = input.to(engine.device());
    const at::Tensor loss = engine.forward(
        [&](const Tensors& cast_inputs) { return model.loss(*module, cast_inputs); }, inputs);
    loss.backward();
    result.losses.push_back(loss.item<float>());
    optimizer.step();
    optimizer.zero_grad();
  }
  engine.observe_events(nullptr);
  result.parameters = full_parameters(engine);
  for (auto& [fqn, value] : result.parameters) value = value.to(at::kCPU);
  result.buffers = copies_of(module->named_buffers());
  return result;
}

PolicyResult train_plainly(const PlainModel& model, const MeshShape& shape, bool by_groups,
                           std::optional<at::ScalarType> param_dtype) {
  PolicyResult result;
  // Each rank has its own statistics. Only those of rank 0 are compared.
  std::vector<std::shared_ptr<torch::nn::Module>> ranks;
  for (int rank = 0; rank < shape.size(Axis::kWorld); ++rank) {
    ranks.push_back(build_seeded(3, model.make));
  }
  torch::nn::Module& first = *ranks[0];
  const auto values = copies_of(first.named_parameters());
  std::vector<at::Tensor> distinct;  // a tied parameter has several names
  for (const at::Tensor& each : first.parameters()) {
    const bool known =
        std::ranges::any_of(distinct, [&](const at::Tensor& other) { return other.is_same(each); });
    if (!known) distinct.push_back(each);
  }
  std::vector<at::Tensor> masters;
  for (const at::Tensor& each : distinct) masters.push_back(each.detach().clone());
  const auto parameters_of = [&](torch::nn::Module& module) {
    std::vector<at::Tensor> all;
    for (const at::Tensor& each : module.parameters()) {
      const bool known =
          std::ranges::any_of(all, [&](const at::Tensor& other) { return other.is_same(each); });
      if (!known) all.push_back(each);
    }
    return all;
  };
  const auto backward_of = [&](int step, int rank) {
    torch::nn::Module& module = *ranks[static_cast<size_t>(rank)];
    std::vector<at::Tensor> own = parameters_of(module);
    for (size_t i = 0; i < own.size(); ++i) {
      const bool is_cast = !has_statistics(module, own[i]);
      own[i].mutable_grad() = at::Tensor();
      own[i].set_data(is_cast ? cast(masters[i], param_dtype).clone() : masters[i].clone());
    }
    Tensors inputs = model.inputs(step, rank);
    for (at::Tensor& input : inputs) input = cast(input, param_dtype);
    const at::Tensor loss = model.loss(module, inputs);
    loss.backward();
    if (rank == 0) result.losses.push_back(loss.item<float>());
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < own.size(); ++i) {
      gradients.push_back(own[i].grad().defined() ? own[i].grad().to(at::kFloat)
                                                  : at::zeros_like(masters[i]));
    }
    return gradients;
  };
  const int groups = by_groups ? shape.replicate : 1;
  const int in_group = shape.size(Axis::kWorld) / groups;
  const auto add = [](std::vector<at::Tensor>& sums, const std::vector<at::Tensor>& terms) {
    if (sums.empty()) {
      for (const at::Tensor& term : terms) sums.push_back(term.clone());
    } else {
      for (size_t i = 0; i < terms.size(); ++i) sums[i] += terms[i];
    }
  };
  const auto divide = [](std::vector<at::Tensor>& sums, int by) {
    if (by > 1) {
      for (at::Tensor& sum : sums) sum = sum / by;
    }
  };
  for (int step = 0; step < kPolicySteps; ++step) {
    std::vector<at::Tensor> means;
    for (int group = 0; group < groups; ++group) {
      std::vector<at::Tensor> sums;
      for (int place = 0; place < in_group; ++place) {
        add(sums, backward_of(step, group * in_group + place));
      }
      divide(sums, in_group);
      add(means, sums);
    }
    divide(means, groups);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < masters.size(); ++i) masters[i].add_(means[i], -kRate);
  }
  for (const auto& item : first.named_parameters()) {
    for (size_t i = 0; i < distinct.size(); ++i) {
      if (distinct[i].is_same(item.value())) result.parameters[item.key()] = masters[i];
    }
  }
  result.buffers = copies_of(first.named_buffers());
  return result;
}

std::string first_difference(const PolicyResult& sharded, const PolicyResult& plain) {
  if (sharded.losses != plain.losses) return "losses";
  if (sharded.parameters.empty()) return "there are no parameters";
  for (const auto& [fqn, value] : sharded.parameters) {
    if (!bit_equal(value, plain.parameters.at(fqn))) return fqn;
  }
  for (const auto& [fqn, value] : plain.buffers) {
    if (!bit_equal(sharded.buffers.at(fqn).cpu(), value)) return fqn;
  }
  return {};
}

}  // namespace fsdp::testing
