// Tests the planned time of a step.
#include <fmt/format.h>
#include <fsdp/plan.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "plan/placement.h"
#include "planner/planned_run.h"
#include "planner/support/timed_plans.h"
#include "planner/support/vision_models.h"
#include "support/overlapped_step.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// Rates of a device in which only the latency of collectives and pauses take time.
Rates only_latency(int64_t wire) {
  constexpr double kInstant = std::numeric_limits<double>::infinity();
  return {.machine = "test",
          .source = "chosen",
          .copy = kInstant,
          .types = {{.dtype = torch::kFloat32, .products = {{1, kInstant}}}},
          .base_ns = static_cast<double>(wire),
          .host = {.bytes = kInstant}};
}

// Returns the time of the third step on a planned GPU. The wait at `left_out` ("file:LINE") is left
// out. Adds the places of all waits to `places`.
int64_t planned_time(const Step& step, const std::string& left_out = {},
                     std::set<std::string>* places = nullptr) {
  const PlanRequest request{.ranks = 2,
                            .mesh = {.device = DeviceKind::kCuda},
                            .options = {.prefetch_units = step.prefetch},
                            .rates = only_latency(step.wire)};
  const PlannedMesh planned(request);
  VirtualClock& clock = planned.clock()->clock();
  clock.filter_waits([&](const CodePlace& place) {
    const std::string text = fmt::format("{}:{}", place.file, place.line);
    if (places != nullptr) places->insert(text);
    return text != left_out;
  });
  std::vector<int64_t> ends;
  {
    const MetaMode mode(/*cpu_is_planned=*/false, planned.clock());
    const auto model = Unit<Row>(step.units, step.lends).ptr();
    Engine engine(model, planned.mesh(), {.prefetch_units = step.prefetch});
    const TimedCompute own(planned.mesh());
    compute = &own;
    for (int i = 0; i < 3; ++i) {
      // The time of a step with a synchronized begin is compared, as on the simulated GPU.
      own.stream.synchronize();
      own.stream.tell_time([&](int64_t ns) { ends.push_back(ns); });
      dynamic_cast<UnitImpl<RowImpl>&>(*model).call(torch::zeros({1, 16})).sum().backward();
      own.stream.tell_time([&](int64_t ns) { ends.push_back(ns); });
      own.stream.synchronize();
      engine.zero_grad();
    }
    compute = nullptr;
  }
  REQUIRE(ends.size() == 6);
  return ends[5] - ends[4];
}

StepPlan gpt_plan(const PlanRequest& request, int64_t batch = 2) {
  return plan(request, tiny_gpt, [batch](Unit<gpt::Gpt>& model) { return gpt_loss(model, batch); });
}

int64_t time_with(PlanRequest request, const Rates& rates, int64_t batch = 2) {
  request.rates = rates;
  return gpt_plan(request, batch).time.value().total_ns;
}

int64_t sum_of_parts(const StepTime& time) {
  return time.compute_ns() + time.optimizer_ns + time.exposed_gather_ns + time.exposed_reduce_ns +
         time.exposed_transfer_ns + time.host_ns;
}

}  // namespace

TEST_CASE("a planned step takes the overlapped time of the simulated GPU to the nanosecond") {
  for (const int prefetch : {0, 1, 2}) {
    for (const int64_t wire : {20, 80, 100, 160, 300}) {
      CAPTURE(prefetch);
      CAPTURE(wire);
      const Step step{.units = alternating(6), .wire = wire * kMicrosecond, .prefetch = prefetch};
      CHECK(planned_time(step) == overlapped(step.units, step.wire, prefetch));
    }
  }
  for (const bool lends : {false, true}) {
    const Step step{.units = alternating(5), .wire = 100 * kMicrosecond, .lends = lends};
    CHECK(planned_time(step) == overlapped(step.units, step.wire, 1));
  }
}

TEST_CASE("leaving out a wait never makes a planned step longer") {
  const Step step{.units = alternating(5), .wire = 160 * kMicrosecond};
  std::set<std::string> places;
  const int64_t whole = planned_time(step, {}, &places);
  std::string shorter;
  for (const std::string& place : places) {
    CAPTURE(place);
    const int64_t without = planned_time(step, place);
    CHECK(without <= whole);
    if (without < whole) shorter += place + '\n';
  }
  // Waits 3 and 5, for example, order the planned work.
  for (const char* file : {"parameter_sources.cpp", "unit_gradients.cpp"}) {
    CAPTURE(std::string(file));
    CHECK(shorter.find(file) != std::string::npos);
  }
}

