// Tests small programs whose loop is not forward, backward, step. Units are chosen by policy or by
// type. The reference is the same program without an engine. All ranks have the same data, so their
// mean gradient has the bits of one rank's gradient.
#include "ports/support/twins.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

struct LoopNetImpl : nn::Module {
  LoopNetImpl(int64_t in, int64_t out)
      : fc1(register_module("fc1", nn::Linear(in, 16))),
        fc2(register_module("fc2", nn::Linear(16, out))) {}
  at::Tensor forward(at::Tensor x) { return fc2(torch::tanh(fc1(x))); }
  nn::Linear fc1, fc2;
};
TORCH_MODULE(LoopNet);

struct LoopDecoderImpl : nn::Module {
  LoopDecoderImpl(int64_t width, int64_t out)
      : cell(register_module("cell", nn::GRUCell(out, width))),
        fc(register_module("fc", nn::Linear(width, out))) {}
  std::tuple<at::Tensor, at::Tensor> forward(at::Tensor x, at::Tensor state) {
    state = cell(x, state);
    return {fc(state), state};
  }
  nn::GRUCell cell;
  nn::Linear fc;
};
TORCH_MODULE(LoopDecoder);

enum class Way { kPlain, kPolicy, kUnit };

// A model without an engine, or with units chosen in one of two ways. `parameters` are its own
// parameters or its local shards.
template <class Holder>
class LoopModel {
 public:
  LoopModel(Way way, const Mesh& mesh, bool frozen, int64_t in, int64_t out) : way_(way) {
    build_seeded(1, [&] {
      if (way == Way::kUnit) unit_ = Unit<Holder>(in, out);
      if (way != Way::kUnit) plain_ = Holder(in, out);
      return 0;
    });
    const std::shared_ptr<nn::Module> module =
        way == Way::kUnit ? std::shared_ptr<nn::Module>(unit_.ptr()) : plain_.ptr();
    for (const at::Tensor& parameter : module->parameters()) parameter.set_requires_grad(!frozen);
    if (way == Way::kPlain) {
      parameters = module->parameters();
      return;
    }
    Options options;
    if (way == Way::kPolicy) options.units = by_type<nn::Linear, nn::GRUCell>();
    engine_ = std::make_unique<Engine>(module, mesh, options);
    for (const ShardedParameter& each : engine_->sharded_parameters())
      parameters.push_back(each.local);
  }
  template <class... Inputs>
  auto operator()(Inputs... inputs) {
    if (way_ == Way::kUnit) return unit_(inputs...);
    if (way_ == Way::kPolicy) return engine_->forward(plain_, inputs...);
    return plain_(inputs...);
  }

  std::vector<at::Tensor> parameters;

 private:
  Way way_;
  Holder plain_{nullptr};
  Unit<Holder> unit_{nullptr};
  std::unique_ptr<Engine> engine_;
};

at::Tensor loop_data(int64_t step) { return values({8, 6}, 300 + step); }
at::Tensor far_from_one(const at::Tensor& x) { return (x - 1).square().mean(); }
torch::optim::SGD sgd_of(std::vector<at::Tensor> parameters) {
  return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1));
}
void move_to(const std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from, double part) {
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < to.size(); ++i) to[i].lerp_(from[i], part);
}

constexpr int64_t kLoopSteps = 5;

