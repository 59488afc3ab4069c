// Tests which waits of docs/streams.md the time of a planned step depends on.
#include <fmt/format.h>
#include <fsdp/optim.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/support/main_copies.h"
#include "meta/meta_mode.h"
#include "planner/planned_mesh.h"
#include "planner/support/timed_plans.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// A planned run in which some waits matter.
struct WaitCase {
  Options options;
  double speed = 1;  // of the links, in comparison with sample_rates()
  // true: only forward, backward and optimizer. Kept gradients and fsdp::Gathered need more slots,
  // and no wait for a slot is then necessary.
  bool is_plain = false;
};

// Runs the calls that users make between and in steps. Returns the time of the last step. The wait
// at `left_out` ("file:LINE") is left out. Adds the places of all waits to `places`.
int64_t time_without(const WaitCase& each, const std::string& left_out,
                     std::set<std::string>* places = nullptr) {
  const Options& options = each.options;
  PlanRequest request = on_gpus(8, options);
  request.ranks_per_host = 4;
  Rates rates = offload_rates();
  rates.host_ns_per_call = 0;  // the rank's thread is ahead of its streams
  for (double* bytes : {&rates.host.bytes, &rates.net.bytes, &rates.transfer}) *bytes *= each.speed;
  for (double* ns : {&rates.base_ns, &rates.host.step_ns, &rates.net.step_ns}) *ns /= each.speed;
  request.rates = rates;
  const PlannedMesh planned(request);
  StepClock& clock = *planned.clock();
  clock.clock().filter_waits([&](const CodePlace& place) {
    const std::string file = place.file;
    const size_t source = file.rfind("src/");
    if (source == std::string::npos) return true;  // a wait of a test
    const std::string text = fmt::format("{}:{}", file.substr(source), place.line);
    if (places != nullptr) places->insert(text);
    return text != left_out;
  });
  const MetaMode mode(/*cpu_is_planned=*/false, &clock);
  gpt::GptConfig config = gpt::preset_config("tiny");
  config.layers = 4;  // more than slots
  Unit<gpt::Gpt> model(config);
  Engine engine(model.ptr(), planned.mesh(), options);
  const bool in_backward = options.optimizer_in_backward;
  AdamW optimizer(engine, {.skip_nonfinite = !in_backward});
  MainCopies copies(engine);
  for (int step = 0; step < 3; ++step) {
    if (!in_backward && !each.is_plain) {
      const GradSync keep(engine, false);
      gpt_loss(model).backward();
    }
    const at::Tensor loss = gpt_loss(model);
    if (in_backward) copies.make();
    loss.backward();
    if (!in_backward) {
      optimizer.clip_grad_norm(1.0);
      copies.make();
    }
    optimizer.step();
    optimizer.zero_grad();
    if (!each.is_plain) {
      const torch::NoGradGuard no_grad;
      gpt_loss(model);
      const Gathered whole(engine);
    }
    clock.end_step();
  }
  return clock.last_step().total_ns;
}

std::vector<WaitCase> wait_cases() {
  std::vector<WaitCase> all;
  for (const double speed : {1.0, 100.0}) {
    for (const Strategy strategy : {Strategy::kFullShard, Strategy::kHybridShard}) {
      for (const bool offloads : {false, true}) {
        all.push_back({.options = {.prefetch_units = offloads ? 1 : 0,
                                   .cpu_offload = offloads,
                                   .strategy = strategy},
                       .speed = speed});
      }
    }
    all.push_back({.options = {.optimizer_in_backward = true}, .speed = speed});
    all.push_back({.options = {.prefetch_units = 0}, .speed = speed, .is_plain = true});
    all.push_back({.options = {.mixed_precision = {.reduce_dtype = torch::kBFloat16},
                               .strategy = Strategy::kZero2},
                   .speed = speed,
                   .is_plain = true});
  }
  return all;
}

// Waits that do not change the time of these steps. Wait 9 matters after a failed backward, wait 22
// of an update in backward while a copy of main state is slow, and wait 6 while reductions are
// slower than gathers. tests/optim/waits_test.cpp finds all of them.
bool orders_rare_work(const std::string& place) {
  return place.starts_with("src/shard/main_gradients.cpp") ||
         place.starts_with("src/engine/unit_updates.cpp") ||
         place.starts_with("src/shard/gradient_slot.cpp");
}

}  // namespace

TEST_CASE("each wait that is left out makes some planned step shorter, and none longer") {
  std::map<std::string, bool> shortens;
  for (const WaitCase& each : wait_cases()) {
    std::set<std::string> places;
    const int64_t whole = time_without(each, {}, &places);
    for (const std::string& place : places) {
      CAPTURE(place);
      const int64_t without = time_without(each, place);
      CHECK(without <= whole + 1);
      shortens[place] = shortens[place] || without < whole;
    }
  }
  // If the number is smaller, the steps above no longer reach some wait of docs/streams.md.
  CHECK(shortens.size() == 16);
  for (const auto& [place, is_shorter] : shortens) {
    CAPTURE(place);
    CHECK((is_shorter || orders_rare_work(place)));
  }
}
