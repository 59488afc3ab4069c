// Tests calls in an order that would make a step wrong.
#include <fsdp/optim.h>

#include "engine/support/twin.h"
#include "fsdp/error.h"
#include "optim/support/error_texts.h"

using namespace fsdp;
using namespace fsdp::testing;

TEST_CASE("gradients added between clip_grad_norm and step are refused, until measured again") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
    Engine engine(model, mesh, {});
    SGD optimizer(engine, {.lr = 0.1});
    graph_loss(*model, 0, mesh.rank()).backward();
    optimizer.clip_grad_norm(0.01);
    graph_loss(*model, 1, mesh.rank()).backward();
    CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains(kAddedAfterClip), StateError);
    optimizer.clip_grad_norm(0.01);
    optimizer.step();
    CHECK(optimizer.steps() == 1);
  });
}

TEST_CASE("a step whose gradients were never reduced is refused") {
  run_torch_ranks(2, [](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
    Engine engine(model, mesh, {});
    AdamW optimizer(engine, {});
    {
      const GradSync keep(engine, false);
      graph_loss(*model, 0, mesh.rank()).backward();
    }
    CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("gradients wait to be reduced"),
                         StateError);
    graph_loss(*model, 1, mesh.rank()).backward();
    optimizer.step();
    CHECK(optimizer.steps() == 1);
  });
}

TEST_CASE("a step after a failed backward is refused until zero_grad") {
  run_torch_ranks(1, [](Mesh mesh) {
    const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
    Engine engine(model, mesh, {});
    SGD optimizer(engine, {.lr = 0.1, .skip_nonfinite = false});
    graph_loss(*model, 0, 0).backward();
    auto& graph = dynamic_cast<UnitImpl<GraphImpl>&>(*model);
    const at::Tensor h = torch::tanh(graph.units[0](values({2, 6}, 1)));
    h.register_hook([](at::Tensor) -> at::Tensor { throw std::runtime_error("thrown"); });
    CHECK_THROWS(graph.units[1](h).sum().backward());
    CHECK_THROWS_WITH_AS(optimizer.step(), doctest::Contains("call zero_grad"), StateError);
    optimizer.zero_grad();
    graph_loss(*model, 0, 0).backward();
    optimizer.step();
    CHECK(optimizer.steps() == 1);
  });
}
