// Trains the ResNet of ports/resnet on thread ranks. The BatchNorm of each rank uses the rank's own
// batch.

#include "ports/resnet/model.h"
#include "ports/support/port.h"
#include "ports/support/twins.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct ResNetRun {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> parameters;
};

const auto kResNetSgd = torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4);

ports::ResNet build_resnet() {
  return build_seeded(1, [] { return ports::ResNet(10); });
}

template <class Classify>
at::Tensor resnet_loss(const ports::Part& part, Classify classify) {
  const auto [x, labels] = ports::images(part, 3, 16, 10);
  return at::cross_entropy_loss(classify(x), labels);
}

ResNetRun train_resnet_plainly(int world) {
  ports::ResNet model = build_resnet();
  torch::optim::SGD optimizer(model->parameters(), kResNetSgd);
  ResNetRun run;
  for (int64_t step = 0; step < ports::kSteps; ++step) {
    double sum = 0;
    mean_gradients(*model, world, [&](int rank) {
      const at::Tensor loss = resnet_loss({.step = step, .index = rank, .count = world}, model);
      sum += loss.item<double>();
      loss.backward();
    });
    optimizer.step();
    run.losses.push_back(sum / world);
  }
  run.parameters = plain_parameters(*model);
  return run;
}

template <class MakeOptimizer>
ResNetRun train_resnet(const Mesh& mesh, MakeOptimizer make_optimizer) {
  ports::ResNet model = build_resnet();
  Engine engine(model, mesh, {.units = each_child_of("layers"), .debug = true});
  auto optimizer = make_optimizer(engine);
  ResNetRun run;
  for (int64_t step = 0; step < ports::kSteps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss =
        resnet_loss({.step = step, .index = mesh.rank(), .count = mesh.world_size()},
                    [&](const at::Tensor& x) { return engine.forward(model, x); });
    loss.backward();
    optimizer->step();
    run.losses.push_back(mesh.mean(loss, "loss"));
  }
  run.parameters = full_parameters(engine);
  return run;
}

void check_resnet(const ResNetRun& got, const ResNetRun& plain) {
  check_values(got.losses, plain.losses, 0);
  for (const auto& [name, value] : plain.parameters) {
    CAPTURE(name);
    CHECK(bit_equal(got.parameters.at(name), value));
  }
}

}  // namespace

TEST_CASE("a ResNet by policy has the plain program's bits, with fsdp's SGD and with LibTorch's") {
  for (const int world : kPortRanks) {
    CAPTURE(world);
    const ResNetRun plain = train_resnet_plainly(world);
    CHECK(plain.losses.back() < plain.losses.front());
    run_torch_ranks(world, [&](Mesh mesh) {
      check_resnet(
          train_resnet(mesh,
                       [](Engine& engine) {
                         return std::make_unique<SGD>(
                             engine, SgdOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4});
                       }),
          plain);
      check_resnet(train_resnet(mesh,
                                [](Engine& engine) {
                                  return std::make_unique<torch::optim::SGD>(engine.parameters(),
                                                                             kResNetSgd);
                                }),
                   plain);
    });
  }
}
