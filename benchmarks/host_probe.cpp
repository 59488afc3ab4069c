// Measures the engine's host time. The same chain of small layers runs in three ways: plain,
// sharded over one rank, and sharded over eight ranks. Seven of the eight are simulated, so
// collectives move no data. Reads a command from each line and prints the microseconds per unit and
// step (forward, backward, zero_grad). With a LIMIT in bytes (Options::memory_limit), every
// tensor of the process is counted, also in the plain chain.
//   host_probe UNITS ROWS [LIMIT]
//   plain | world1 | world8  STEPS
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "tests/support/simulated_mesh.h"

namespace {

constexpr int64_t kWidth = 64;

template <class Layer>
struct ChainImpl : torch::nn::Module {
  explicit ChainImpl(int64_t units) {
    for (int64_t i = 0; i < units; ++i) {
      layers.push_back(register_module(fmt::format("layer{}", i), Layer(kWidth, kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<Layer> layers;
};
using Linear = torch::nn::Linear;
using PlainChain = torch::nn::ModuleHolder<ChainImpl<Linear>>;
using ShardedChain = fsdp::Unit<torch::nn::ModuleHolder<ChainImpl<fsdp::Unit<Linear>>>>;

class Probe {
 public:
  Probe(int64_t units, int64_t rows, int64_t limit)
      : units_(units),
        limit_(limit),
        input_(torch::ones({rows, kWidth})),
        plain_(seeded<PlainChain>()) {
    at::set_num_threads(1);
  }

  double run(const std::string& name, int64_t steps) {
    if (name == "plain") {
      return time(
          steps, [this] { return step(plain_); }, [this] { plain_->zero_grad(); });
    }
    for (Sharded& sharded : sharded_) {
      if (sharded.name != name) continue;
      return time(
          steps, [&] { return step(sharded.model); }, [&] { sharded.engine.zero_grad(); });
    }
    throw fsdp::InvalidArgument({.what = fmt::format("there is no case '{}'", name),
                                 .where = "host_probe",
                                 .hint = "use plain, world1 or world8"});
  }

  // Throws unless the losses of the plain chain and of the chain on one rank are bit-equal.
  void check() {
    const float plain = step(plain_);
    const float sharded = step(sharded_[0].model);
    plain_->zero_grad();
    sharded_[0].engine.zero_grad();
    if (plain == sharded) return;
    throw fsdp::StateError(
        {.what = fmt::format("the loss is {}, expected {}", sharded, plain),
         .where = "host_probe",
         .hint = "correct the result first: the time of a wrong result does not count"});
  }

 private:
  struct Sharded {
    Sharded(std::string name, ShardedChain chain, const fsdp::Mesh& mesh, int64_t limit)
        : name(std::move(name)),
          model(std::move(chain)),
          engine(model, mesh, {.memory_limit = limit}) {}
    std::string name;
    ShardedChain model;
    fsdp::Engine engine;
  };

  template <class Chain>
  Chain seeded() const {
    torch::manual_seed(0);
    return Chain(units_);
  }

  template <class Chain>
  float step(Chain& chain) {
    const at::Tensor loss = chain(input_).sum();
    loss.backward();
    return loss.template item<float>();
  }

  template <class Step, class ZeroGrad>
  double time(int64_t steps, const Step& step, const ZeroGrad& zero_grad) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < steps; ++i) {
      step();
      zero_grad();
    }
    const std::chrono::duration<double, std::micro> spent =
        std::chrono::steady_clock::now() - start;
    return spent.count() / static_cast<double>(steps * units_);
  }

  int64_t units_, limit_;
  at::Tensor input_;
  PlainChain plain_;
  std::array<Sharded, 2> sharded_{
      Sharded("world1", seeded<ShardedChain>(), fsdp::Mesh::single(), limit_),
      Sharded("world8", seeded<ShardedChain>(), fsdp::testing::simulated_mesh(8), limit_)};
};

int serve(int64_t units, int64_t rows, int64_t limit) {
  Probe probe(units, rows, limit);
  probe.check();
  std::string name;
  for (int64_t steps = 0; std::cin >> name >> steps;) {
    fmt::print("{:.4f}\n", probe.run(name, steps));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    fmt::print(stderr, "usage: host_probe UNITS ROWS [LIMIT]\n");
    return 64;
  }
  try {
    return serve(std::stoll(argv[1]), std::stoll(argv[2]), argc == 4 ? std::stoll(argv[3]) : 0);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", fsdp::error_line(error, {}));
    return static_cast<int>(fsdp::exit_code_of(error));
  }
}
