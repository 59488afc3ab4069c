// Tests that an iteration is right after an exception, and after engines or graphs were destroyed.
#include "closing/support/recompute.h"
#include "closing/support/scripted.h"
#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "support/collective_log.h"

using namespace fsdp;
using namespace fsdp::testing;
using doctest::Contains;

namespace {

constexpr int kWorld = 3;

// On every rank, breaks one iteration by `break_one(model, x)`. Then runs a complete iteration.
template <class BreakOne>
void check_recovers(BreakOne break_one, ScriptedImpl::Script script = ScriptedImpl::chain) {
  Unit<Scripted> plain = plain_scripted(kWorld, 5, script);
  for (const int prefetch : {0, 1}) {
    CAPTURE(prefetch);
    run_torch_ranks(kWorld, [&](Mesh mesh) {
      auto model = make_scripted(5, script);
      Engine engine(model, mesh, {.prefetch_units = prefetch, .debug = true});
      for (int round = 0; round < 2; ++round) {
        CHECK_THROWS_WITH_AS(break_one(model, scripted_input(mesh.rank())), Contains("had enough"),
                             std::exception);
        model->b->throws = false;
        model(scripted_input(mesh.rank())).sum().backward();
        check_gradients(engine, *plain);
        engine.zero_grad();
      }
      const MemoryStats memory = engine.stats().memory;
      CHECK(memory.in_use[MemoryCategory::kParameterSlots] == 0);
      CHECK(memory.in_use[MemoryCategory::kReduceSlots] == 0);
    });
  }
}

void throw_in_backward(const at::Tensor& tensor) {
  tensor.register_hook([](const at::Tensor& gradient) -> at::Tensor {
    if (gradient.defined()) throw std::runtime_error("the hook has had enough");
    return gradient;
  });
}

}  // namespace

TEST_CASE("after an exception in a unit's forward the next iteration is right") {
  check_recovers([](Unit<Scripted>& model, const at::Tensor& x) {
    model->b->throws = true;
    model(x);
  });
}

TEST_CASE("after an exception in backward the next iteration is right") {
  check_recovers([](Unit<Scripted>& model, const at::Tensor& x) {
    const auto script =
        std::exchange(model->script, [](ScriptedImpl& self, const at::Tensor& input) {
          const at::Tensor between = self.a(self.head(input));
          throw_in_backward(between);
          return self.b(between);
        });
    const at::Tensor loss = model(x).sum();
    model->script = script;
    loss.backward();
  });
}

TEST_CASE("after an exception in backward finished gradients are refused until zero_grad") {
  for (const bool ends_first : {true, false}) {
    CAPTURE(ends_first);
    Unit<Scripted> plain = plain_scripted(kWorld, 5);
    run_torch_ranks(kWorld, [&](Mesh mesh) {
      auto model = make_scripted(5);
      Engine engine(model, mesh, {.debug = true});
      const at::Tensor x = scripted_input(mesh.rank());
      if (ends_first) model(x).sum().backward();
      // The backward that fails has closed 'b'.
      model->script = [](ScriptedImpl& self, const at::Tensor& input) {
        const at::Tensor between = self.head(input);
        throw_in_backward(between);
        return self.b(self.a(between));
      };
      CHECK_THROWS_WITH(model(x).sum().backward(), Contains("had enough"));
      model->script = ScriptedImpl::chain;
      const auto mixed =
          Contains("gradients of a failed backward are mixed with gradients of another backward");
      CHECK_THROWS_WITH_AS(engine.clip_grad_norm(1.0), mixed, StateError);
      CHECK_THROWS_WITH_AS(model(x).sum().backward(), mixed, StateError);
      engine.zero_grad();
      model(x).sum().backward();
      check_gradients(engine, *plain);
    });
  }
}

TEST_CASE("after an exception in a recomputed forward the next iteration is right") {
  const auto script = [](ScriptedImpl& self, const at::Tensor& x) {
    return recompute([&self](Tensors in) -> Tensors { return {self.b(self.a(in[0]))}; },
                     {self.head(x)})[0];
  };
  check_recovers(
      [](Unit<Scripted>& model, const at::Tensor& x) {
        const at::Tensor loss = model(x).sum();
        model->b->throws = true;
        loss.backward();
      },
      script);
}

