// Compares optimizers that LibTorch does not have in C++ with 200 steps of Python's, which
// tests/optim/record_optimizers.py has recorded.
#include <fsdp/optim.h>

#include <fstream>
#include <sstream>

#include "plan/placement.h"
#include "support/models.h"
#include "support/source_tree.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct RecordedCase {
  std::string line, name;
  std::map<std::string, double> options;
  std::map<int, std::vector<float>> after;  // values of all parameters, by steps
};

std::vector<RecordedCase> read_recorded_cases() {
  std::ifstream file(source_file("tests/optim/records/optimizers.txt"));
  std::vector<RecordedCase> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "case") {
      RecordedCase& added = cases.emplace_back();
      added.line = line;
      words >> added.name;
      while (words >> word) {
        const size_t equals = word.find('=');
        added.options[word.substr(0, equals)] = std::stod(word.substr(equals + 1));
      }
    } else {
      int steps = 0;
      words >> steps;
      for (float value = 0; words >> value;) cases.back().after[steps].push_back(value);
    }
  }
  return cases;
}

// Parameters whose gradients are small numbers that depend on the step and are equal on all ranks,
// so their mean is exact. record_optimizers.py computes the same values.
struct RecordedPartImpl : torch::nn::Module {
  RecordedPartImpl(int first_number, std::vector<std::vector<int64_t>> shapes)
      : first(first_number) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int64_t number = first + static_cast<int64_t>(i);
      const at::Tensor at = at::arange(c10::multiply_integers(shapes[i]));
      const at::Tensor value = ((at * 37 + number * 11) % 64 - 32).to(at::kFloat);
      values.push_back(register_parameter(
          "p" + std::to_string(number), (value * (number == 1 ? 0.0 : 1.0 / 64)).view(shapes[i])));
    }
  }
  at::Tensor forward(int64_t step) {
    at::Tensor loss = at::zeros({});
    for (size_t i = 0; i < values.size(); ++i) {
      const at::Tensor at = at::arange(values[i].numel());
      const at::Tensor gradient =
          ((at * 13 + (first + static_cast<int64_t>(i)) * 7 + step * (at % 5 + 3)) % 17 - 8) / 8.0;
      loss = loss + (values[i] * gradient.to(at::kFloat).view_as(values[i])).sum();
    }
    return loss;
  }
  int64_t first;
  std::vector<at::Tensor> values;
};
TORCH_MODULE(RecordedPart);

struct RecordedNetImpl : torch::nn::Module {
  RecordedNetImpl()
      : parts{Unit<RecordedPart>(0, std::vector<std::vector<int64_t>>{{}, {5}}),
              Unit<RecordedPart>(2, std::vector<std::vector<int64_t>>{{9, 7}, {2, 3, 4}})} {
    for (auto& part : parts) register_module("part" + std::to_string(part->first), part);
  }
  at::Tensor forward(int64_t step) { return parts[0](step) + parts[1](step); }
  std::vector<Unit<RecordedPart>> parts;
};
TORCH_MODULE(RecordedNet);

// Returns fsdp's optimizer for a recorded case.
std::unique_ptr<Optimizer> make_recorded(Engine& engine, const RecordedCase& of) {
  const auto get = [&](const std::string& name, double otherwise) {
    const auto found = of.options.find(name);
    return found == of.options.end() ? otherwise : found->second;
  };
  const auto with_common = [&](auto options) {
    options.lr = get("lr", 0);
    options.weight_decay = get("weight_decay", 0);
    options.groups = {{.match = is_bias_or_norm, .lr_scale = 0.5}};
    if constexpr (requires { options.beta1; }) {
      options.beta1 = get("beta1", options.beta1);
      options.beta2 = get("beta2", options.beta2);
    }
    if constexpr (requires { options.eps; }) options.eps = get("eps", options.eps);
    if constexpr (requires { options.always_adapt; }) {
      options.always_adapt = get("always_adapt", 1) != 0;
    }
    return options;
  };
  if (of.name == "Lion") return std::make_unique<Lion>(engine, with_common(LionOptions{}));
  if (of.name == "Lamb") return std::make_unique<Lamb>(engine, with_common(LambOptions{}));
  if (of.name == "Lars") {
    LarsOptions options = with_common(LarsOptions{});
    options.momentum = get("momentum", 0);
    options.nesterov = get("nesterov", 0) != 0;
    options.trust_coefficient = get("trust_coefficient", 0);
    return std::make_unique<Lars>(engine, options);
  }
  RAdamOptions options = with_common(RAdamOptions{});
  options.decoupled_weight_decay = get("decoupled_weight_decay", 0) != 0;
  return std::make_unique<RAdam>(engine, options);
}

