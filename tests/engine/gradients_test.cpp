// Tests main gradients through `.grad` of the local shards, as users access them.
#include "engine/support/twin.h"
#include "fsdp/error.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("gradients that the user replaces or clears are the ones that count") {
  for (const int world : {1, 2, 3}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
      Engine engine(model, mesh, {});
      auto parameters = engine.sharded_parameters();
      graph_loss(*model, 0, mesh.rank()).backward();
      for (ShardedParameter& each : parameters) {
        each.local.mutable_grad() = torch::ones({each.local.numel()});
      }
      CHECK(engine.measure_gradients(1.0).norm() == 12 + 2 * 42);  // counts each element once
      for (ShardedParameter& each : parameters) {
        if (!each.fqn.starts_with("u1.")) each.local.mutable_grad() = at::Tensor();
      }
      CHECK(engine.measure_gradients(1.0).norm() == 42);
      for (ShardedParameter& each : parameters) each.local.mutable_grad() = at::Tensor();
      CHECK(engine.measure_gradients(1.0).norm() == 0);
      CHECK(engine.stats().memory.in_use[MemoryCategory::kMainGradients] == 0);
    });
  }
}

TEST_CASE("an optimizer that writes through data() is noticed by resident copies and old graphs") {
  run_torch_ranks(1, [](Mesh mesh) {
    auto model = build_seeded(7, [] { return Unit<Graph>(1, 6, in_a_row); });
    Engine engine(model, mesh, {.mixed_precision = {.param_dtype = torch::kBFloat16}});
    auto parameters = engine.sharded_parameters();
    const at::Tensor old = graph_loss(*model, 0, 0);
    for (ShardedParameter& each : parameters) each.local.data().fill_(0.5);
    CHECK_THROWS_WITH(old.backward(), doctest::Contains("modified by an inplace operation"));
    const Gathered whole(engine);
    for (const auto& item : model->named_parameters()) {
      CHECK(item.value().detach().eq(0.5).all().item<bool>());
    }
  });
}

TEST_CASE("a gradient that LibTorch hands over with a pending sign is read with it") {
  struct SignedImpl : torch::nn::Module {
    explicit SignedImpl(int64_t rows) {
      weight = register_parameter("weight", torch::ones({rows, 512}));
    }
    at::Tensor forward(const at::Tensor& x) {
      return at::imag(torch::complex(torch::zeros_like(weight), weight).conj().resolve_conj())
                 .sum() *
             x;
    }
    at::Tensor weight;
  };
  struct Signed : torch::nn::ModuleHolder<SignedImpl> {
    using torch::nn::ModuleHolder<SignedImpl>::ModuleHolder;
  };
  for (const int64_t rows : {3, 512}) {  // copied to a slot; zero-copy
    run_torch_ranks(2, [&](Mesh mesh) {
      Unit<Signed> model(rows);
      bool pending = false;
      model->weight.register_hook([&](const at::Tensor& each) { pending = each.is_neg(); });
      Engine engine(model, mesh);
      model(torch::ones({1})).sum().backward();
      CHECK(pending);
      for (const ShardedParameter& each : engine.sharded_parameters()) {
        CHECK(each.local.grad().clone().eq(-1).all().item<bool>());
      }
    });
  }
}

TEST_CASE("a gradient that arrives sparse is refused with the fix") {
  struct SparseImpl : torch::nn::Module {
    SparseImpl() { weight = register_parameter("weight", torch::ones({5, 3})); }
    at::Tensor forward(const at::Tensor& tokens) {
      return torch::embedding(weight, tokens, -1, false, /*sparse=*/true);
    }
    at::Tensor weight;
  };
  struct Sparse : torch::nn::ModuleHolder<SparseImpl> {
    using torch::nn::ModuleHolder<SparseImpl>::ModuleHolder;
  };
  run_torch_ranks(2, [](Mesh mesh) {
    Unit<Sparse> model;
    Engine engine(model, mesh);
    CHECK_THROWS_WITH_AS(model(torch::tensor({1, 2})).sum().backward(),
                         doctest::Contains("the gradient of parameter 'weight' is sparse"),
                         InvalidArgument);
  });
}

TEST_CASE(
    "a rank that fails in forward or backward ends the others with its cause, nothing crashes") {
  for (const auto streams : every_stream_kind()) {
    for (const bool in_backward : {false, true}) {
      const std::vector<std::string> errors = errors_of_ranks(
          3,
          [&](Mesh mesh) {
            auto model = build_seeded(7, [&] {
              return Unit<Graph>(4, 6, [&](GraphImpl& g, const at::Tensor& x) {
                at::Tensor h = x;
                for (size_t i = 0; i < g.units.size(); ++i) {
                  h = torch::tanh(g.units[i](h));
                  if (g.step != 1 || g.rank != 1 || i != 2) continue;
                  if (!in_backward) throw std::runtime_error("rank 1 gives up");
                  h.register_hook([](at::Tensor) -> at::Tensor {
                    throw std::runtime_error("rank 1 gives up");
                  });
                }
                return g.norm(h);
              });
            });
            Engine engine(model, mesh,
                          {.prefetch_units = 2, .debug = true, .tuning = {.cpu_streams = streams}});
            for (int step = 0; step < 3; ++step) {
              graph_loss(*model, step, mesh.rank()).backward();
              engine.zero_grad();
            }
          },
          torch_ranks_options());
      CAPTURE(in_backward);
      CHECK(errors[1] == "rank 1 gives up");
      for (const int other : {0, 2}) {
        CAPTURE(errors[other]);
        CHECK(errors[other].find("rank 1 gives up") != std::string::npos);
      }
    }
  }
}

TEST_CASE("a view that the user kept follows its parameter: readable again when it is gathered") {
  for (const int world : {1, 2}) {
    run_torch_ranks(world, [&](Mesh mesh) {
      at::Tensor kept;
      auto model = build_seeded(7, [&] {
        return Unit<Graph>(2, 6, [&](GraphImpl& g, const at::Tensor& x) {
          const at::Tensor y = in_a_row(g, x);
          kept = g.units[1]->weight.t();  // only metadata: allowed while it is sharded
          return y;
        });
      });
      Engine engine(model, mesh, {.debug = true});
      torch::optim::SGD optimizer(engine.parameters(), torch::optim::SGDOptions(0.1));
      for (int step = 0; step < 2; ++step) {
        graph_loss(*model, step, mesh.rank()).backward();
        CHECK_THROWS_WITH(kept.sum(), doctest::Contains("is sharded"));
        optimizer.step();
        optimizer.zero_grad();
        const at::Tensor whole = full_parameters(engine).at("u1.weight");
        const Gathered gathered(engine, "u1");
        CHECK(torch::equal(kept.detach(), whole.t()));
      }
    });
  }
}
