// Tests SyncBatchNorm on several ranks against BatchNorm on the concatenation of their batches.
#include "fsdp/sync_batch_norm.h"

#include <fsdp/recompute.h>

#include <sstream>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

constexpr int64_t kChannels = 5;

// Returns the batch of `rank`. It has rank + 2 samples, or none on some ranks if `empty`. The
// values are far from zero, so that cancellation errors become visible.
at::Tensor batch_of_rank(int step, int rank, bool empty) {
  const int64_t samples = empty && rank == 1 ? 0 : rank + 2;
  return values({samples, kChannels, 3, 2}, 100 * step + rank) * 2 + 50;
}
at::Tensor weights_of(const at::Tensor& output, int rank) {
  return values(output.sizes().vec(), 1000 + rank);
}

void check_close(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-4) {
  CHECK(torch::allclose(a, b, tolerance, tolerance));
}

// The plain module after training on the concatenated batches of all ranks. Also holds the inputs
// and the outputs that each rank should have.
struct Together {
  nn::BatchNorm2d norm = nullptr;
  std::vector<at::Tensor> inputs, outputs;
  Together(const nn::BatchNormOptions& options, int world, int steps, bool empty) : norm(options) {
    for (int step = 0; step < steps; ++step) {
      inputs.clear();
      std::vector<int64_t> sizes;
      for (int rank = 0; rank < world; ++rank) {
        inputs.push_back(batch_of_rank(step, rank, empty).requires_grad_());
        sizes.push_back(inputs.back().size(0));
      }
      outputs = norm(torch::cat(inputs)).split_with_sizes(sizes);
      norm->zero_grad();
      at::Tensor loss = torch::zeros({});
      for (int rank = 0; rank < world; ++rank) {
        loss = loss + (outputs[rank] * weights_of(outputs[rank], rank)).sum();
      }
      loss.backward();
    }
  }
};

void check_module(const nn::BatchNormOptions& options, bool empty) {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    Together together(options, world, 2, empty);
    std::vector<at::Tensor> weight_grads(world), bias_grads(world);
    run_torch_ranks(world, [&](Mesh mesh) {
      const int rank = mesh.rank();
      SyncBatchNorm norm(options, mesh);
      at::Tensor x, y;
      for (int step = 0; step < 2; ++step) {
        x = batch_of_rank(step, rank, empty).requires_grad_();
        y = norm(x);
        norm->zero_grad();
        (y * weights_of(y, rank)).sum().backward();
      }
      check_close(y, together.outputs[rank]);
      check_close(x.grad(), together.inputs[rank].grad());
      if (options.affine()) {
        weight_grads[rank] = norm->weight.grad().clone();
        bias_grads[rank] = norm->bias.grad().clone();
      }
      if (options.track_running_stats()) {
        check_close(norm->running_mean, together.norm->running_mean);
        check_close(norm->running_var, together.norm->running_var);
        CHECK(norm->num_batches_tracked.equal(together.norm->num_batches_tracked));
        norm->eval();
        const at::Tensor z = values({2, kChannels, 3, 2}, 9);
        check_close(norm(z), torch::batch_norm(z, norm->weight, norm->bias, norm->running_mean,
                                               norm->running_var, false, 0, options.eps(), false));
      }
    });
    if (!options.affine()) continue;
    at::Tensor weight = weight_grads[0], bias = bias_grads[0];
    for (int rank = 1; rank < world; ++rank) {
      weight = weight + weight_grads[rank];
      bias = bias + bias_grads[rank];
    }
    check_close(weight, together.norm->weight.grad(), 1e-3);
    check_close(bias, together.norm->bias.grad(), 1e-3);
  }
}

}  // namespace

TEST_CASE("outputs, gradients and running statistics are BatchNorm's on all batches together") {
  using Options = nn::BatchNormOptions;
  check_module(Options(kChannels), false);
  check_module(Options(kChannels), /*empty=*/true);
  check_module(Options(kChannels).momentum(0.3).eps(1e-2), false);
  check_module(Options(kChannels).momentum(std::nullopt), false);  // cumulative average
  check_module(Options(kChannels).affine(false), false);
  check_module(Options(kChannels).track_running_stats(false), false);
}

TEST_CASE("one value per channel in all ranks' batches is refused on all of them") {
  const std::vector<std::string> errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        SyncBatchNorm norm(4, mesh);
        norm(torch::ones({mesh.rank() == 0 ? 1 : 0, 4}));
      },
      torch_ranks_options());
  for (const std::string& error : errors) {
    CHECK(error.find("SyncBatchNorm got 1 values per channel") != std::string::npos);
  }
  SyncBatchNorm norm(4, Mesh::single());
  CHECK_THROWS_WITH_AS(norm(torch::ones({3, 5})), doctest::Contains("with 5 channels"),
                       InvalidArgument);
}