// Trains the input of a frozen network.
std::vector<double> transfer_style(Way way, const Mesh& mesh) {
  LoopModel<LoopNet> net(way, mesh, /*frozen=*/true, 6, 4);
  const at::Tensor picture = loop_data(0).clone().requires_grad_();
  torch::optim::Adam optimizer({picture}, torch::optim::AdamOptions(0.05));
  std::vector<double> losses;
  for (int64_t step = 0; step < kLoopSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = far_from_one(net(picture));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// Trains on the output of a copy, as in Q-learning. The copy follows the network slowly, and in one
// step completely.
std::vector<double> learn_values(Way way, const Mesh& mesh) {
  LoopModel<LoopNet> net(way, mesh, false, 6, 3), target(way, mesh, /*frozen=*/true, 6, 3);
  torch::optim::SGD optimizer = sgd_of(net.parameters);
  std::vector<double> losses;
  for (int64_t step = 0; step < kLoopSteps; ++step) {
    at::Tensor wanted;
    {
      torch::NoGradGuard no_grad;
      wanted = 0.9 * std::get<0>(target(loop_data(step + 1)).max(1)) + 0.1;
    }
    optimizer.zero_grad();
    const at::Tensor loss = at::smooth_l1_loss(std::get<0>(net(loop_data(step)).max(1)), wanted);
    loss.backward();
    for (const at::Tensor& parameter : net.parameters)
      if (parameter.grad().defined()) parameter.grad().clamp_(-1, 1);
    optimizer.step();
    move_to(target.parameters, net.parameters, step == 2 ? 1.0 : 0.3);
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// Trains with three calls and one backward.
std::vector<double> compare_pairs(Way way, const Mesh& mesh) {
  LoopModel<LoopNet> net(way, mesh, false, 6, 4);
  torch::optim::SGD optimizer = sgd_of(net.parameters);
  std::vector<double> losses;
  for (int64_t step = 0; step < kLoopSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (net(loop_data(step)) - net(loop_data(step + 9))).square().mean() +
                            far_from_one(net(loop_data(step + 20)));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// Trains two models through one graph. The second model is called repeatedly.
std::vector<double> translate(Way way, const Mesh& mesh) {
  LoopModel<LoopNet> encoder(way, mesh, false, 6, 8);
  LoopModel<LoopDecoder> decoder(way, mesh, false, 8, 6);
  torch::optim::SGD first = sgd_of(encoder.parameters), second = sgd_of(decoder.parameters);
  std::vector<double> losses;
  for (int64_t step = 0; step < kLoopSteps; ++step) {
    first.zero_grad();
    second.zero_grad();
    at::Tensor state = encoder(loop_data(step)), word = torch::zeros({8, 6}), loss;
    for (int64_t place = 0; place < 4; ++place) {
      std::tie(word, state) = decoder(word, state);
      const at::Tensor wrong = (word - loop_data(step + place)).square().mean();
      loss = loss.defined() ? loss + wrong : wrong;
    }
    loss.backward();
    first.step();
    second.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// Runs all forwards first, then zeroes the gradients, then runs all backwards.
std::vector<double> add_up(Way way, const Mesh& mesh) {
  LoopModel<LoopNet> net(way, mesh, false, 6, 4);
  torch::optim::SGD optimizer = sgd_of(net.parameters);
  std::vector<double> losses;
  for (int64_t step = 0; step < kLoopSteps; ++step) {
    std::vector<at::Tensor> made;
    for (int64_t part = 0; part < 3; ++part)
      made.push_back(far_from_one(net(loop_data(step + part))));
    optimizer.zero_grad();
    for (const at::Tensor& loss : made) {
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    optimizer.step();
  }
  return losses;
}

// Trains on an adversarial input. A first backward computes the gradient of an input. Then two
// backwards run through the graph of the changed input.
std::vector<double> resist(Way way, const Mesh& mesh) {
  LoopModel<LoopNet> net(way, mesh, false, 6, 4);
  torch::optim::SGD optimizer = sgd_of(net.parameters);
  std::vector<double> losses;
  for (int64_t step = 0; step < kLoopSteps; ++step) {
    const at::Tensor x = loop_data(step).clone().requires_grad_();
    far_from_one(net(x)).backward();
    const at::Tensor harder = (x + 0.1 * x.grad().sign()).detach();
    optimizer.zero_grad();
    const at::Tensor y = net(harder);
    const at::Tensor actor = far_from_one(y.slice(1, 0, 2)), critic = y.slice(1, 2).abs().mean();
    actor.backward({}, /*retain_graph=*/true);
    critic.backward();
    optimizer.step();
    losses.push_back((actor + critic).item<double>());
  }
  return losses;
}

}  // namespace

TEST_CASE("programs whose loops are others have the plain program's bits, by policy and as units") {
  const std::pair<const char*, std::vector<double> (*)(Way, const Mesh&)> kPrograms[] = {
      {"style transfer: the input of a frozen net is trained", transfer_style},
      {"Q-learning: a target network, gradients clamped", learn_values},
      {"pairs: one model called three times, one backward", compare_pairs},
      {"sequence to sequence: two engines, one graph", translate},
      {"accumulation: all forwards before all backwards", add_up},
      {"adversarial training: gradients of inputs, two losses on a graph", resist}};
  for (const auto& [name, program] : kPrograms) {
    CAPTURE(name);
    const std::vector<double> plain = program(Way::kPlain, Mesh::single());
    for (const int world : {1, 2, 4}) {
      CAPTURE(world);
      run_torch_ranks(world, [&, program = program](Mesh mesh) {
        check_values(program(Way::kPolicy, mesh), plain, 0);
        check_values(program(Way::kUnit, mesh), plain, 0);
      });
    }
  }
}
