// Tests programs that would train wrongly without an error. The engine must throw an error that
// names the fix.
#include <fsdp/recompute.h>

#include <chrono>
#include <span>
#include <thread>

#include "engine/support/error_texts.h"
#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "support/mismatch_text.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Body = GraphImpl::Body;

// The model and the engine of one rank, and its loss of step 0.
struct Trainee {
  Trainee(const Mesh& mesh, const Body& body, const Options& options = {})
      : rank(mesh.rank()),
        model(build_seeded(7, graph_twin(3, 6, body).make)),
        engine(model, mesh, options) {}
  GraphImpl& graph() { return dynamic_cast<GraphImpl&>(*model); }
  at::Tensor loss(int step = 0) { return graph_loss(*model, step, rank); }

  int rank;
  std::shared_ptr<torch::nn::Module> model;
  Engine engine;
};

void check_refused(const std::function<void()>& call, const std::string& text) {
  CHECK_THROWS_WITH_AS(call(), doctest::Contains(text.c_str()), StateError);
}

}  // namespace

TEST_CASE("a forward that writes a weight is refused where the change would be lost") {
  for (const bool low_precision : {false, true}) {
    Options options;
    if (low_precision) options.mixed_precision.param_dtype = torch::kBFloat16;
    run_torch_ranks(2, [&](Mesh mesh) {
      Trainee clipped(
          mesh,
          [](GraphImpl& g, const at::Tensor& x) {
            {
              const at::NoGradGuard no_grad;
              g.norm->weight.clamp_(-0.5, 0.5);
            }
            return in_a_row(g, x);
          },
          options);
      check_refused([&] { clipped.loss(); },
                    "parameter 'norm.weight' was written" + kInsidePass + " (unit '(root)')");
      Trainee renormalised(
          mesh,
          [](GraphImpl& g, const at::Tensor& x) {
            auto& unit = g.units[1];
            fsdp::UnitScope scope(*unit, x);
            const at::Tensor rows = torch::nn::functional::embedding(
                torch::zeros({3}, torch::kLong), unit->weight,
                torch::nn::functional::EmbeddingFuncOptions().max_norm(0.01));
            at::Tensor h = rows + x;
            scope.outputs(h);
            return g.norm(h);
          },
          options);
      check_refused([&] { renormalised.loss(); },
                    "parameter 'u1.weight' was written" + kInsidePass + " (unit 'u1')");
    });
  }
}

TEST_CASE("a hook that writes a weight of a unit that will run again is refused when it closes") {
  run_torch_ranks(2, [&](Mesh mesh) {
    bool writes = true;
    Trainee trainee(mesh, [&](GraphImpl& g, const at::Tensor& x) {
      const at::Tensor between = torch::tanh(g.units[1](g.units[0](x)));
      if (between.requires_grad()) {
        between.register_hook([&](const at::Tensor&) {
          const at::NoGradGuard no_grad;
          if (writes) g.units[0]->weight.clamp_(-0.01, 0.01);
        });
      }
      return g.norm(g.units[0](between));
    });
    const at::Tensor loss = trainee.loss();
    check_refused([&] { loss.backward(); },
                  "parameter 'u0.weight' was written" + kInsidePass + " (unit 'u0')");
    writes = false;
    trainee.engine.zero_grad();
    trainee.loss().backward();
  });
}

TEST_CASE("a forward that writes a weight and throws leaves no second error to the next one") {
  run_torch_ranks(2, [](Mesh mesh) {
    bool writes = true;
    Trainee trainee(mesh, [&](GraphImpl& g, const at::Tensor& x) {
      const at::Tensor h = in_a_row(g, x);
      if (!writes) return h;
      const at::NoGradGuard no_grad;
      g.norm->weight.clamp_(-0.5, 0.5);
      throw std::runtime_error("thrown by the model");
    });
    CHECK_THROWS_WITH(trainee.loss(), "thrown by the model");
    writes = false;
    trainee.loss().backward();
  });
}

TEST_CASE("on one rank, and replicated, a forward that writes a weight does what it says") {
  Twin twin = graph_twin(2, 6, [](GraphImpl& g, const at::Tensor& x) {
    {
      const at::NoGradGuard no_grad;
      g.norm->weight.clamp_(-0.5, 0.5);
    }
    return in_a_row(g, x);
  });
  check_same_bits(train_sharded(twin, 1, {}), train_plain(twin, 1));
  check_same_bits(train_sharded(twin, 2, {.strategy = Strategy::kReplicate}), train_plain(twin, 2));
}

