// Tests errors that LibTorch itself throws in a unit's forward.
#include <fsdp/engine.h>

#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("an error of LibTorch names the unit, and the buffer whose type does not fit") {
  struct PositionsImpl : torch::nn::Module {
    PositionsImpl() { table = register_buffer("table", torch::ones({4})); }
    at::Tensor forward(const at::Tensor& x) { return x + table; }
    at::Tensor table;
  };
  struct Positions : torch::nn::ModuleHolder<PositionsImpl> {
    using torch::nn::ModuleHolder<PositionsImpl>::ModuleHolder;
  };
  // A module with a parameter and another buffer.
  struct ScaledImpl : torch::nn::Module {
    ScaledImpl() : weight(register_parameter("weight", torch::ones({4}))) {
      scale = register_buffer("scale", torch::ones({1, 4}, torch::kDouble));
    }
    at::Tensor forward(const at::Tensor& x) { return weight * x; }
    at::Tensor weight, scale;
  };
  struct Scaled : torch::nn::ModuleHolder<ScaledImpl> {
    using torch::nn::ModuleHolder<ScaledImpl>::ModuleHolder;
  };
  struct LayerImpl : torch::nn::Module {
    LayerImpl() : linear(4, 4) {
      register_module("positions", positions);
      register_module("scaled", scaled);
      register_module("statistics", statistics);
      register_module("linear", linear);
    }
    at::Tensor forward(const at::Tensor& x) { return linear(scaled(positions(x))); }
    Positions positions;
    Scaled scaled;
    torch::nn::BatchNorm1d statistics{4};  // its parameters keep the dtype of its statistics
    torch::nn::Linear linear;
  };
  struct Layer : torch::nn::ModuleHolder<LayerImpl> {
    using torch::nn::ModuleHolder<LayerImpl>::ModuleHolder;
  };
  struct OuterImpl : torch::nn::Module {
    OuterImpl() { register_module("layer", layer); }
    at::Tensor forward(const at::Tensor& x) { return layer(x); }
    Unit<Layer> layer;
  };
  struct Outer : torch::nn::ModuleHolder<OuterImpl> {
    using torch::nn::ModuleHolder<OuterImpl>::ModuleHolder;
  };
  const auto refusal = [](Mesh mesh, at::ScalarType dtype, const at::Tensor& x) -> std::string {
    Unit<Outer> model;
    Engine engine(model, mesh, {.mixed_precision = {.param_dtype = dtype}});
    try {
      model(x);
    } catch (const std::exception& error) {
      return std::string(message_of(error));
    }
    return "no error";
  };
  run_torch_ranks(2, [&](Mesh mesh) {
    const std::string by_type = refusal(mesh, torch::kBFloat16, torch::ones({2, 4}));
    CAPTURE(by_type);
    CHECK(by_type.find("an operator in the forward was given tensors of two types (unit 'layer'); "
                       "buffer 'layer.positions.table' is float32, buffer 'layer.scaled.scale' is "
                       "float64, but the unit computes in bfloat16 (LibTorch: ") !=
          std::string::npos);
    CHECK(by_type.find("hint: cast the values that the forward computes from the buffer") !=
          std::string::npos);
    CHECK(by_type.find("statistics") == std::string::npos);
    const std::string low_by_shape = refusal(mesh, torch::kBFloat16, torch::ones({2, 3}));
    CAPTURE(low_by_shape);
    CHECK(low_by_shape.find("(in the forward of unit 'layer')") != std::string::npos);
    const std::string by_shape = refusal(mesh, torch::kFloat32, torch::ones({2, 3}));
    CAPTURE(by_shape);
    CHECK(by_shape.find("(in the forward of unit 'layer')") != std::string::npos);
  });
}
