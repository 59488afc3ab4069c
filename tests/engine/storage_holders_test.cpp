// Tests parameters whose memory is also held by another tensor. The engine must refuse them by
// name, or recognize that they are harmless.
#include "engine/storage_holders.h"

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

// A module that keeps keep(weight), as a member or as a buffer.
struct KeepingImpl : nn::Module {
  using Keep = std::function<at::Tensor(const at::Tensor& weight)>;
  explicit KeepingImpl(const Keep& keep, bool registered = false)
      : linear(register_module("linear", nn::Linear(4, 4))) {
    kept = keep(linear->weight);
    if (registered) register_buffer("scaled", kept);
  }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  nn::Linear linear;
  at::Tensor kept;
};
TORCH_MODULE(Keeping);

template <class Model>
std::string refusal_of(Model& model) {
  try {
    const Engine engine(model, Mesh::single());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal_of_build(const KeepingImpl::Keep& keep, bool registered = false) {
  try {
    BuildScope building(Mesh::single());
    Unit<Keeping> model(keep, registered);
    const Engine engine(model, building);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

const std::initializer_list<KeepingImpl::Keep> kHolding = {
    [](const at::Tensor& weight) { return weight.detach(); },
    [](const at::Tensor& weight) { return weight.data(); },
    [](const at::Tensor& weight) { return weight.t(); },
    [](const at::Tensor& weight) { return weight[0]; },
    [](const at::Tensor& weight) {
      return torch::mm(weight.t(), weight);
    },  // its graph saves a view
};

bool has(const std::string& text, std::string_view part) {
  CAPTURE(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a parameter whose memory a view, detach() or graph holds is refused by name") {
  for (const auto& keep : kHolding) {
    Unit<Keeping> model(keep);
    for (const std::string& text : {refusal_of(model), refusal_of_build(keep)}) {
      CHECK(has(text, "parameter 'linear.weight' cannot be sharded: its memory is held by"));
      CHECK(has(text, "hint: destroy these tensors"));
    }
    model->kept.reset();
    CHECK(refusal_of(model) == "accepted");
  }
}

TEST_CASE("a buffer over a parameter's memory is refused with both names") {
  const auto view = [](const at::Tensor& weight) { return weight.detach(); };
  Unit<Keeping> model(view, /*registered=*/true);
  const std::string text = "buffer 'scaled' shares memory with parameter 'linear.weight'";
  CHECK(has(refusal_of(model), text));
  CHECK(has(refusal_of_build(view, /*registered=*/true), text));
}

TEST_CASE("copies, the parameter itself and views that are gone hold nothing") {
  const std::initializer_list<KeepingImpl::Keep> harmless = {
      [](const at::Tensor& weight) { return weight; },
      [](const at::Tensor& weight) { return weight.detach().clone(); },
      [](const at::Tensor& weight) {
        weight.detach().fill_(1);
        return at::Tensor();
      }};
  for (const auto& keep : harmless) {
    Unit<Keeping> model(keep);
    CHECK(refusal_of(model) == "accepted");
    CHECK(refusal_of_build(keep) == "accepted");
  }
}

TEST_CASE("a view taken inside a BuildScope after its unit was built is refused at the engine") {
  BuildScope building(Mesh::single());
  Unit<nn::Linear> model(4, 4);
  const at::Tensor kept = model->weight.detach();
  CHECK_THROWS_WITH_AS(
      Engine(model, building),
      doctest::Contains("parameter 'weight' cannot be sharded: its memory is held"),
      InvalidArgument);
}

namespace {

// A root that registers any module twice, so that the module is tied.
struct AroundImpl : nn::Module {
  explicit AroundImpl(const std::shared_ptr<nn::Module>& inner) {
    register_module("inner", inner);
    register_module("again", inner);
  }
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(Around);

// A module with a parameter that is a transposed view, and two parameters that are halves of one
// tensor.
struct ViewsImpl : nn::Module {
  ViewsImpl() {
    turned = register_parameter("turned", torch::rand({3, 4}).t());
    const at::Tensor memory = torch::rand({8});
    register_parameter("a", memory.slice(0, 0, 4));
    register_parameter("b", memory.slice(0, 4, 8));
  }
  at::Tensor forward(const at::Tensor& x) { return x + turned.sum(); }
  at::Tensor turned;
};
TORCH_MODULE(Views);

}  // namespace

TEST_CASE(
    "LibTorch's modules are accepted: recurrent, attention, transformer, tied, cloned, loaded") {
  const std::initializer_list<std::function<std::shared_ptr<nn::Module>()>> makes = {
      [] { return nn::LSTM(nn::LSTMOptions(4, 4).num_layers(2).bidirectional(true)).ptr(); },
      [] { return nn::GRU(4, 4).ptr(); },
      [] { return nn::RNN(4, 4).ptr(); },
      [] { return nn::MultiheadAttention(4, 2).ptr(); },
      [] { return nn::TransformerEncoderLayer(4, 2).ptr(); },
      [] { return nn::Bilinear(2, 3, 4).ptr(); },
      [] { return nn::BatchNorm2d(4).ptr(); },
      [] { return nn::EmbeddingBag(4, 2).ptr(); },
  };
  for (const auto& make : makes) {
    Unit<Around> plain(make());
    CHECK(refusal_of(plain) == "accepted");
    BuildScope building(Mesh::single());
    Unit<Around> built(make());
    const Engine engine(built, building);
  }
  Unit<Keeping> first([](const at::Tensor& weight) { return weight; });
  std::stringstream file;
  torch::save(std::dynamic_pointer_cast<nn::Module>(first.ptr()), file);
  auto loaded = Unit<Keeping>([](const at::Tensor&) { return at::Tensor(); });
  auto loaded_module = std::dynamic_pointer_cast<nn::Module>(loaded.ptr());
  torch::load(loaded_module, file);
  CHECK(refusal_of(loaded) == "accepted");
  Unit<nn::LSTM> recurrent(nn::LSTMOptions(4, 4));
  const auto copy = std::dynamic_pointer_cast<UnitImpl<nn::LSTMImpl>>(recurrent->clone());
  Unit<nn::LSTM> cloned(copy);
  CHECK(refusal_of(cloned) == "accepted");
  cloned = Unit<nn::LSTM>(nn::LSTMOptions(4, 4));
  cloned->to(torch::kBFloat16);
  torch::optim::SGD optimizer(cloned->parameters(), torch::optim::SGDOptions(0.1));
  CHECK(refusal_of(cloned) == "accepted");
}

TEST_CASE("parameters that are views of memory which nobody else holds are accepted") {
  Unit<Views> model;
  CHECK(refusal_of(model) == "accepted");
}

TEST_CASE("a flat piece of memory that is held beside its views is refused") {
  Unit<Views> model;
  const at::TensorBase base = model->turned._base();
  CHECK(has(refusal_of(model), "parameter 'turned' cannot be sharded"));
}