TEST_CASE("after an exception inside a recomputed backward the next iteration is right") {
  const auto script = [](ScriptedImpl& self, const at::Tensor& x) {
    return recompute(
        [&self](Tensors in) -> Tensors {
          const at::Tensor between = self.a(in[0]);
          if (self.b->throws && between.requires_grad()) throw_in_backward(between);
          const bool throws = std::exchange(self.b->throws, false);
          at::Tensor out = self.b(between);
          self.b->throws = throws;
          return {out};
        },
        {self.head(x)})[0];
  };
  check_recovers(
      [](Unit<Scripted>& model, const at::Tensor& x) {
        model->b->throws = true;
        model(x).sum().backward();
      },
      script);
}

TEST_CASE("a graph from before an optimizer step throws in backward") {
  const auto errors = errors_of_ranks(
      2,
      [](Mesh mesh) {
        auto model = make_scripted();
        Engine engine(model, mesh, {.debug = true});
        const at::Tensor old = model(scripted_input(mesh.rank())).sum();
        model(scripted_input(mesh.rank())).sum().backward();
        {
          const at::NoGradGuard no_grad;
          for (const ShardedParameter& parameter : engine.sharded_parameters()) {
            at::Tensor local = parameter.local;
            local.add_(1);
          }
        }
        old.backward();
      },
      torch_ranks_options());
  check_contains(errors[0], "modified by an inplace operation");
}

TEST_CASE("an engine destroyed before its model and its graphs leaves them refused, not broken") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = make_scripted();
    at::Tensor loss;
    {
      Engine engine(model, mesh, {.debug = true});
      loss = model(scripted_input(mesh.rank())).sum();
    }
    CHECK_THROWS_WITH_AS(loss.backward(), Contains("the engine was destroyed"), std::exception);
    CHECK_THROWS_WITH_AS(model(scripted_input(mesh.rank())),
                         Contains("a unit was called without an engine"), StateError);
    CHECK_THROWS_WITH_AS(model->a->up->weight.sum(), Contains("the engine was destroyed"),
                         std::exception);
  });
}

TEST_CASE("an engine destroyed in the middle of a broken backward leaves nothing behind") {
  run_torch_ranks(2, [](Mesh mesh) {
    auto model = make_scripted(5, [](ScriptedImpl& self, const at::Tensor& x) {
      const at::Tensor between = self.a(self.head(x));
      throw_in_backward(between);
      return self.b(between);
    });
    {
      Engine engine(model, mesh, {.debug = true});
      CHECK_THROWS(model(scripted_input(mesh.rank())).sum().backward());
    }
    auto second = make_scripted();
    Engine engine(second, mesh, {.debug = true});
    second(scripted_input(mesh.rank())).sum().backward();
  });
}

// The losses D(G(z)) and D(x) make units of the second engine close between units of the first.
TEST_CASE("two engines on one mesh share a scheduler: equal lists and the plain model's bits") {
  const auto use_all_but = [](Unit<Scripted>& d, Unit<Scripted>& g, int rank) {
    d->a->uses_down = rank != 1;
    g->b->uses_down = rank != 2;
  };
  const auto loss_of = [](Unit<Scripted>& d, Unit<Scripted>& g, int rank) {
    return d(g(scripted_input(rank))).sum() + d(scripted_input(rank + 10)).pow(2).sum();
  };
  auto plain_d = make_scripted(5), plain_g = make_scripted(6);
  torch::nn::ModuleList both;
  both->push_back(plain_d.ptr());
  both->push_back(plain_g.ptr());
  mean_gradients(*both, kWorld, [&](int rank) {
    use_all_but(plain_d, plain_g, rank);
    loss_of(plain_d, plain_g, rank).backward();
  });
  for (const int prefetch : {0, 1}) {
    std::vector<std::vector<std::string>> lists(kWorld);
    run_torch_ranks(kWorld, [&](Mesh mesh) {
      const CollectiveLog collectives(mesh);
      auto d = make_scripted(5), g = make_scripted(6);
      Engine engine_d(d, mesh, {.prefetch_units = prefetch, .debug = true});
      Engine engine_g(g, mesh, {.prefetch_units = prefetch, .debug = true});
      for (int round = 0; round < 2; ++round) {
        use_all_but(d, g, mesh.rank());
        loss_of(d, g, mesh.rank()).backward();
        check_gradients(engine_d, *plain_d);
        check_gradients(engine_g, *plain_g);
        engine_d.zero_grad();
        engine_g.zero_grad();
      }
      lists[mesh.rank()] = collectives.lines();
    });
    CHECK(lists[1] == lists[0]);
    CHECK(lists[2] == lists[0]);
  }
}