TEST_CASE("it is cloned, printed and saved as BatchNorm is") {
  SyncBatchNorm norm(4, Mesh::single());
  norm(values({6, 4}, 1));
  nn::BatchNorm1d plain(4);
  std::stringstream file;
  torch::save(norm, file);
  torch::load(plain, file);
  CHECK(bit_equal(plain->running_var, norm->running_var));
  const auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
  CHECK(bit_equal(copy->running_var, norm->running_var));
  std::stringstream text;
  text << *norm;
  CHECK(text.str() ==
        "fsdp::SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=true, track_running_stats=true)");
}

namespace {

// Two convolutions, each with a normalization that `Norm` makes. All are units.
struct NormedImpl : nn::Module {
  using MakeNorm = std::function<std::shared_ptr<nn::Module>()>;
  explicit NormedImpl(const MakeNorm& make)
      : convolution(register_module("convolution", nn::Conv2d(3, 3, 3))),
        norm(register_module("norm", make())) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = convolution(x);
    if (auto* synced = norm->as<SyncBatchNormImpl>()) return torch::tanh(synced->forward(y));
    return torch::tanh(norm->as<nn::BatchNorm2dImpl>()->forward(y));
  }
  nn::Conv2d convolution;
  std::shared_ptr<nn::Module> norm;
};
TORCH_MODULE(Normed);

struct StackImpl : nn::Module {
  explicit StackImpl(const NormedImpl::MakeNorm& make, bool recomputes = false)
      : first(make), second(make), recomputes_second(recomputes) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = first(x);
    if (!recomputes_second) return second(y);
    return recompute([this](const at::Tensor& z) { return second(z); }, y);
  }
  Unit<Normed> first, second;
  bool recomputes_second;
};
TORCH_MODULE(Stack);

at::Tensor pictures(int rank) { return values({2, 3, 7, 7}, 40 + rank); }

}  // namespace

TEST_CASE("inside an engine, recomputed or not, training is that on all batches together") {
  for (const int world : {1, 2, 3}) {
    for (const bool recomputes : {false, true}) {
      for (const CpuStreamKind streams : every_stream_kind()) {
        CAPTURE(world);
        CAPTURE(recomputes);
        auto plain = build_seeded(7, [] { return Stack([] { return nn::BatchNorm2d(3).ptr(); }); });
        std::vector<at::Tensor> batches;
        for (int rank = 0; rank < world; ++rank) batches.push_back(pictures(rank));
        // The batches have equal sizes, so the mean over all samples is the mean of the ranks'
        // means.
        const at::Tensor loss = plain(torch::cat(batches)).square().mean();
        loss.backward();
        run_torch_ranks(world, [&](Mesh mesh) {
          auto model = build_seeded(7, [&] {
            return Unit<Stack>([&] { return SyncBatchNorm(3, mesh).ptr(); }, recomputes);
          });
          Engine engine(model, mesh, {.tuning = {.cpu_streams = streams}});
          model(pictures(mesh.rank())).square().mean().backward();
          for (const ShardedParameter& each : engine.sharded_parameters()) {
            CAPTURE(each.fqn);
            const at::Tensor expected = plain->named_parameters()[each.fqn].grad().flatten();
            check_close(each.local.grad(), expected.narrow(0, each.begin, each.local.numel()));
          }
          const auto buffers = model->named_buffers();
          const auto expected = plain->named_buffers();
          check_close(buffers["first.norm.running_var"], expected["first.norm.running_var"]);
          check_close(buffers["second.norm.running_mean"], expected["second.norm.running_mean"]);
        });
      }
    }
  }
}

TEST_CASE("with bf16 parameters it keeps its own in fp32 and takes bf16 inputs") {
  for (const bool tracks : {true, false}) {
    run_torch_ranks(2, [&](Mesh mesh) {
      const auto options = nn::BatchNormOptions(3).track_running_stats(tracks);
      auto model = build_seeded(
          7, [&] { return Unit<Stack>([&] { return SyncBatchNorm(options, mesh).ptr(); }); });
      Engine engine(model, mesh, {.mixed_precision = {.param_dtype = torch::kBFloat16}});
      const at::Tensor output = model(pictures(mesh.rank()));
      CHECK((output.scalar_type() == at::kBFloat16));
      output.to(at::kFloat).square().mean().backward();
      CHECK(engine.measure_gradients().finite());
      CHECK(engine.measure_gradients().norm() > 0);
    });
  }
}
