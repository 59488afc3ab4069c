// Changes LibTorch's current stream between calls, as a stream guard does. The engine must order
// its compute with the new stream, and refuse the change where it cannot.
#include <fmt/format.h>
#include <fsdp/optim.h>

#include <optional>
#include <set>
#include <string>

#include "comm/mesh_state.h"
#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

using Parameters = std::map<std::string, at::Tensor>;

struct Result {
  std::set<std::string> reports, waits;
  Parameters parameters;  // rank 0's
};

// Runs every call of a step on another stream than the previous call.
void train(torch::nn::Module& model, Engine& engine, const ComputeStreamOfThread& other) {
  AdamW optimizer(engine, {.lr = 1e-2});
  const auto on_other = [&](const auto& call) {
    const ComputeStreamGuard guard(other);
    return call();
  };
  for (int step = 0; step < 2; ++step) {
    const int rank = engine.mesh().rank();
    at::Tensor loss = on_other([&] { return graph_loss(model, step, rank); });
    engine.zero_grad();
    on_other([&] { std::exchange(loss, {}).backward(); });
    engine.clip_grad_norm(1.0);
    on_other([&] { optimizer.step(); });
    optimizer.zero_grad();
    on_other([&] { engine.average_buffers(); });
    engine.visit_full_parameters([](std::string_view, const at::Tensor& value) { value.sum(); });
    on_other([&] {
      for (ShardedParameter& each : engine.sharded_parameters()) each.local.data().mul_(0.75);
    });
    std::optional<Gathered> whole(std::in_place, engine, WriteBack::kOwnSlice);
    const torch::NoGradGuard no_grad;
    model.named_parameters()["u1.weight"].mul_(0.5);
    on_other([&] { whole.reset(); });
  }
}

Result run(bool changes, const MutatedPlace& mutated = {}, uint32_t seed = 1) {
  const auto session = std::make_shared<SimulatedSession>(
      SimulatedRanksOptions{.simulation = {.seed = seed}, .keeps_reports = true});
  session->device.mutate(mutated);
  RunRanksOptions ranks = on_simulated_gpu(session);
  Result result;
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        const ComputeStreamOfThread other(
            session->device, fmt::format("rank {}, the other one", mesh.rank()), false);
        const auto model = build_seeded(7, graph_twin(4, 6, in_a_row).make);
        model->register_buffer("average", torch::ones({5}));
        Engine engine(model, mesh, {.prefetch_units = 1});
        train(*model, engine, changes ? other : *ComputeStreamOfThread::current());
        Parameters parameters = full_parameters(engine);
        if (mesh.rank() == 0) result.parameters = std::move(parameters);
        cudaStreamSynchronize(other.handle());
      },
      ranks);
  for (const std::string& each : session->gpu.take_reports()) result.reports.insert(each);
  result.waits = session->device.waits();
  return result;
}

}  // namespace

TEST_CASE("a stream that changes between calls is followed, in order and with the same bits") {
  const Result usual = run(false);
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    const Result changing = run(true, {}, seed);
    for (const std::string& each : changing.reports) FAIL_CHECK(each);
    for (const auto& [fqn, value] : changing.parameters) {
      CAPTURE(fqn);
      CHECK(bit_equal(value, usual.parameters.at(fqn)));
    }
  }
}

TEST_CASE("the wait of a stream that takes over is missed where it is left out") {
  const Result usual = run(false);
  std::set<std::string> added;
  for (const std::string& place : run(true).waits) {
    if (!usual.waits.contains(place)) added.insert(place);
  }
  CHECK(added.size() == 1);  // this is wait 15 of docs/streams.md
  for (const std::string& place : added) {
    CAPTURE(place);
    CHECK(run(true, {Mutation::kWaitLeftOut, place}).reports != std::set<std::string>{});
  }
}

TEST_CASE("a unit inside a forward that is called on another stream is refused") {
  const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{});
  RunRanksOptions ranks = on_simulated_gpu(session);
  run_ranks(
      1,
      [&](const Mesh& mesh) {
        const ComputeStreamOfThread other(session->device, "another one", false);
        bool is_other = true;
        const auto model =
            build_seeded(7, graph_twin(2, 6, [&](GraphImpl& graph, const at::Tensor& x) {
                              const at::Tensor h = graph.units[0](x);
                              const ComputeStreamGuard guard(
                                  is_other ? other : *ComputeStreamOfThread::current());
                              return graph.units[1](h);
                            }).make);
        Engine engine(model, mesh, {});
        AdamW optimizer(engine, {});
        CHECK_THROWS_WITH_AS(
            graph_loss(*model, 0, 0),
            doctest::Contains(
                "a unit was called on another CUDA stream than the model's forward (unit 'u1')"),
            StateError);
        is_other = false;
        graph_loss(*model, 0, 0).backward();
        CHECK(optimizer.step().gradients.finite());
      },
      ranks);
}
