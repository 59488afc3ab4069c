// Tests the table of habits in docs/migration.md. misuse_test.cpp also tests habits that are
// refused.
#include <c10/core/InferenceMode.h>

#include <sstream>

#include "engine/support/error_texts.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "simulator/guarded_memory.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace nn = torch::nn;

namespace {

Unit<Chain> chain() {
  return build_seeded(7, [] { return Unit<Chain>(8, 2); });
}

void one_backward(Unit<Chain>& model, const Mesh& mesh, int step = 0) {
  loss_of(model, batch_of(step, mesh.rank())).backward();
}

int64_t with_gradient(Engine& engine) {
  int64_t count = 0;
  for (const auto& unit : state_of(engine).model.units)
    count += unit->shard->gradients().main().are_ready() ? 1 : 0;
  return count;
}

// Returns a trained model's file, as torch::save writes it.
std::string saved(const std::shared_ptr<nn::Module>& model) {
  std::stringstream file;
  torch::save(model, file);
  return file.str();
}

}  // namespace

TEST_CASE("zero_grad of the model hands all gradients back, of a unit its own and those inside") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = chain();
    Engine engine(model, mesh);
    one_backward(model, mesh);
    CHECK(with_gradient(engine) == 5);  // the root, embedding, two blocks, head
    model->blocks[0]->zero_grad();
    CHECK(with_gradient(engine) == 4);
    model->zero_grad();
    CHECK(with_gradient(engine) == 0);
    CHECK(engine.measure_gradients().norm() == 0);
    one_backward(model, mesh);
    model->zero_grad(/*set_to_none=*/false);
    CHECK(with_gradient(engine) == 0);
  });
}

TEST_CASE("zero_grad also clears what the engine leaves alone") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = chain();
    Engine engine(model, mesh, {.ignore = [](std::string_view fqn) { return fqn == "head.bias"; }});
    for (int step = 0; step < 5; ++step) {
      one_backward(model, mesh, step);
      CHECK(model->head->bias.grad().defined());
      model->zero_grad();
      CHECK(!model->head->bias.grad().defined());
    }
    one_backward(model, mesh);
    model->zero_grad(/*set_to_none=*/false);
    CHECK(model->head->bias.grad().abs().sum().item<float>() == 0);
  });
}

TEST_CASE("zero_grad of a unit inside a backward is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Graph>(2, 6, in_a_row); });
    Engine engine(model, mesh);
    at::Tensor x = values({2, 6}, 1).requires_grad_();
    x.register_hook([&](const at::Tensor&) { model->units[1]->zero_grad(); });
    CHECK_THROWS_WITH_AS(model(x).sum().backward(),
                         doctest::Contains("zero_grad is not allowed inside a backward"),
                         StateError);
  });
}

TEST_CASE("a model that nobody has sharded behaves as the plain one in all of this") {
  auto model = chain();
  loss_of(model, batch_of(0, 0)).backward();
  CHECK(model->head->weight.grad().defined());
  model->zero_grad();
  CHECK(!model->head->weight.grad().defined());
  model->to(torch::kDouble);
  CHECK((model->head->weight.scalar_type() == at::kDouble));
  model->to(torch::kFloat);
  auto other = build_seeded(8, [] { return Unit<Chain>(8, 2); });
  std::stringstream file(saved(model.ptr()));
  auto other_module = std::dynamic_pointer_cast<nn::Module>(other.ptr());
  torch::load(other_module, file);
  CHECK(bit_equal(model->head->weight, other->head->weight));
}

TEST_CASE("functions of Module's names with other arguments stay the model's") {
  struct NamedImpl : nn::Module {
    NamedImpl() : linear(register_module("linear", nn::Linear(2, 2))) {}
    at::Tensor forward(const at::Tensor& x) { return linear(x); }
    std::string save(const std::string& path) const { return "saved to " + path; }
    std::string load(const std::string& path) { return "loaded from " + path; }
    std::string to(const std::string& place) { return "moved to " + place; }
    int zero_grad(const std::string&) { return 3; }
    nn::Linear linear;
  };
  struct Named : nn::ModuleHolder<NamedImpl> {
    using nn::ModuleHolder<NamedImpl>::ModuleHolder;
  };
  Unit<Named> model;
  const std::string path = "a";
  CHECK(model->save(path) == "saved to a");
  CHECK(model->load(path) == "loaded from a");
  CHECK(model->to(path) == "moved to a");
  CHECK(model->zero_grad(path) == 3);
  CHECK(!saved(model.ptr()).empty());
  model->to(torch::kDouble);
  CHECK((model->linear->weight.scalar_type() == at::kDouble));
}

