#include <fsdp/script_module.h>

#include <sstream>

#include "policy/support/policy_twin.h"
#include "simulator/guarded_memory.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Returns a model that consists of TorchScript blocks, without C++ classes.
torch::jit::Module script_of_blocks() {
  return build_seeded(6, [] {
    torch::jit::Module root("Net");
    const auto unit = root._ivalue()->compilation_unit();
    torch::jit::Module layers("Layers", unit);
    std::string body = "def forward(self, x):\n";
    for (int i = 0; i < 3; ++i) {
      torch::jit::Module block("Block", unit, /*shouldMangle=*/true);
      block.register_parameter("weight", (torch::randn({4, 4}) * 0.3).set_requires_grad(true),
                               /*is_buffer=*/false);
      block.register_parameter("bias", torch::zeros({4}).set_requires_grad(true), false);
      block.define(
          "def forward(self, x):\n    return torch.relu(torch.mm(x, self.weight) + self.bias) + "
          "x\n");
      layers.register_module("b" + std::to_string(i), block);
      body += "    x = self.b" + std::to_string(i) + ".forward(x)\n";
    }
    layers.define(body + "    return x\n");
    root.register_parameter("scale", torch::ones({4}).set_requires_grad(true), false);
    root.register_module("layers", layers);
    root.define("def forward(self, x):\n    return self.layers.forward(x * self.scale)\n");
    return root;
  });
}

at::Tensor loss_of(torch::jit::Module& model, const at::Tensor& x) {
  return model.forward({x}).toTensor().square().sum();
}

}  // namespace

TEST_CASE("a TorchScript module is trained to the plain bits, a unit a submodule") {
  for (const int world : {1, 2, 3}) {
    CAPTURE(world);
    run_torch_ranks(world, [&](Mesh mesh) {
      torch::jit::Module plain = script_of_blocks(), sharded = script_of_blocks();
      Engine engine(modules_of(sharded), mesh, {.units = each_child_of("layers"), .debug = true});
      CHECK(engine.describe().find("layers.b2") != std::string::npos);
      const auto tree = modules_of(plain);
      // TorchScript profiles the first calls before it makes its own graphs.
      for (int step = 0; step < 5; ++step) {
        CAPTURE(step);
        engine.zero_grad();
        const at::Tensor loss =
            engine.forward([&](const at::Tensor& x) { return loss_of(sharded, x); },
                           values({2, 4}, 10 * step + mesh.rank()).to(engine.device()));
        loss.backward();
        mean_gradients(*tree, world, [&](int rank) {
          const at::Tensor expected = loss_of(plain, values({2, 4}, 10 * step + rank));
          if (rank == mesh.rank()) CHECK(bit_equal(loss.detach().cpu(), expected.detach()));
          expected.backward();
        });
        for (const ShardedParameter& parameter : engine.sharded_parameters()) {
          CAPTURE(parameter.fqn);
          if (parameter.local.numel() == 0) continue;
          REQUIRE(parameter.local.grad().defined());
          const at::Tensor whole = tree->named_parameters()[parameter.fqn].grad().flatten();
          CHECK(bit_equal(whole.narrow(0, parameter.begin, parameter.local.numel()),
                          parameter.local.grad().cpu()));
        }
      }
    });
  }
}

TEST_CASE("a TorchScript module is saved inside Gathered, and reads outside are refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    if (is_simulated_gpu()) return;  // its values are on the device
    torch::jit::Module plain = script_of_blocks(), sharded = script_of_blocks();
    Engine engine(modules_of(sharded), mesh, {.units = each_child_of("layers")});
    CHECK_THROWS_WITH(loss_of(sharded, torch::ones({2, 4})),
                      doctest::Contains("reads parameters of unit"));
    const Gathered whole(engine);
    std::stringstream file;
    const AsDeviceWork reads;
    sharded.save(file);
    torch::jit::Module again = torch::jit::load(file);
    CHECK(bit_equal(loss_of(again, torch::ones({2, 4})).detach(),
                    loss_of(plain, torch::ones({2, 4})).detach()));
  });
}