TEST_CASE("rates change nothing in a plan except its time") {
  for (const Strategy strategy : {Strategy::kFullShard, Strategy::kReplicate}) {
    PlanRequest request = on_gpus(8, {.recompute = 1, .strategy = strategy});
    request.ranks_per_host = 4;
    request.checkpoints = CheckpointOptions{};
    const StepPlan without = gpt_plan(request);
    CHECK_FALSE(without.time);
    request.rates = sample_rates();
    const StepPlan with = gpt_plan(request);
    REQUIRE(with.time);
    CHECK(with.to_string() == without.to_string());
    CHECK(with.summary() == without.summary());
    CHECK(with.torch == without.torch);
    CHECK(with.traffic == without.traffic);
    CHECK(with.memory.held_bytes == without.memory.held_bytes);
  }
}

TEST_CASE("the parts of a step's time add up, on GPUs, on CPUs and with offload") {
  const Rates rates = offload_rates();
  for (const DeviceKind device : {DeviceKind::kCuda, DeviceKind::kCpu}) {
    for (const bool offloads : {false, true}) {
      CAPTURE(offloads);
      PlanRequest request = on_gpus(4, {.cpu_offload = offloads});
      request.mesh.device = device;
      request.rates = rates;
      const StepTime time = gpt_plan(request).time.value();
      CHECK(std::abs(sum_of_parts(time) - time.total_ns) <= 10);
      CHECK(time.products_ns > 0);
      CHECK(time.attention_ns > 0);
      CHECK(time.optimizer_ns > 0);
      CHECK(time.gather_ns > 0);
      CHECK(time.reduce_ns > 0);
      CHECK(time.gather_ns >= time.exposed_gather_ns);
    }
  }
}

TEST_CASE("operations are those of the shapes of products and convolutions") {
  struct TwoLayersImpl : torch::nn::Module {
    TwoLayersImpl()
        : first(register_module("first", torch::nn::Linear(16, 64))),
          second(register_module("second", torch::nn::Linear(64, 8))) {}
    at::Tensor forward(const at::Tensor& x) { return second(torch::relu(first(x))); }
    torch::nn::Linear first, second;
  };
  PlanRequest request = on_gpus(1);
  request.rates = sample_rates();
  const StepPlan planned = plan(
      request, [] { return Unit<torch::nn::ModuleHolder<TwoLayersImpl>>(); },
      [](Unit<torch::nn::ModuleHolder<TwoLayersImpl>>& model) {
        return model(torch::zeros({32, 16})).sum();
      });
  // The gradient of the input is not computed.
  const double first = 2.0 * 32 * 16 * 64, second = 2.0 * 32 * 64 * 8;
  CHECK(planned.time.value().flops == 2 * first + 3 * second);
  CHECK(planned.time.value().gather_ns == 0);  // one rank

  const StepPlan vision = plan(
      request, [] { return Unit<ResNet>(); },
      [](Unit<ResNet>& model) {
        return model(torch::zeros({2, 3, 32, 32})).sum();
      });
  // Forward and the gradients of input and weight of a 3×3 convolution with 16 channels and 8×8
  // pixels. The model has several of them.
  const double block = 3 * 2.0 * 2 * 8 * 8 * 16 * 16 * 3 * 3;
  CHECK(vision.time.value().flops > 4 * block);
  CHECK(vision.time.value().flops < 40 * block);
}

TEST_CASE("faster links, a faster device and less work never make a step slower by 1 %") {
  const Rates slow = sample_rates();
  Rates links = slow, device = slow;
  links.host.bytes *= 2;
  links.net.bytes *= 2;
  device.copy *= 2;
  device.types[0].attention *= 2;
  for (ProductRate& each : device.types[0].products) each.flops *= 2;
  for (const StrategyRow& row : strategies()) {
    for (const int prefetch : {0, 1, 2}) {
      CAPTURE(row.name);
      CAPTURE(prefetch);
      PlanRequest request = on_gpus(16, {.prefetch_units = prefetch, .strategy = row.strategy});
      request.ranks_per_host = 8;
      const auto most = static_cast<int64_t>(1.01 * static_cast<double>(time_with(request, slow)));
      CHECK(time_with(request, links) <= most);
      CHECK(time_with(request, device) <= most);
      CHECK(time_with(request, slow, /*batch=*/1) <= most);
    }
  }
}