TEST_CASE("saving: outside Gathered the fix, inside it the plain model's file") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [](Mesh mesh) {
      auto model = chain();
      const auto expected = plain_parameters(*model);
      Engine engine(model, mesh);
      CHECK_THROWS_WITH_AS(
          saved(model.ptr()),
          doctest::Contains("a sharded unit cannot be saved (unit '(root)'); hint: "
                            "run on every rank: { fsdp::Gathered whole(engine);"),
          StateError);
      CHECK_THROWS_WITH_AS(saved(model->head.ptr()), doctest::Contains("unit 'head'"), StateError);
      std::string bytes;
      {
        const Gathered whole(engine);
        const AsDeviceWork reads;  // torch::save reads a host tensor in place
        bytes = saved(model.ptr());
      }
      CHECK_THROWS_AS(saved(model.ptr()), StateError);
      std::stringstream file(bytes);
      auto again = build_seeded(8, [] { return Unit<Chain>(8, 2); });
      auto again_module = std::dynamic_pointer_cast<nn::Module>(again.ptr());
      torch::load(again_module, file);
      for (const auto& [fqn, value] : plain_parameters(*again)) {
        CHECK(bit_equal(value, expected.at(fqn)));
      }
      Engine engine_of_loaded(again, mesh);  // a loaded model can be sharded
      one_backward(again, mesh);
    });
  }
}

TEST_CASE("loading outside Gathered names the two lines that do it") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = chain();
    std::stringstream file(saved(model.ptr()));
    Engine engine(model, mesh);
    auto module = std::dynamic_pointer_cast<nn::Module>(model.ptr());
    CHECK_THROWS_WITH_AS(torch::load(module, file),
                         doctest::Contains("a sharded unit cannot be loaded (unit '(root)'); hint: "
                                           "run on every rank: { fsdp::Gathered whole(engine, "
                                           "fsdp::WriteBack::kFromRankZero);"),
                         StateError);
    one_backward(model, mesh);  // the file changed nothing
  });
}

TEST_CASE("loading inside Gathered gives every rank the file's values, and training goes on") {
  const auto from = build_seeded(8, [] { return Unit<Chain>(8, 2); });
  const std::string file = saved(from.ptr());
  const auto expected = plain_parameters(*from);
  for (const int world : {1, 2, 3}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      auto model = chain();
      Engine engine(model, mesh);
      one_backward(model, mesh);
      engine.zero_grad();
      auto module = std::dynamic_pointer_cast<nn::Module>(model.ptr());
      {
        const Gathered whole(engine, WriteBack::kFromRankZero);
        std::stringstream stream(file);
        torch::load(module, stream);
      }
      const auto values = full_parameters(engine);
      CHECK(values.size() == expected.size());
      for (const auto& [fqn, value] : values) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, expected.at(fqn)));
      }
      one_backward(model, mesh, 1);
    });
  }
}

TEST_CASE("to() and clone() are refused with the fix, on the root and on units") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = chain();
    Engine engine(model, mesh);
    const auto refused = [](const auto& move, const char* unit) {
      CHECK_THROWS_WITH_AS(move(), doctest::Contains(unit), StateError);
      CHECK_THROWS_WITH_AS(move(),
                           doctest::Contains("hint: set the dtype with Options::mixed_precision"),
                           StateError);
    };
    refused([&] { model->to(torch::kBFloat16); },
            "to() was called on a sharded model (unit '(root)')");
    refused([&] { model->to(torch::Device(torch::kCPU)); }, "unit '(root)'");
    refused([&] { model->head->to(torch::kCPU, torch::kDouble); }, "unit 'head'");
    CHECK_THROWS_WITH_AS(model->clone(), doctest::Contains(kNoClone), StateError);
  });
}

