// Tests a backward, or autograd::grad, that runs while forwards run. Examples are adversarial
// inputs, and forces of a potential.
#include <fsdp/recompute.h>

#include "closing/support/scripted.h"
#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "support/collective_log.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// The scripted model. Its layers are plain, or are inside one unit.
struct LayersImpl : torch::nn::Module {
  LayersImpl() : head(kScriptedWidth, kScriptedWidth) {
    register_module("head", head);
    register_module("a", a);
    register_module("b", b);
  }
  torch::nn::Linear head;
  Layer a, b;
};
struct AroundImpl : torch::nn::Module {
  explicit AroundImpl(ScriptedImpl::Script script) : core(std::move(script)) {
    register_module("core", core);
    register_module("tail", tail);
  }
  at::Tensor forward(const at::Tensor& x) { return tail(core(x)); }
  Unit<Scripted> core;
  torch::nn::Linear tail{kScriptedWidth, kScriptedWidth};
};

template <class Model>
at::Tensor chain(Model& self, const at::Tensor& x) {
  return self.b(self.a(self.head(x)));
}

// Returns x plus a step along the sign of its gradient.
template <class Model>
at::Tensor adversarial(Model& self, const at::Tensor& x) {
  const at::Tensor probe = x.detach().clone().requires_grad_();
  const at::Tensor energy = chain(self, probe).square().sum() + self.head(probe).sum();
  return x + 0.125 * torch::autograd::grad({energy}, {probe})[0].sign();
}
template <class Model>
at::Tensor trained_inside(Model& self, const at::Tensor& x) {
  chain(self, x).square().sum().backward();
  const at::Tensor h = chain(self, x);
  self.head(x).sum().backward();  // reaches only the unit that is running
  return h;
}

template <class Model>
at::Tensor with_grad(Model& self, const at::Tensor& x) {
  return chain(self, self.head(adversarial(self, x)));
}

// Compares steps of `loss(model, engine, x)` with the plain model. The plain model is called with a
// null engine. SGD steps in between. The second step follows the record of the first step.
template <class Make, class Loss>
void check_as_plain(const Make& make, const Loss& loss, Options options, bool has_equal_bits) {
  options.debug = true;
  for (const int world : {1, 2, 3}) {
    for (const int prefetch : {0, 2}) {
      CAPTURE(world);
      CAPTURE(prefetch);
      options.prefetch_units = prefetch;
      const auto plain = build_seeded(5, make);
      std::vector<std::map<std::string, at::Tensor>> expected(3);
      for (int step = 0; step < 3; ++step) {
        mean_gradients(*plain, world, [&](int rank) {
          loss(*plain, nullptr, scripted_input(10 * step + rank)).sum().backward();
        });
        const at::NoGradGuard no_grad;
        for (const auto& item : plain->named_parameters()) {
          expected[step][item.key()] = item.value().grad().clone();
          at::Tensor(item.value()).add_(item.value().grad(), -0.125);
        }
      }
      std::vector<std::vector<std::string>> lists(world);
      run_torch_ranks(world, [&](Mesh mesh) {
        const CollectiveLog collectives(mesh);
        const auto model = build_seeded(5, make);
        Engine engine(model, mesh, options);
        for (int step = 0; step < 3; ++step) {
          loss(*model, &engine, scripted_input(10 * step + mesh.rank())).sum().backward();
          const at::NoGradGuard no_grad;
          for (const ShardedParameter& each : engine.sharded_parameters()) {
            CAPTURE(each.fqn);
            CAPTURE(step);
            if (each.local.numel() == 0) continue;
            REQUIRE(each.local.grad().defined());
            const at::Tensor part =
                expected[step][each.fqn].flatten().narrow(0, each.begin, each.local.numel());
            CHECK((has_equal_bits ? bit_equal(part, each.local.grad())
                                  : at::allclose(part, each.local.grad(), 1e-4, 1e-5)));
            at::Tensor(each.local).add_(each.local.grad(), -0.125);
          }
          engine.zero_grad();
        }
        const MemoryStats memory = engine.stats().memory;
        CHECK(memory.in_use[MemoryCategory::kParameterSlots] == 0);
        CHECK(memory.in_use[MemoryCategory::kReduceSlots] == 0);
        lists[mesh.rank()] = collectives.lines();
      });
      for (const auto& list : lists) CHECK(list == lists[0]);
    }
  }
}

using Root = UnitImpl<ScriptedImpl>;
using Around = UnitImpl<AroundImpl>;

template <class Model>
auto call() {
  return [](torch::nn::Module& model, Engine*, const at::Tensor& x) {
    return dynamic_cast<Model&>(model).call(x);
  };
}
auto call_by_policy(at::Tensor (*script)(LayersImpl&, const at::Tensor&)) {
  return [script](torch::nn::Module& model, Engine* engine, const at::Tensor& x) {
    const auto run = [&](const at::Tensor& in) {
      return script(dynamic_cast<LayersImpl&>(model), in);
    };
    return engine != nullptr ? engine->forward(run, x) : run(x);
  };
}

}  // namespace

TEST_CASE("autograd::grad while forwards run leaves the units that run as they are") {
  for (const Strategy strategy : kAllStrategies) {
    if (is_by_groups(strategy)) continue;
    for (const bool reshard : {true, false}) {
      CAPTURE(static_cast<int>(strategy));
      CAPTURE(reshard);
      const Options options{.reshard_after_forward = reshard, .strategy = strategy};
      const auto root = [] { return std::make_shared<Root>(with_grad<ScriptedImpl>); };
      check_as_plain(root, call<Root>(), options, /*has_equal_bits=*/true);
      const auto around = [] { return std::make_shared<Around>(with_grad<ScriptedImpl>); };
      check_as_plain(around, call<Around>(), options, /*has_equal_bits=*/true);
    }
  }
  const auto make = [] { return std::make_shared<LayersImpl>(); };
  check_as_plain(make, call_by_policy(with_grad<LayersImpl>), {.units = by_type<LayerImpl>()},
                 /*has_equal_bits=*/true);
}

// Each backward computes a mean over the ranks, and these means are added.
TEST_CASE("a backward while forwards run adds its gradients, those of units that run among them") {
  const auto root = [] { return std::make_shared<Root>(trained_inside<ScriptedImpl>); };
  check_as_plain(root, call<Root>(), {}, /*has_equal_bits=*/false);
  check_as_plain(root, call<Root>(), {.recompute = 1}, /*has_equal_bits=*/false);
  const auto around = [] { return std::make_shared<Around>(trained_inside<ScriptedImpl>); };
  check_as_plain(around, call<Around>(), {}, /*has_equal_bits=*/false);
  const auto make = [] { return std::make_shared<LayersImpl>(); };
  check_as_plain(make, call_by_policy(trained_inside<LayersImpl>), {.units = by_type<LayerImpl>()},
                 /*has_equal_bits=*/false);
}

TEST_CASE("a backward that throws inside a forward leaves it able to go on") {
  const auto make = [] {
    return std::make_shared<Root>([](ScriptedImpl& self, const at::Tensor& x) {
      const at::Tensor between = self.a(self.head(x));
      const at::Tensor late = self.b(between) + self.head(x);
      late.register_hook([](const at::Tensor&) -> at::Tensor {
        throw std::runtime_error("the hook has had enough");
      });
      CHECK_THROWS_WITH(late.sum().backward(), "the hook has had enough");
      return self.b(between) + self.head(x);
    });
  };
  check_as_plain(make, call<Root>(), {}, /*has_equal_bits=*/true);
}
