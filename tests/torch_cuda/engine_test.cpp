// Tests the engine when LibTorch computes on CUDA: its streams, its profiler ranges, and the move
// of a model.
#include <fsdp/optim.h>

#include <algorithm>

#include "engine/device_moves.h"
#include "support/fake_cuda/fake_cuda.h"
#include "support/fake_cuda/fake_cuda_ranks.h"
#include "support/models.h"
#include "support/torch_ranks.h"
#include "torch_cuda/error_texts.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

std::map<std::string, at::Tensor> train(const Mesh& mesh, const Options& options) {
  auto model = build_seeded(7, [] { return Unit<Chain>(8, 2); });
  Engine engine(model, mesh, options);
  for (const at::Tensor& parameter : model->parameters()) {
    CHECK(parameter.device() == engine.device());
  }
  AdamW optimizer(engine, {.lr = 1e-2});
  for (int step = 0; step < 3; ++step) {
    const Batch batch = batch_of(step, mesh.rank());
    const at::Tensor logits = model(batch.tokens.to(engine.device()));
    at::cross_entropy_loss(logits.flatten(0, 1), batch.labels.to(engine.device()).flatten())
        .backward();
    optimizer.clip_grad_norm(1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::map<std::string, at::Tensor> trained;
  engine.visit_full_parameters([&](std::string_view fqn, const at::Tensor& value) {
    CHECK(value.device() == engine.device());
    trained[std::string(fqn)] = value.cpu().clone();
  });
  return trained;
}

bool has(const std::vector<std::string>& calls, const std::string& call) {
  return std::find(calls.begin(), calls.end(), call) != calls.end();
}

}  // namespace

TEST_CASE("a model that was built on the CPU is trained on CUDA with the CPU's bits") {
  for (const int world : {1, 2}) {
    for (const bool is_low : {false, true}) {
      CAPTURE(world);
      CAPTURE(is_low);
      Options options;
      if (is_low)
        options = {
            .mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kBFloat16}};
      std::map<std::string, at::Tensor> expected, trained;
      run_torch_ranks(world, [&](const Mesh& mesh) {
        auto mine = train(mesh, options);
        if (mesh.rank() == 0) expected = std::move(mine);
      });
      fake_cuda::reset();
      run_ranks(
          world,
          [&](const Mesh& mesh) {
            at::set_num_threads(1);
            auto mine = train(mesh, options);
            if (mesh.rank() == 0) trained = std::move(mine);
          },
          on_fake_cuda());
      CHECK(trained.size() == expected.size());
      for (const auto& [fqn, value] : trained) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, expected.at(fqn)));
      }
      const std::vector<std::string> calls = fake_cuda::take_calls();
      CHECK(has(calls, "push 'gather embedding'") == (world == 2));
      CHECK(has(calls, "push 'forward block1'"));
      CHECK(has(calls, "push 'reduce head'"));
      const auto count = [&](std::string_view begin) {
        return std::count_if(calls.begin(), calls.end(),
                             [&](const std::string& call) { return call.starts_with(begin); });
      };
      CHECK(count("push ") == count("pop"));
      // Each thread rank has its own stream of LibTorch. A single rank keeps the default stream.
      CHECK(has(calls, "stream 1 from the pool") == (world == 2));
      CHECK(has(calls, "stream 2 from the pool") == (world == 2));
      CHECK(!has(calls, "stream 3 from the pool"));
      CHECK(count("record_stream") == 0);
    }
  }
}

TEST_CASE("a move keeps the tensors that a module and its user hold") {
  const Mesh mesh = fake_cuda_ranks(1)[0];
  const ShardContext context(mesh, {});
  nn::BatchNorm1d module(4);
  const at::Tensor weight = module->weight, mean = module->running_mean;
  const at::Tensor expected = weight.detach().clone();
  move_parameters({{.fqn = "weight", .tensor = weight}}, context);
  CHECK(weight.is_cuda());
  CHECK(weight.requires_grad());
  CHECK(bit_equal(weight.detach().cpu(), expected));
  CHECK(!module->bias.is_cuda());
  fake_cuda::reset();
  move_rest(*module, context);
  for (const at::Tensor& each : module->parameters()) CHECK(each.is_cuda());
  CHECK(mean.is_cuda());
  CHECK(module->num_batches_tracked.is_cuda());
  // Bias, mean, variance and count are already on the device, so they are not copied.
  CHECK(fake_cuda::take_calls() ==
        std::vector<std::string>(4, "copy from pageable memory to the device on stream 0"));
}

TEST_CASE("what lies on a third device is refused by its name") {
  const Mesh mesh = fake_cuda_ranks(1)[0];
  const ShardContext context(mesh, {});
  nn::Linear module(2, 2);
  module->register_buffer("scale", torch::ones({2}, at::kMeta));
  CHECK_THROWS_WITH_AS(move_rest(*module, context),
                       "buffer 'scale' is on meta, but the mesh computes on cuda:0; hint: build "
                       "the model on the CPU: the engine moves it, unit by unit",
                       InvalidArgument);
}

TEST_CASE("an engine on CUDA is refused where LibTorch has done without it") {
  const fake_cuda::Absent absent;
  const Mesh mesh = fake_cuda_ranks(1)[0];
  const auto model = build_seeded(7, [] { return Unit<nn::Linear>(2, 2); });
  CHECK_THROWS_WITH_AS(Engine(model, mesh), doctest::Contains(kNoCuda), StateError);
}