TEST_CASE("train, eval, sizes, printing and freezing work on a sharded model") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = chain();
    Engine engine(model, mesh);
    model->eval();
    CHECK(!model->blocks[1]->is_training());
    model->train();
    CHECK(model->blocks[1]->norm->is_training());
    int64_t numel = 0;
    for (const at::Tensor& parameter : model->parameters()) numel += parameter.numel();
    int64_t whole = 0;
    for (const ShardedParameter& each : engine.sharded_parameters()) {
      int64_t of_one = 1;
      for (const int64_t size : each.shape) of_one *= size;
      whole += of_one;
    }
    CHECK(numel == whole);
    CHECK(engine.parameters().size() == engine.sharded_parameters().size());
    std::stringstream text;
    text << *model;
    CHECK(text.str().find("head") != std::string::npos);
    model->head->bias.set_requires_grad(false);
    one_backward(model, mesh);
    for (const ShardedParameter& each : engine.sharded_parameters()) {
      CHECK(each.trainable == (each.fqn != "head.bias"));
    }
    const std::vector<at::Tensor> trained = engine.parameters();
    CHECK(trained.size() + 1 == engine.sharded_parameters().size());
    CHECK(trained.front().is_same(engine.sharded_parameters().front().local));
  });
}

TEST_CASE(
    "a model whose engine is gone says so: to a new engine, and when it is saved or cleared") {
  auto model = chain();
  { const Engine engine(model, Mesh::single()); }
  CHECK_THROWS_WITH_AS(
      Engine(model, Mesh::single()),
      doctest::Contains("the engine of this model was destroyed, so the model's values are lost "
                        "(unit '(root)'); hint: build a new model"),
      StateError);
  CHECK_THROWS_WITH_AS(saved(model.ptr()),
                       doctest::Contains("a model without its engine cannot be saved; the model's "
                                         "values were freed with its engine"),
                       StateError);
  model->zero_grad();  // no gradient is left
}

TEST_CASE("a model without registered parameters is refused with the fix") {
  struct EmptyImpl : nn::Module {
    at::Tensor forward(const at::Tensor& x) { return linear(x); }
    nn::Linear linear{2, 2};  // not registered
  };
  struct Empty : nn::ModuleHolder<EmptyImpl> {
    using nn::ModuleHolder<EmptyImpl>::ModuleHolder;
  };
  Unit<Empty> model;
  CHECK_THROWS_WITH_AS(Engine(model, Mesh::single()),
                       doctest::Contains("the model has no registered parameter; hint: register "
                                         "parameters with register_parameter and modules with "
                                         "register_module"),
                       InvalidArgument);
}

TEST_CASE("inference mode is refused by name, around the engine and around the model") {
  auto model = chain();
  {
    const c10::InferenceMode inference;
    CHECK_THROWS_WITH_AS(Engine(model, Mesh::single()),
                         doctest::Contains("cannot make an engine under c10::InferenceMode"),
                         InvalidArgument);
    BuildScope building(Mesh::single());
    CHECK_THROWS_WITH_AS(Unit<nn::Linear>(2, 2), doctest::Contains("c10::InferenceMode"),
                         InvalidArgument);
  }
  const auto made_there = [] {
    const c10::InferenceMode inference;
    return Unit<nn::Linear>(2, 2);
  };
  CHECK_THROWS_WITH_AS(
      Engine(made_there(), Mesh::single()),
      doctest::Contains("parameter 'weight' cannot be sharded: it was made under "
                        "c10::InferenceMode; hint: build the model outside of c10::InferenceMode"),
      InvalidArgument);
  const Engine engine(model, Mesh::single());  // the refusal did not change the model
}

TEST_CASE("a root without inner units is warned of in the table, others are not") {
  Unit<nn::Linear> alone(2, 2);
  CHECK(Engine(alone, Mesh::single()).describe().find("warning: the root is the only unit") !=
        std::string::npos);
  auto model = chain();
  CHECK(Engine(model, Mesh::single()).describe().find("warning") == std::string::npos);
}

TEST_CASE("the line of an exception of LibTorch has no stack") {
  try {
    torch::ones({2, 3}).mm(torch::ones({4, 5}));
    CHECK(false);
  } catch (const std::exception& error) {
    const std::string line = error_line(error, {.rank = 0, .world_size = 1, .host = "h"});
    CHECK(line.starts_with("fsdp: error[70] rank 0/1 host h: "));
    // LibTorch 2.15 writes the operator's name before this text.
    CHECK(line.ends_with("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"));
  }
}