TEST_CASE("optimizers and clipping over model->parameters() end at their first step") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    const std::vector<at::Tensor> parameters = trainee.model->parameters();
    const std::string fix = "Engine::parameters()";
    const auto step = [&] {
      torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1));
      torch::optim::AdamW adam(parameters, torch::optim::AdamWOptions(0.1));
      trainee.loss().backward();
      CHECK_THROWS_WITH(sgd.step(), doctest::Contains(fix.c_str()));
      CHECK_THROWS_WITH(adam.step(), doctest::Contains(fix.c_str()));
      CHECK_THROWS_WITH(torch::nn::utils::clip_grad_norm_(parameters, 1.0),
                        doctest::Contains(fix.c_str()));
      CHECK_THROWS_WITH(torch::nn::utils::clip_grad_value_(parameters, 1.0),
                        doctest::Contains(fix.c_str()));
      CHECK_THROWS_WITH(
          trainee.graph().units[1]->weight.grad().sum(),
          doctest::Contains(
              "the gradient of parameter 'u1.weight' of unit 'u1' cannot be read here"));
      sgd.zero_grad();  // removes `.grad`; the next forward restores it
    };
    step();
    step();
  });
}

TEST_CASE("so they do if zero_grad is called between forward and backward") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    torch::optim::SGD sgd(trainee.model->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 2; ++step) {
      const at::Tensor loss = trainee.loss();
      sgd.zero_grad();
      loss.backward();
      CHECK_THROWS_WITH(sgd.step(), doctest::Contains("Engine::parameters()"));
    }
  });
}

TEST_CASE("a gradient that was given to a sharded parameter by hand is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    trainee.graph().norm->weight.mutable_grad() = torch::ones({6});
    check_refused([&] { trainee.loss(); },
                  "the program set the gradient of parameter 'norm.weight' of unit '(root)'");
  });
}

TEST_CASE("an access to a sharded parameter names it, its unit and the fix") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    CHECK_THROWS_WITH(trainee.graph().units[1]->bias.sum().item(),
                      doctest::Contains("fsdp: parameter 'u1.bias' of unit 'u1' is sharded and "
                                        "cannot be read or written here; hint: call the unit"));
    CHECK_THROWS_WITH(trainee.graph().norm->weight.sum().item(),
                      doctest::Contains("parameter 'norm.weight' of unit '(root)'"));
  });
}

TEST_CASE("step, zero_grad and clipping inside a forward or backward are refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    std::function<void()> in_forward, in_backward;
    Trainee trainee(mesh, [&](GraphImpl& g, const at::Tensor& x) {
      if (in_forward) in_forward();
      at::Tensor h = torch::tanh(g.units[0](x));
      if (in_backward) h.register_hook([&](at::Tensor) { in_backward(); });
      return g.norm(g.units[1](h));
    });
    const auto zero_grad = [&] { trainee.engine.zero_grad(); };
    in_forward = [&] { check_refused(zero_grad, "zero_grad is not allowed inside a forward"); };
    in_backward = [&] {
      check_refused(zero_grad, "zero_grad is not allowed inside a backward");
      check_refused([&] { trainee.engine.clip_grad_norm(1.0); },
                    "clip_grad_norm is not allowed inside a backward");
    };
    trainee.loss().backward();
    zero_grad();
  });
}

TEST_CASE(
    "a forward, a backward or a second Gathered inside Gathered is refused, the write-back kept") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    {
      const Gathered whole(trainee.engine, WriteBack::kOwnSlice);
      const at::NoGradGuard no_grad;
      trainee.graph().norm->weight.fill_(3);
      check_refused([&] { trainee.loss(); }, "a forward" + kWhileGathered);
      check_refused([&] { const Gathered again(trainee.engine, "u1"); },
                    "another fsdp::Gathered" + kWhileGathered);
    }
    CHECK(bit_equal(full_parameters(trainee.engine).at("norm.weight"), torch::full({6}, 3.0F)));
  });
}

TEST_CASE("values that replace a gathered parameter's storage are written back") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    {
      const Gathered whole(trainee.engine, WriteBack::kFromRankZero);
      trainee.graph().units[1]->weight.set_data(torch::full({6, 6}, 1.0F + mesh.rank()));
    }
    CHECK(bit_equal(full_parameters(trainee.engine).at("u1.weight"), torch::ones({6, 6})));
    trainee.loss().backward();
    const auto resize = [&] {
      const Gathered whole(trainee.engine, WriteBack::kOwnSlice);
      trainee.graph().units[1]->weight.set_data(torch::zeros({5, 6}));
    };
    check_refused(resize, "parameter 'u1.weight' of unit 'u1' got another shape or type");
  });
}

TEST_CASE("what is trained but was never registered ends at the first step") {
  run_torch_ranks(2, [](Mesh mesh) {
    const at::Tensor scale = torch::ones({6}, torch::requires_grad());
    Trainee closure(mesh,
                    [&](GraphImpl& g, const at::Tensor& x) { return in_a_row(g, x) * scale; });
    check_refused([&] { closure.loss().backward(); },
                  "a tensor of shape [6] requires a gradient and was used in the forward, but the "
                  "engine does not know it");

    torch::nn::Linear late(6, 6);
    Trainee registered(mesh,
                       [&](GraphImpl& g, const at::Tensor& x) { return in_a_row(g, late(x)); });
    registered.graph().register_module("late", late);
    check_refused([&] { registered.loss().backward(); },
                  "parameter 'late.weight', registered after the engine was made requires");
  });
}

