// Tests normalizations with running statistics under a lower param_dtype.
#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

struct ConvolutionsImpl : nn::Module {
  ConvolutionsImpl()
      : convolution(register_module("convolution", nn::Conv2d(2, 4, 3))),
        norm(register_module("norm", nn::BatchNorm2d(4))),
        instance(register_module(
            "instance", nn::InstanceNorm2d(
                            nn::InstanceNorm2dOptions(4).affine(true).track_running_stats(true)))),
        plain(register_module("plain", nn::BatchNorm2d(nn::BatchNorm2dOptions(4).affine(false)))),
        layer(register_module("layer", nn::LayerNorm(nn::LayerNormOptions({3})))),
        head(register_module("head", nn::Linear(36, 3))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = plain(instance(torch::relu(norm(convolution(x)))));
    return layer(head(y.flatten(1)));
  }
  nn::Conv2d convolution;
  nn::BatchNorm2d norm;
  nn::InstanceNorm2d instance;
  nn::BatchNorm2d plain;
  nn::LayerNorm layer;
  nn::Linear head;
};
TORCH_MODULE(Convolutions);

at::Tensor images(int rank) { return values({4, 2, 5, 5}, static_cast<uint64_t>(rank)); }

const std::set<std::string> kWithStatistics = {"norm.weight", "norm.bias", "instance.weight",
                                               "instance.bias"};

// Compares one step with the same model in plain LibTorch. There each module is converted
// separately.
void check_against_plain(Engine& engine, Unit<Convolutions>& model, DType dtype) {
  const at::ScalarType type = dtype == DType::kBFloat16 ? at::kBFloat16 : at::kHalf;
  for (const ParameterSpec& spec : state_of(engine).model.units[0]->shard->layout().parameters()) {
    CAPTURE(spec.fqn);
    CHECK(spec.dtype == (kWithStatistics.contains(spec.fqn) ? DType::kFloat32 : dtype));
  }
  auto plain = build_seeded(7, [] { return Convolutions(); });
  plain->convolution->to(type);
  plain->head->to(type);
  plain->layer->to(type);
  const int rank = engine.mesh().rank();
  const at::Tensor output = model(images(rank));
  CHECK(bit_equal(output, plain(images(rank).to(type))));
  CHECK(bit_equal(model->norm->running_var, plain->norm->running_var));
  CHECK((model->norm->running_var.scalar_type() == at::kFloat));
  output.to(at::kFloat).square().mean().backward();
  mean_gradients(*plain, engine.mesh().world_size(), [&](int each) {
    plain(images(each).to(type)).to(at::kFloat).square().mean().backward();
  });
  for (const ShardedParameter& each : engine.sharded_parameters()) {
    const at::Tensor expected = plain->named_parameters()[each.fqn].grad().flatten();
    CAPTURE(each.fqn);
    // In plain torch, `.grad` and its mean round a gradient of lower precision once more.
    CHECK(torch::allclose(each.local.grad(),
                          expected.narrow(0, each.begin, each.local.numel()).to(at::kFloat), 2e-2,
                          1e-3));
  }
}

}  // namespace

TEST_CASE("BatchNorm and InstanceNorm keep their parameters in fp32 beside their statistics") {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int world : {1, 2, 3}) {
      CAPTURE(world);
      run_torch_ranks(world, [&](Mesh mesh) {
        auto model = build_seeded(7, [] { return Unit<Convolutions>(); });
        Engine engine(model, mesh, {.mixed_precision = {.param_dtype = scalar_type_of(dtype)}});
        check_against_plain(engine, model, dtype);
      });
    }
  }
}

TEST_CASE("so they do under a BuildScope, and whole on every rank") {
  run_torch_ranks(2, [](Mesh mesh) {
    BuildScope building(mesh, {.mixed_precision = {.param_dtype = torch::kBFloat16}, .seed = 7});
    Unit<Convolutions> model;
    Engine engine(model, building);
    check_against_plain(engine, model, DType::kBFloat16);
  });
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Convolutions>(); });
    Engine engine(
        model, mesh,
        {.mixed_precision = {.param_dtype = torch::kBFloat16}, .strategy = Strategy::kReplicate});
    check_against_plain(engine, model, DType::kBFloat16);
  });
}
