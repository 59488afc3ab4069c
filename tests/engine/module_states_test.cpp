// Tests recomputed functions that use more than their inputs: buffers, training flags, and the grad
// mode.
#include <fsdp/recompute.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

namespace nn = torch::nn;

constexpr int64_t kImpureWidth = 6;

// A module with statistics that it changes, a vector on which its output depends (power iteration,
// as in spectral norm), and a large buffer. It reads the training flag and the grad mode.
struct ImpureImpl : nn::Module {
  ImpureImpl() : linear(kImpureWidth, kImpureWidth), norm(kImpureWidth) {
    register_module("linear", linear);
    register_module("norm", norm);
    direction = register_buffer("direction", torch::ones({kImpureWidth}));
    queue = register_buffer("queue", torch::ones({200, 100}));
  }
  at::Tensor forward(const at::Tensor& x) {
    {
      const torch::NoGradGuard no_grad;
      const at::Tensor other = linear->weight.t().mv(direction);
      direction.copy_(linear->weight.mv(other / other.norm()));
      direction.div_(direction.norm());
      queue.mul_(0.5).add_(x.mean());
    }
    const at::Tensor scale = direction.clone().dot(linear->weight.mv(direction.clone()));
    at::Tensor h = norm(linear(x)) * scale + queue.mean();
    if (is_training()) h = h * 1.5;
    return torch::GradMode::is_enabled() ? torch::tanh(h) : h;
  }
  nn::Linear linear;
  nn::BatchNorm1d norm;
  at::Tensor direction, queue;
};
TORCH_MODULE(Impure);

// A model of blocks, and a tail that consists of the root's own modules. Each block is recomputed,
// by its options or by a function.
template <class Block>
struct ImpuresImpl : nn::Module {
  explicit ImpuresImpl(bool by_functions) : again(by_functions), norm(kImpureWidth) {
    this->register_module("norm", norm);
    for (int i = 0; i < 2; ++i) {
      blocks.emplace_back();
      this->register_module("b" + std::to_string(i), blocks.back());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto run = [&](const auto& fn, const at::Tensor& h) {
      return again ? recompute(fn, h) : fn(h);
    };
    at::Tensor h = x;
    for (Block& block : blocks) {
      h = run([&block](const at::Tensor& g) { return block(g); }, h);
    }
    const auto tail = [this](const at::Tensor& g) {
      return torch::tanh(norm(g)) * (this->is_training() ? 1.5 : 0.5);
    };
    return run(tail, h);
  }
  bool again;
  nn::BatchNorm1d norm;
  std::vector<Block> blocks;
};

struct EndState {
  std::vector<float> losses;
  std::map<std::string, at::Tensor> values;  // parameters and buffers
};

template <class Root>
EndState train(int world, const Root& make, const Options& options, bool evaluates) {
  EndState outcome;
  run_torch_ranks(world, [&](Mesh mesh) {
    const auto model = build_seeded(7, make);
    Engine engine(model, mesh, options);
    const auto optimizer = twin_optimizer(TwinOptimizer::kSgd, engine.parameters());
    for (int step = 0; step < 3; ++step) {
      const auto run = [&](const at::Tensor& in) { return model->forward(in); };
      const auto loss_of = [&](int batch) {
        const at::Tensor x = values({4, kImpureWidth}, 100 * batch + 10 * step + mesh.rank());
        return engine.forward(run, x).square().mean();
      };
      const at::Tensor loss = loss_of(0);
      const at::Tensor other = loss_of(1);  // changes buffers that the first forward has read
      if (evaluates) model->eval();
      loss.backward();
      other.backward();
      if (evaluates)
        CHECK_FALSE(std::ranges::any_of(model->modules(),
                                        [](const auto& each) { return each->is_training(); }));
      model->train();
      optimizer->step();
      optimizer->zero_grad();
      if (mesh.rank() == 0) outcome.losses.push_back(loss.template item<float>());
    }
    auto all = full_parameters(engine);
    for (const auto& item : model->named_buffers()) all[item.key()] = item.value().clone();
    if (mesh.rank() == 0) outcome.values = std::move(all);
  });
  return outcome;
}

void check_same(const EndState& one, const EndState& other) {
  CHECK(one.losses == other.losses);
  REQUIRE(one.values.size() == other.values.size());
  for (const auto& [fqn, value] : one.values) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, other.values.at(fqn)));
  }
}

using ImpureUnits = UnitImpl<ImpuresImpl<Unit<Impure>>>;

}  // namespace

TEST_CASE("recomputation reads buffers, flags and grad mode as forward did, and moves nothing") {
  for (const int world : {1, 2}) {
    for (const bool evaluates : {false, true}) {
      CAPTURE(world);
      CAPTURE(evaluates);
      const auto by_options = [] { return std::make_shared<ImpureUnits>(false); };
      const auto by_functions = [] { return std::make_shared<ImpureUnits>(true); };
      const EndState kept = train(world, by_options, {.debug = true}, evaluates);
      check_same(train(world, by_options, {.recompute = 1, .debug = true}, evaluates), kept);
      check_same(train(world, by_functions, {.debug = true}, evaluates), kept);
      check_same(train(world, by_functions, {.recompute = 1, .debug = true}, evaluates), kept);
      const auto whole = [](std::string_view fqn) { return UnitOptions{.recompute = fqn.empty()}; };
      check_same(train(world, by_functions, {.unit_options = whole, .debug = true}, evaluates),
                 kept);
    }
  }
}

TEST_CASE("recomputed functions on units by policy do, too") {
  for (const int world : {1, 2}) {
    CAPTURE(world);
    const Options options{.units = by_type<ImpureImpl>(), .debug = true};
    const auto train_with = [&](bool again) {
      const auto make = [again] { return std::make_shared<ImpuresImpl<Impure>>(again); };
      return train(world, make, options, /*evaluates=*/true);
    };
    check_same(train_with(true), train_with(false));
  }
}

TEST_CASE("a graph that has saved a buffer does not notice a recomputation that moves it") {
  run_torch_ranks(1, [&](Mesh mesh) {
    const auto model = build_seeded(7, [] { return std::make_shared<ImpureUnits>(false); });
    Engine engine(model, mesh, {.recompute = 1});
    const at::Tensor loss = model->call(values({4, kImpureWidth}, 1)).sum();
    const at::Tensor other = torch::ones({kImpureWidth}).requires_grad_();
    const at::Tensor saved = (other * model->blocks[1]->direction).sum();
    loss.backward();
    saved.backward();
    CHECK(bit_equal(other.grad(), model->blocks[1]->direction));
  });
}

TEST_CASE("a large buffer that changes between a recomputed forward and its backward is refused") {
  struct ReadingImpl : nn::Module {
    ReadingImpl() : linear(kImpureWidth, kImpureWidth) {
      register_module("linear", linear);
      table = register_buffer("table", torch::ones({300, 100}));
    }
    at::Tensor forward(const at::Tensor& x) { return linear(x) * table.mean(); }
    nn::Linear linear;
    at::Tensor table;
  };
  run_torch_ranks(1, [&](Mesh mesh) {
    const auto model = std::make_shared<UnitImpl<ReadingImpl>>();
    Engine engine(model, mesh, {.unit_options = [](std::string_view) {
                    return UnitOptions{.recompute = true};
                  }});
    const at::Tensor loss = model->call(values({4, kImpureWidth}, 1)).sum();
    model->table.mul_(2);
    CHECK_THROWS_WITH_AS(loss.backward(),
                         doctest::Contains("buffer 'table' was changed between a recomputed "
                                           "forward and its backward"),
                         StateError);
  });
}
