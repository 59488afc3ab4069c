// Makes NCCL's calls fail during a training. The error of every rank must name rank, unit,
// operation and position in the collective sequence. No object may remain on the devices.
#include <fmt/format.h>
#include <fsdp/optim.h>

#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "engine/support/twin.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;
using sim::NcclWrong;
using std::chrono::milliseconds;

namespace {

constexpr int kRanks = 2;
constexpr int kGuilty = 1;

struct FaultOutcome {
  std::vector<std::string> told;  // by rank
  std::vector<std::string> left;
  int64_t groups = 0;  // of the failing rank, in its steps
};

// Trains two steps. `fault` counts calls from the start of the first step.
FaultOutcome train_by_nccl(const sim::NcclFault& fault, milliseconds timeout) {
  FaultOutcome outcome;
  const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{
      .simulation = {.seed = 3, .devices = kRanks}, .keeps_reports = true, .nccl = true});
  session->left_behind.tell([&](std::vector<std::string> left) { outcome.left = std::move(left); });
  RunRanksOptions ranks = on_simulated_gpu(session);
  ranks.mesh.timeout = timeout;
  outcome.told = errors_of_ranks(
      kRanks,
      [&](const Mesh& mesh) {
        const auto model = build_seeded(7, graph_twin(2, 6, in_a_row).make);
        Engine engine(model, mesh, {});
        AdamW optimizer(engine, {.lr = 1e-2});
        mesh.agree("built", {});
        const int64_t before = session->nccl->calls("ncclGroupEnd", kGuilty);
        if (mesh.rank() == kGuilty && !fault.name.empty()) session->nccl->script(fault);
        mesh.agree("scripted", {});
        for (int step = 0; step < 2; ++step) {
          graph_loss(*model, step, mesh.rank()).backward();
          CHECK(optimizer.clip_grad_norm(1.0).finite());
          optimizer.step();
          optimizer.zero_grad();
        }
        if (mesh.rank() == kGuilty) {
          outcome.groups = session->nccl->calls("ncclGroupEnd", kGuilty) - before;
        }
      },
      ranks);
  return outcome;
}

bool has_text(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Returns true for a text such as "reduce_scatter (sum) of 40 float32 'u1' #12".
bool names_a_collective(const std::string& told) {
  const bool has_operation = has_text(told, "all_gather of ") ||
                             has_text(told, "reduce_scatter (") || has_text(told, "all_reduce (");
  return has_operation && has_text(told, "' #");
}

}  // namespace

TEST_CASE("NCCL's calls that go wrong in a training name rank, operation, unit and place") {
  const FaultOutcome whole = train_by_nccl({}, milliseconds(20'000));
  CHECK(whole.told == std::vector<std::string>(kRanks));
  REQUIRE(whole.groups > 10);
  std::set<std::string> units;
  for (int64_t n = 1; n <= whole.groups; ++n) {
    CAPTURE(n);
    const bool fails = n % 4 != 0;
    const FaultOutcome outcome =
        train_by_nccl({.name = "ncclGroupEnd",
                       .n = n,
                       .device = kGuilty,
                       .wrong = fails ? NcclWrong::kFails : NcclWrong::kStaysInProgress},
                      milliseconds(fails ? 20'000 : 300));
    for (const std::string& told : outcome.told) {
      CAPTURE(told);
      CHECK(names_a_collective(told));
      CHECK(has_text(told, fails ? "ncclGroupEnd failed on rank 1: system error"
                                 : "NCCL did not finish within 0.3 s"));
      for (const std::string unit : {"'u0'", "'u1'", "'gradient norm'"}) {
        if (has_text(told, unit)) units.insert(unit);
      }
    }
    CHECK(outcome.left == std::vector<std::string>{});
  }
  CHECK(units.size() == 3);
}
