// Checks which work may overlap. It relies on the order that events enforce, not on the actual
// times. A gather may overlap the forward of the previous unit, and a reduction may overlap the
// backward of the next unit.
#include <fmt/format.h>
#include <fsdp/engine.h>

#include <string>

#include "comm/mesh_state.h"
#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kUnits = 5;

// Labels the last work on the streams of a rank while engine and model run, for example "forward of
// u2, rank 0". It does so only in the last step.
class Labels {
 public:
  Labels(Engine& engine, SimulatedSession& session, const Mesh& mesh)
      : session_(session),
        rank_(mesh.rank()),
        context_(*state_of(engine).context),
        prefetches_(engine.options().prefetch_units > 0) {
    engine.observe_events(
        [this](std::string_view event, std::string_view unit) { observe(event, unit); });
  }

  void start() {
    is_on_ = true;
    phase_ = "forward";
  }
  void compute(std::string_view what, int unit) const {
    set(*context_.streams.compute, what, fmt::format("u{}", unit));
  }

 private:
  // The engine reports a prefetch after its gather is issued. It reports an unshard on demand and a
  // reduction before they are issued.
  void observe(std::string_view event, std::string_view unit) {
    if (!gathered_.empty()) set(*context_.streams.gather, phase_ + " gather of", gathered_);
    if (!reduced_.empty()) set(*context_.streams.reduce, "reduce of", reduced_);
    gathered_.clear();
    reduced_.clear();
    if (event == "pre_backward") phase_ = "backward";
    if (event == "unshard" && prefetches_) {
      set(*context_.streams.gather, phase_ + " gather of", unit);
    } else if (event == "unshard") {
      gathered_ = unit;
    } else if (event == "reduce") {
      reduced_ = unit;
    }
  }
  void set(Stream& stream, std::string_view what, std::string_view unit) const {
    if (!is_on_) return;
    session_.gpu.label(cuda_stream(stream).handle(),
                       fmt::format("{} {}, rank {}", what, unit, rank_));
  }

  SimulatedSession& session_;
  const int rank_;
  const ShardContext& context_;
  const bool prefetches_;
  bool is_on_ = false;
  std::string phase_, gathered_, reduced_;
};

thread_local Labels* labels = nullptr;

at::Tensor in_a_labelled_row(GraphImpl& graph, const at::Tensor& x) {
  at::Tensor h = x;
  for (int i = 0; i < kUnits; ++i) {
    h = graph.units[i](h);
    if (labels != nullptr) labels->compute("forward of", i);
    h = torch::tanh(h);
    if (labels == nullptr) continue;
    h.register_hook([i, own = labels](const at::Tensor&) { own->compute("backward of", i + 1); });
  }
  return graph.norm(h);
}

std::shared_ptr<SimulatedSession> run_labelled(int prefetch, uint32_t seed) {
  const auto session =
      std::make_shared<SimulatedSession>(SimulatedRanksOptions{.simulation = {.seed = seed}});
  RunRanksOptions options = on_simulated_gpu(session);
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(kUnits, 6, in_a_labelled_row).make);
        Engine engine(model, mesh, {.prefetch_units = prefetch});
        Labels own(engine, *session, mesh);
        for (int step = 0; step < 3; ++step) {
          if (step == 2) {
            own.start();
            labels = &own;
          }
          graph_loss(*model, step, mesh.rank()).backward();
          engine.zero_grad();
        }
        engine.observe_events({});
        labels = nullptr;
      },
      options);
  return session;
}

// Returns true if nothing orders the two works. The label of a unit's backward is on its last work.
// It is set when the gradient of the unit's input is computed.
bool at_once(const SimulatedSession& session, const std::string& one, const std::string& other) {
  return !session.gpu.is_ordered(one, other);
}

}  // namespace

TEST_CASE("with prefetch, the next unit's gather and this one's forward may run at once") {
  for (const int prefetch : {1, 2}) {
    const auto session = run_labelled(prefetch, 3);
    for (const int rank : {0, 1}) {
      for (int i = 0; i + 1 < kUnits; ++i) {
        const std::string gather = fmt::format("forward gather of u{}, rank {}", i + 1, rank);
        const std::string forward = fmt::format("forward of u{}, rank {}", i, rank);
        CAPTURE(prefetch);
        CAPTURE(forward);
        CHECK(at_once(*session, gather, forward));
      }
    }
  }
}

TEST_CASE("without prefetch, a gather comes after the forward of the unit before") {
  const auto session = run_labelled(0, 3);
  for (const int rank : {0, 1}) {
    for (int i = 0; i + 1 < kUnits; ++i) {
      const std::string gather = fmt::format("forward gather of u{}, rank {}", i + 1, rank);
      const std::string forward = fmt::format("forward of u{}, rank {}", i, rank);
      CAPTURE(forward);
      CHECK(session->gpu.happens_before(forward, gather));
    }
  }
}

TEST_CASE("a unit's reduction and the backward of the unit before may run at once") {
  for (const int prefetch : {0, 1, 2}) {
    const auto session = run_labelled(prefetch, 3);
    for (const int rank : {0, 1}) {
      for (int i = 2; i < kUnits; ++i) {  // no hook observes the backward of the first unit
        const std::string reduce = fmt::format("reduce of u{}, rank {}", i, rank);
        const std::string backward = fmt::format("backward of u{}, rank {}", i - 1, rank);
        CAPTURE(prefetch);
        CAPTURE(reduce);
        CHECK(at_once(*session, reduce, backward));
      }
    }
  }
}
