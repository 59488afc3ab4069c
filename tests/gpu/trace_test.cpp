// Tests that a trace contains the times of the GPU. On this simulated GPU, only a link takes time.
#include <fsdp/optim.h>

#include <map>
#include <string>

#include "comm/mesh_state.h"
#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Traced {
  std::map<std::string, std::pair<int64_t, int64_t>> ns;  // shortest and longest span by its name
  int64_t exposed_comm_ns = 0;
};

// Returns the trace of rank 0 in the second of two steps.
Traced trace_step(const Wire& wire) {
  const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{.wire = wire});
  const RunRanksOptions ranks = on_simulated_gpu(session);
  Traced traced;
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
        Engine engine(model, mesh, {.prefetch_units = 0});
        AdamW optimizer(engine, {});
        ShardContext& context = *state_of(engine).context;
        for (int step = 0; step < 2; ++step) {
          if (step == 1) context.spans.start();
          graph_loss(*model, step, mesh.rank()).backward();
          optimizer.clip_grad_norm(1.0);
          optimizer.step();
          optimizer.zero_grad();
        }
        for (Stream* stream : {context.streams.compute, context.streams.gather.get(),
                               context.streams.reduce.get()}) {
          stream->synchronize();
        }
        context.spans.stop();
        if (mesh.rank() != 0) return;
        traced.exposed_comm_ns = engine.stats().exposed_comm_ns;
        for (const Span& span : context.spans.spans()) {
          const int64_t ns = span.end_ns - span.begin_ns;
          auto& [shortest, longest] =
              traced.ns.try_emplace(std::string(span.what), ns, ns).first->second;
          shortest = std::min(shortest, ns);
          longest = std::max(longest, ns);
        }
      },
      ranks);
  return traced;
}

// CUDA reports an event's time in milliseconds, as a float. So the time is rounded.
bool is_about(int64_t ns, int64_t expected) { return std::abs(ns - expected) < 200; }

}  // namespace

TEST_CASE("every span of a trace has the device's times, and a gather those of the wire") {
  const Traced at_once = trace_step({});
  for (const char* what : {"forward", "backward", "gather", "reduce", "capture", "optimizer"}) {
    CAPTURE(what);
    REQUIRE(at_once.ns.contains(what));
  }
  for (const auto& [what, ns] : at_once.ns) {
    CAPTURE(what);
    CHECK(is_about(ns.first, 0));
    CHECK(is_about(ns.second, 0));
  }
  CHECK(is_about(at_once.exposed_comm_ns, 0));

  constexpr int64_t kLatency = 100'000;
  const Traced slow = trace_step({.latency = std::chrono::microseconds(100)});
  CHECK(is_about(slow.ns.at("gather").first, kLatency));
  CHECK(is_about(slow.ns.at("gather").second, kLatency));
  CHECK(slow.ns.at("backward").second > kLatency);  // the root's backward contains other gathers
  CHECK(slow.exposed_comm_ns >= kLatency - 200);    // nothing hides the first gather
}