TEST_CASE(
    "leaves that a forward makes for itself, gets as arguments, or that are ignored train on") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee own(mesh, [](GraphImpl& g, const at::Tensor& x) {
      const at::Tensor point = torch::zeros({6}, torch::requires_grad());
      return in_a_row(g, x + point);
    });
    own.loss().backward();
    own.loss(1).backward();
    Trainee ignores(mesh, in_a_row,
                    {.ignore = [](std::string_view fqn) { return fqn == "u1.bias"; }});
    ignores.loss().backward();
    Trainee given(mesh, in_a_row);
    auto& root = dynamic_cast<UnitImpl<GraphImpl>&>(*given.model);
    const at::Tensor input = torch::ones({3, 6}, torch::requires_grad());
    root.call(input).sum().backward();
    CHECK(input.grad().defined());
  });
}

TEST_CASE("autograd::grad with respect to a sharded parameter is refused by its name") {
  run_torch_ranks(2, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    check_refused(
        [&] { torch::autograd::grad({trainee.loss()}, {trainee.graph().units[2]->weight}); },
        "autograd::grad with respect to the sharded parameter 'u2.weight' is not supported (unit "
        "'u2')");
    const at::Tensor input = torch::ones({3, 6}, torch::requires_grad());
    auto& root = dynamic_cast<UnitImpl<GraphImpl>&>(*trainee.model);
    CHECK(torch::autograd::grad({root.call(input).sum()}, {input}).front().sizes() ==
          input.sizes());
  });
}

TEST_CASE("the backward of another graph inside a hook is refused") {
  run_torch_ranks(1, [](Mesh mesh) {
    Trainee trainee(mesh, in_a_row);
    const at::Tensor other = trainee.loss(1);
    const at::Tensor x = torch::ones({3, 6}, torch::requires_grad());
    auto& root = dynamic_cast<UnitImpl<GraphImpl>&>(*trainee.model);
    const at::Tensor out = root.call(x * 2);
    const at::Tensor loss = (out * 3).sum();
    bool refused = false;
    x.register_hook([&](at::Tensor) {
      try {
        other.backward();
      } catch (const StateError& error) {
        refused = std::string(error.what()).find("a hook ran the backward of another graph") !=
                  std::string::npos;
      }
    });
    try {
      loss.backward();
    } catch (const std::exception&) {
    }
    CHECK(refused);
  });
}

TEST_CASE("two backwards on two threads at once are refused") {
  run_torch_ranks(1, [](Mesh mesh) {
    std::string what;
    std::function<void()> in_backward;
    Trainee trainee(mesh, [&](GraphImpl& g, const at::Tensor& x) {
      const at::Tensor h = torch::tanh(g.units[0](x));
      if (in_backward) h.register_hook([&](at::Tensor) { in_backward(); });
      return g.norm(g.units[1](h));
    });
    const at::Tensor second = trainee.loss(1);
    in_backward = [&] {
      std::thread([&] {
        try {
          second.backward();
        } catch (const std::exception& error) {
          what = error.what();
        }
      }).join();
    };
    trainee.loss().backward();
    CHECK(what.find("two threads run backward through sharded units at once") != std::string::npos);
  });
}

TEST_CASE("what only rank 0 does that all ranks must do is told at once, with both sides") {
  using Alone = std::function<void(const Mesh&, Trainee&)>;
  const std::vector<std::pair<std::string, Alone>> cases = {
      {"rank 0 issued all_reduce (sum) of 1 float64 'mean'",
       [](const Mesh& mesh, Trainee&) { mesh.mean(0.5); }},
      {"rank 0 issued all_gather of 1 float64 'losses'",
       [](const Mesh& mesh, Trainee&) {
         const double loss = 0.5;
         mesh.gather(std::span(&loss, 1), "losses");
       }},
      {"rank 0 issued all_gather of 1 int64 'epoch'",
       [](const Mesh& mesh, Trainee&) { mesh.agree("epoch", {"1"}); }},
      {"rank 0 issued all_reduce (sum) of 5 float64 'gradient norm'",
       [](const Mesh&, Trainee& trainee) { trainee.engine.clip_grad_norm(1.0); }},
      {"rank 0 issued all_gather",
       [](const Mesh&, Trainee& trainee) {
         const torch::NoGradGuard no_grad;
         trainee.loss(7);
       }},
  };
  for (const auto& [text, alone] : cases) {
    CAPTURE(text);
    const auto start = std::chrono::steady_clock::now();
    const auto errors =
        errors_of_ranks(3,
                        [&](const Mesh& mesh) {
                          Trainee trainee(mesh, in_a_row);
                          for (int step = 0; step < 3; ++step) {
                            trainee.loss(step).backward();
                            if (mesh.rank() == 0 && step == 1) alone(mesh, trainee);
                          }
                        },
                        {.mesh = {.timeout = std::chrono::seconds(60)}, .in_each_thread = {}});
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));  // not the timeout
    for (const std::string& error : errors) {
      CAPTURE(error);
      CHECK(error == errors[0]);
      CHECK(error.find(kDisagree) == 0);
      CHECK(error.find(text) != std::string::npos);
    }
  }
}