TEST_CASE("rates that lack what a step needs are refused by name") {
  PlanRequest request = on_gpus(4);
  Rates rates = sample_rates();
  rates.host = rates.net = {};
  request.rates = rates;
  CHECK_THROWS_WITH_AS(gpt_plan(request), doctest::Contains("no link between ranks of a host"),
                       InvalidArgument);
  request.rates = sample_rates();
  request.rates->net = {};
  request.ranks_per_host = 2;
  CHECK_THROWS_WITH_AS(gpt_plan(request), doctest::Contains("no link between hosts"),
                       InvalidArgument);
  request = on_gpus(4, {.mixed_precision = {.param_dtype = torch::kBFloat16}});
  request.rates = sample_rates();
  CHECK_THROWS_WITH_AS(gpt_plan(request),
                       doctest::Contains("have no rate of BFloat16 for products"), InvalidArgument);
  request = on_gpus(4, {.cpu_offload = true});
  request.rates = sample_rates();
  CHECK_THROWS_WITH_AS(gpt_plan(request), doctest::Contains("CPU offload"), InvalidArgument);
}

TEST_CASE("two collectives share the wire, and slow compute while they run") {
  VirtualClock clock(/*contention=*/1);
  const int compute_stream = clock.add_stream(/*is_inline=*/false, /*is_compute=*/true);
  const int gather = clock.add_stream(false, false), reduce = clock.add_stream(false, false);
  const auto send = [&](int stream, TimedKind kind, double ns) {
    clock.issue(stream, {.kind = kind, .ns = ns, .on_wire = true, .collective = true});
    return clock.mark(stream);
  };
  const auto gathered = send(gather, TimedKind::kGather, 100);
  const auto reduced = send(reduce, TimedKind::kReduce, 40);
  clock.issue(compute_stream, {.kind = TimedKind::kProducts, .ns = 90});
  const auto computed = clock.mark(compute_stream);
  clock.run();
  CHECK(reduced->at_ns == 80);    // at half of the wire
  CHECK(gathered->at_ns == 140);  // 40 of it beside the reduction
  CHECK(computed->at_ns == 160);  // 70 until 140 at half its rate, then 20
  CHECK(clock.seen()[static_cast<size_t>(TimedKind::kProducts)] == 160);
}

TEST_CASE("streams of a CPU rank share its cores, and a wait for a link uses none") {
  const auto ends = [](double cores, double of_collective) {
    VirtualClock clock(/*contention=*/0, cores);
    const int compute = clock.add_stream(/*is_inline=*/true, /*is_compute=*/true);
    const int gather = clock.add_stream(/*is_inline=*/false, /*is_compute=*/false);
    clock.issue(gather, {.kind = TimedKind::kGather, .ns = 100, .cores = of_collective});
    clock.issue(compute, {.kind = TimedKind::kProducts, .ns = 100, .cores = 1});
    clock.wait_on_host(*clock.mark(gather));
    return clock.now();
  };
  CHECK(ends(/*cores=*/2, /*of_collective=*/1) == 100);
  CHECK(ends(1, 1) == 200);
  CHECK(ends(0, 1) == 100);  // cores are not counted
  CHECK(ends(1, 0) == 100);  // compute has the core alone
  // Compute takes 1.5 times as long for 125, in which the collective ends.
  CHECK(ends(1, 0.5) == doctest::Approx(125 + 100 - 125 / 1.5));
}

// Two ranks on a CPU whose collectives take 1 ms, of which the core is used for the part `core`.
TEST_CASE("threaded collectives of CPU ranks overlap unless they need the core of compute") {
  const auto planned = [](CpuStreamKind streams, double core, int cores) {
    PlanRequest request{.ranks = 2, .options = {.tuning = {.cpu_streams = streams}}};
    Rates rates = only_latency(0);
    rates.types[0].products[0].flops = 2e9;
    rates.types[0].attention = 2e9;
    rates.cpu = {.cores = cores, .ranks = 2, .threads = 1};
    rates.host.gathers =
        rates.host.reductions = {{.bytes = 1, .ns = 1e6}, {.bytes = 1e9, .ns = 1e6}};
    rates.host.core = core;
    request.rates = rates;
    return gpt_plan(request).time.value();
  };
  const StepTime in_line = planned(CpuStreamKind::kInline, 1, 2);
  CHECK(in_line.exposed_gather_ns == in_line.gather_ns);
  CHECK(in_line.exposed_reduce_ns == in_line.reduce_ns);
  const int64_t on_one_core = planned(CpuStreamKind::kThreaded, 1, 2).total_ns;
  const int64_t on_a_slow_link = planned(CpuStreamKind::kThreaded, 0, 2).total_ns;
  const int64_t on_own_cores = planned(CpuStreamKind::kThreaded, 1, 4).total_ns;
  CHECK(std::abs(on_one_core - in_line.total_ns) <= in_line.total_ns / 100);
  CHECK(on_a_slow_link < in_line.total_ns * 9 / 10);
  CHECK(on_own_cores == on_a_slow_link);
}
