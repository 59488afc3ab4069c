// Compares units by policy with units by type. The same models run twice in one process, once with
// fsdp::Unit as the boundary of layers and once without. Reads a command from each line and prints
// microseconds of one thread's processor time. touch: for an operator on a parameter. block, base:
// for a layer and step (forward, backward, zero_grad); with "8", as rank 0 of eight ranks, of which
// seven are simulated. plain: for a layer and step of a model without an engine.
//   policy_probe [bare]
//   CASE unit|policy STEPS        touch, block, block8, base
//   plain - STEPS
// "bare": the process has no engine and answers only plain.
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <cstdio>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/simulated_mesh.h"

namespace {

namespace nn = torch::nn;

// A module that runs one operator on one parameter many times.
struct TouchesImpl : nn::Module {
  static constexpr int64_t kTimes = 2000;
  TouchesImpl() { weight = register_parameter("weight", torch::ones({8})); }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y;
    for (int64_t i = 0; i < kTimes; ++i) y = x * weight;
    return y;
  }
  at::Tensor weight;
};
TORCH_MODULE(Touches);

struct Shape {
  int64_t layers, width, heads, tokens;
};

template <class Layer>
struct StackImpl : nn::Module {
  explicit StackImpl(const Shape& shape) {
    const auto options = nn::TransformerEncoderLayerOptions(shape.width, shape.heads)
                             .dim_feedforward(4 * shape.width)
                             .dropout(0);
    for (int64_t i = 0; i < shape.layers; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), Layer(options)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Layer> layers;
};
using Layer = nn::TransformerEncoderLayer;
template <class L>
using Stack = nn::ModuleHolder<StackImpl<L>>;

using Step = std::function<float()>;

// Returns a function that runs a step of a model with an engine. The function owns both.
template <class Model, class Call>
Step sharded(Model model, const fsdp::Mesh& mesh, fsdp::Options options, at::Tensor input,
             Call call) {
  auto engine = std::make_shared<fsdp::Engine>(model, mesh, std::move(options));
  return [model, engine, input, call]() mutable {
    const at::Tensor loss = call(*engine, model, input);
    loss.backward();
    engine->zero_grad();
    return loss.template item<float>();
  };
}

class Probe {
 public:
  explicit Probe(bool bare) {
    at::set_num_threads(1);
    const Shape block{.layers = 12, .width = 48, .heads = 4, .tokens = 16};
    plain_ = plain_step(block);
    if (bare) return;
    add_touch();
    add_stacks("block", block, fsdp::Mesh::single());
    add_stacks("block8", block, fsdp::testing::simulated_mesh(8));
    add_stacks("base", {.layers = 12, .width = 768, .heads = 12, .tokens = 128},
               fsdp::Mesh::single());
  }

  double run(const std::string& name, const std::string& boundary, int64_t steps) {
    if (name == "plain") return time(plain_, steps, 12);
    const auto found = steps_.find(name + " " + boundary);
    if (found == steps_.end()) {
      throw fsdp::InvalidArgument(
          {.what = fmt::format("there is no case '{} {}'", name, boundary),
           .where = "policy_probe",
           .hint = "use touch, block, block8 or base, with unit or policy"});
    }
    return time(found->second, steps, name == "touch" ? TouchesImpl::kTimes : 12);
  }

 private:
  static constexpr auto kByUnit = [](fsdp::Engine&, auto& model, const at::Tensor& x) {
    return model(x).sum();
  };
  static constexpr auto kByPolicy = [](fsdp::Engine& engine, auto& model, const at::Tensor& x) {
    return engine.forward([&](const at::Tensor& input) { return model(input).sum(); }, x);
  };

  static Step plain_step(const Shape& shape) {
    torch::manual_seed(0);
    Stack<Layer> model(shape);
    return [model, input = torch::ones({shape.tokens, 1, shape.width})]() mutable {
      const at::Tensor loss = model(input).sum();
      loss.backward();
      model->zero_grad();
      return loss.item<float>();
    };
  }
  // Adds the two steps of a case. Throws unless their losses are bit-equal.
  void add(const std::string& name, Step by_unit, Step by_policy) {
    const float expected = by_unit(), got = by_policy();
    if (expected != got) {
      throw fsdp::StateError(
          {.what = fmt::format("the loss is {}, expected {}", got, expected),
           .where = name,
           .hint = "correct the result first: the time of a wrong result does not count"});
    }
    steps_[name + " unit"] = std::move(by_unit);
    steps_[name + " policy"] = std::move(by_policy);
  }
  void add_touch() {
    const fsdp::Mesh mesh = fsdp::Mesh::single();
    const at::Tensor x = torch::ones({8});
    nn::Sequential plain{Touches()};
    add("touch", sharded(fsdp::Unit<Touches>(), mesh, {}, x, kByUnit),
        sharded(plain, mesh, {.units = fsdp::by_type<Touches>()}, x,
                [](fsdp::Engine& engine, auto& model, const at::Tensor& input) {
                  return engine.forward(
                      [&](const at::Tensor& given) { return model->forward(given).sum(); }, input);
                }));
  }
  void add_stacks(const std::string& name, const Shape& shape, const fsdp::Mesh& mesh) {
    const at::Tensor x = torch::ones({shape.tokens, 1, shape.width});
    torch::manual_seed(0);
    fsdp::Unit<Stack<fsdp::Unit<Layer>>> by_type(shape);
    torch::manual_seed(0);
    Stack<Layer> plain(shape);
    add(name, sharded(by_type, mesh, {}, x, kByUnit),
        sharded(plain, mesh, {.units = fsdp::by_type<Layer>()}, x, kByPolicy));
  }

  static double time(const Step& step, int64_t steps, int64_t parts) {
    const std::clock_t start = std::clock();
    for (int64_t i = 0; i < steps; ++i) step();
    const double spent = 1e6 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    return spent / static_cast<double>(steps * parts);
  }

  Step plain_;
  std::map<std::string, Step> steps_;
};

}  // namespace

int main(int argc, char** argv) {
  const bool bare = argc == 2 && std::string(argv[1]) == "bare";
  if (argc > 2 || (argc == 2 && !bare)) {
    fmt::print(stderr, "usage: policy_probe [bare]\n");
    return 64;
  }
  try {
    Probe probe(bare);
    std::string name, boundary;
    for (int64_t steps = 0; std::cin >> name >> boundary >> steps;) {
      fmt::print("{:.4f}\n", probe.run(name, boundary, steps));
      std::fflush(stdout);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
