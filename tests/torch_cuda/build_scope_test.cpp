// Tests a BuildScope on a machine where LibTorch computes on CUDA.
#include <fsdp/engine.h>

#include <map>
#include <memory>
#include <string>

#include "support/fake_cuda/fake_cuda.h"
#include "support/fake_cuda/fake_cuda_ranks.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

// A module whose constructor places parameters and buffers on different devices.
struct MixedImpl : nn::Module {
  MixedImpl() : inner(register_module("inner", Unit<nn::Linear>(4, 4))) {
    between = register_module("between", nn::Linear(4, 4));
    norm = register_module("norm", nn::BatchNorm1d(4));
    scale = register_parameter("scale", torch::randn({4}));
    positions = register_buffer("positions", torch::arange(4));
    table = register_buffer("table", torch::zeros({4}, kCpu));
    for (int64_t i = 0; i < 4; ++i) table.data_ptr<float>()[i] = static_cast<float>(i);
    placed = register_parameter("placed", torch::full({4}, 2.0, kCpu));
    for (const at::Tensor& each :
         {between->weight, between->bias, norm->weight, norm->running_mean, scale, positions}) {
      CHECK(each.device() == kGpu);
    }
    CHECK(placed.device() == kCpu);
  }
  at::Tensor forward(const at::Tensor& x) {
    return (norm(between(inner(x))) * scale + positions) * placed + table;
  }
  Unit<nn::Linear> inner;
  nn::Linear between = nullptr;
  nn::BatchNorm1d norm = nullptr;
  at::Tensor scale, positions, table, placed;
};
TORCH_MODULE(Mixed);

}  // namespace

TEST_CASE("under a BuildScope modules are constructed on the GPU, and the engine takes them") {
  const Mesh mesh = fake_cuda_ranks(1)[0];
  BuildScope building(mesh, {.seed = 5});
  fake_cuda::reset();
  Unit<Mixed> model;
  // Only the parameter on the CPU was copied.
  CHECK(fake_cuda::take_calls() ==
        std::vector<std::string>{"copy from pageable memory to the device on stream 0"});
  Engine engine(model, building);
  CHECK(torch::empty({1}).device() == kCpu);  // the scope has ended
  for (const at::Tensor& each : model->buffers()) CHECK(each.device() == kGpu);
  const at::Tensor out = model(torch::ones({3, 4}, kGpu));
  CHECK(out.device() == kGpu);
  out.sum().backward();
  CHECK(engine.measure_gradients().finite());
  const auto whole = full_parameters(engine);
  CHECK(bit_equal(whole.at("placed").cpu(), torch::full({4}, 2.0)));
  // The GPU's generator draws in the order in which the constructors run.
  at::manual_seed(5);
  const nn::Linear first(4, 4);
  CHECK(bit_equal(whole.at("inner.weight").cpu(), first->weight.detach()));
}

TEST_CASE("the GPU's generator draws a BuildScope's values, and the CPU's is left alone") {
  const Mesh mesh = fake_cuda_ranks(1)[0];
  BuildScope building(mesh, {.seed = 5});
  const Unit<nn::Linear> linear(4, 4);
  const at::Tensor host = torch::randn({3}, kCpu);
  at::manual_seed(5);
  CHECK(bit_equal(host, torch::randn({3}, kCpu)));
}

TEST_CASE("thread ranks construct the same values on the GPU, whatever their number") {
  std::map<std::string, at::Tensor> of_one;
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    run_ranks(
        world,
        [&](const Mesh& mesh) {
          BuildScope building(mesh, {.seed = 11});
          Unit<Chain> model(8, 2);
          Engine engine(model, building);
          const auto whole = full_parameters(engine);
          if (mesh.rank() > 0) return;
          if (world == 1) of_one = whole;
          for (const auto& [fqn, value] : whole) CHECK(bit_equal(value, of_one.at(fqn)));
        },
        on_fake_cuda());
  }
}

TEST_CASE("a BuildScope that is given up, or whose construction throws, leaves no default device") {
  const Mesh mesh = fake_cuda_ranks(1)[0];
  {
    const BuildScope building(mesh);
    CHECK(torch::empty({1}).device() == kGpu);
    CHECK_THROWS_AS(BuildScope(mesh, {}), StateError);  // a scope cannot be inside another scope
    CHECK(torch::empty({1}).device() == kGpu);
  }
  CHECK(torch::empty({1}).device() == kCpu);
  struct ThrowsImpl : nn::Module {
    ThrowsImpl() { throw std::runtime_error("no such configuration"); }
    at::Tensor forward(const at::Tensor& x) { return x; }
  };
  struct Throws : nn::ModuleHolder<ThrowsImpl> {
    using nn::ModuleHolder<ThrowsImpl>::ModuleHolder;
  };
  CHECK_THROWS_AS(
      [&] {
        const BuildScope building(mesh);
        const Unit<Throws> model;
      }(),
      std::runtime_error);
  CHECK(torch::empty({1}).device() == kCpu);
}

TEST_CASE("scopes that go in another order than they came leave the right default device") {
  const Mesh mesh = fake_cuda_ranks(1)[0];
  auto first = std::make_unique<BuildScope>(mesh);
  Unit<Chain> model(8, 1);
  const Engine engine(model, *first);
  const BuildScope second(mesh);
  first.reset();  // the scope ended when the engine was built
  CHECK(torch::empty({1}).device() == kGpu);
}