// Trains and returns all elements of all parameters after step 1, step 200 and the last step.
// Gradients that are not finite come between steps 2 and 3, and the optimizer skips them.
std::map<int, std::vector<float>> train_recorded(const RecordedCase& of, const MeshShape& shape,
                                                 const Options& options, int steps) {
  std::map<int, std::vector<float>> result;
  run_torch_ranks(shape, [&](Mesh mesh) {
    Unit<RecordedNet> model;
    Engine engine(model, mesh, options);
    const std::unique_ptr<Optimizer> optimizer = make_recorded(engine, of);
    for (int step = 0; step < steps; ++step) {
      if (step == 100) optimizer->set_lr(optimizer->lr() / 2);
      if (step == 2) {
        (engine.forward([&] { return model(step); }) * std::numeric_limits<float>::infinity())
            .backward();
        CHECK(optimizer->step().skipped());
        optimizer->zero_grad();
      }
      engine.forward([&] { return model(step); }).backward();
      optimizer->clip_grad_norm(1e6);
      CHECK_FALSE(optimizer->step().skipped());
      optimizer->zero_grad();
      if (!of.after.contains(step + 1) && step + 1 != steps) continue;
      const auto parameters = full_parameters(engine);
      if (mesh.rank() != 0) continue;
      for (const auto& [fqn, value] : parameters) {
        const at::Tensor flat = value.flatten().contiguous();
        result[step + 1].insert(result[step + 1].end(), flat.const_data_ptr<float>(),
                                flat.const_data_ptr<float>() + flat.numel());
      }
    }
    CHECK(optimizer->steps() == steps);
  });
  return result;
}

// Returns the largest difference between two lists.
float largest_difference(const std::vector<float>& one, const std::vector<float>& other) {
  REQUIRE(one.size() == other.size());
  float largest = 0;
  for (size_t i = 0; i < one.size(); ++i) largest = std::max(largest, std::abs(one[i] - other[i]));
  return largest;
}

}  // namespace

// An update differs from Python's by a few roundings, because Python rounds more often. The bound
// is 1 % of one update, and 200 updates were made.
TEST_CASE("200 steps equal Python's, with equal bits for every number of ranks") {
  const std::vector<RecordedCase> cases = read_recorded_cases();
  REQUIRE(cases.size() >= 10);
  for (const RecordedCase& each : cases) {
    if (is_simulated_gpu() && &each != &cases.front()) break;
    CAPTURE(each.line);
    const auto one = train_recorded(each, {.shard = 1}, {}, 200);
    CHECK(largest_difference(one.at(1), each.after.at(1)) < 1e-7F);
    CHECK(largest_difference(one.at(200), each.after.at(200)) < 0.01 * each.options.at("lr"));
    for (const int world : {2, 3, 5}) {
      if (is_simulated_gpu()) continue;  // 200 steps would take minutes
      CAPTURE(world);
      CHECK(train_recorded(each, {.shard = world}, {}, 200) == one);
    }
  }
}

constexpr int kFewSteps = 8;  // enough for RAdam to be rectified

TEST_CASE("the strategies and main state on the host give the same bits") {
  for (const RecordedCase& each : read_recorded_cases()) {
    CAPTURE(each.line);
    const auto one = train_recorded(each, {.shard = 1}, {}, kFewSteps);
    for (const Strategy strategy : kAllStrategies) {
      if (is_simulated_gpu() && strategy != Strategy::kHybridShard) continue;
      CAPTURE(name_of(strategy));
      const bool offloads = strategy != Strategy::kFullShard;
      CHECK(train_recorded(each, {.replicate = 2, .shard = 2},
                           {.cpu_offload = offloads, .strategy = strategy}, kFewSteps) == one);
    }
  }
}
