// Makes each call of the CUDA runtime fail in turn. The error must name rank, operation and unit.
// The other ranks must end too, and no object may remain on the device.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/optim.h>

#include <cstdlib>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/support/twin.h"
#include "gpu/support/faulty_training.h"
#include "runtime/cuda/cuda_library.h"
#include "simulator/torch/simulated_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

bool takes_all() {
  const char* text = std::getenv("FSDP_SIM_FAULTS");
  return text != nullptr && std::string_view(text) == "all";
}

bool allocates(std::string_view name) { return name == "cudaMalloc" || name == "cudaHostAlloc"; }

// Returns true if no error has to report the failure, because the caller can neither react to it
// nor avoid it.
bool is_ignored(const FaultyTraining& training, const CudaCall& call) {
  // Destructors cannot throw, and no later work needs the work for which they wait.
  if (call.stage == Stage::kEnd) return true;
  // Resources that are released are not used again. In the worst case the process keeps them until
  // it ends. Before a release, a CudaScope asks for the device.
  if (is_release(call.name)) return true;
  if (call.name == "cudaGetDevice" && call.precedes_release) return true;
  // A pool waits for the last use of a slot before cudaFree, but cudaFree itself waits for the
  // device.
  return call.name == "cudaEventSynchronize" && !training.is_traced;
}

// Returns true for a report about abandoned work. Work that the failed rank or its peers have
// issued may overlap their cleanup. Its memory still exists, but is not read any more.
bool is_garbage(std::string_view report) { return report.ends_with("and nothing orders them"); }

// Returns the text with which the error must begin.
std::string operation_of(const CudaCall& call) {
  if (call.name == "cudaLaunchKernel") return "the launch of ";
  if (call.name == "cudaFuncGetAttributes") return "loading the kernel ";
  return call.name;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> beginnings) {
  for (const std::string_view each : beginnings) {
    if (text.starts_with(each)) return true;
  }
  return false;
}

std::string message_of(const std::exception_ptr& thrown) {
  if (!thrown) return {};
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Returns true if `where` is a function that the user calls. It calls cudaSetDevice before any unit
// runs.
bool is_users_call(const std::string& where) {
  static const std::set<std::string> kCalls{
      "clip_grad_norm", "measuring gradients",   "an optimizer's step", "zero_grad",
      "fsdp::Gathered", "visit_full_parameters", "sharded_parameters"};
  return kCalls.contains(where);
}

void check_place(const CudaCall& call, const std::string& where) {
  CAPTURE(where);
  if (call.name == "cudaSetDevice" && is_users_call(where)) return;
  switch (call.stage) {
    case Stage::kConstruction:
      CHECK(starts_with_any(where, {"construction of ", "optimizer state of unit '",
                                    "the optimizer's counters", "trace"}));
      break;
    case Stage::kFirstStep:
    case Stage::kSteadyStep:
      CHECK(starts_with_any(
          where, {"forward of unit '", "gather of unit '", "backward of unit '", "reduce of unit '",
                  "end of backward", "gradient norm", "optimizer step", "zero_grad of unit '"}));
      break;
    case Stage::kBetween:
      CHECK(starts_with_any(
          where, {"fsdp::Gathered of unit '", "gather of unit '", "sharded_parameters of unit '",
                  "count of optimizer steps", "average of the buffers", "forward of unit '"}));
      break;
    case Stage::kNone:
    case Stage::kEnd:
      FAIL_CHECK("nothing is thrown here");
  }
  if (allocates(call.name) && call.stage == Stage::kConstruction) {
    CHECK(starts_with_any(where, {"construction of unit '", "optimizer state of unit '",
                                  "the optimizer's counters"}));
  }
  if (where.starts_with("reduce of ")) {
    CHECK(call.event == "reduce");
    CHECK(where ==
          fmt::format("reduce of unit '{}'", call.subject.empty() ? "(root)" : call.subject));
  }
}

void check_failed_rank(const CudaCall& call, int world, const std::exception_ptr& thrown) {
  REQUIRE_MESSAGE(thrown, "nobody heard of it");
  try {
    std::rethrow_exception(thrown);
  } catch (const DeviceError& error) {
    CHECK(error.exit_code() == 70);
    CHECK_MESSAGE(error.text().what.starts_with(operation_of(call)), error.what());
    check_place(call, error.text().where);
    const std::string line =
        error_line(error, {.rank = call.rank, .world_size = world, .host = "h", .step = -1});
    CHECK(line.starts_with(fmt::format("fsdp: error[70] rank {}/{} host h: ", call.rank, world)));
  } catch (const std::exception& error) {
    FAIL_CHECK("not a DeviceError: " << std::string(error.what()));
  }
}

// Checks the error of another rank. All ranks share the device, so each of them may notice that the
// device is lost.
void check_other_rank(const Fault& fault, bool is_lost, const std::exception_ptr& thrown) {
  if (!thrown) {
    CHECK(fault.call.stage == Stage::kBetween);  // the rank had already finished
    return;
  }
  try {
    std::rethrow_exception(thrown);
  } catch (const CommError& error) {
    const std::string text = error.what();
    CHECK_MESSAGE(text.starts_with(fmt::format("rank {} gave up", fault.call.rank)), text);
    CHECK_MESSAGE(text.find(operation_of(fault.call)) != std::string::npos, text);
  } catch (const DeviceError& error) {
    CHECK_MESSAGE(is_lost, error.what());
  } catch (const std::exception& error) {
    FAIL_CHECK("neither CommError nor DeviceError: " << std::string(error.what()));
  }
}

// Returns false if the call did not happen. For some calls, the schedule of the ranks decides how
// often they are made.
bool check_fault(const FaultyTraining& training, const Fault& fault, bool is_lost) {
  const CudaCall& call = fault.call;
  const std::string what =
      fmt::format("{} call {} of {} on rank {}, {} {} '{}'", name_of(call.stage), call.nth,
                  call.name, call.rank, is_lost ? "lost," : "", call.event, call.subject);
  CAPTURE(what);
  const FaultyResult result = train_with(training, fault);
  if (!result.failed) return false;
  const auto failed = static_cast<size_t>(call.rank);
  // If a trace cannot read the time of a span, it continues without it. So the error reaches only
  // code that uses the device.
  const bool is_heard = !training.is_traced || result.thrown[failed] != nullptr;
  if (!is_ignored(training, call) && is_heard) {
    check_failed_rank(*result.failed, training.world, result.thrown[failed]);
    for (size_t rank = 0; rank < result.thrown.size(); ++rank) {
      if (rank != failed) check_other_rank(fault, is_lost, result.thrown[rank]);
    }
  } else if (!is_lost) {
    for (const std::exception_ptr& each : result.thrown) CHECK_MESSAGE(!each, message_of(each));
  }
  if (is_lost) return true;  // nothing can be released on a lost device
  CHECK_MESSAGE(result.left.size() <= (is_ignored(training, call) ? 1 : 0),
                fmt::to_string(fmt::join(result.left, ", ")));
  for (const std::string& each : result.reports) CHECK_MESSAGE(is_garbage(each), each);
  return true;
}

// Chooses one call for each site that no earlier training had. In a long run it chooses all calls.
class Chosen {
 public:
  bool take(const FaultyTraining& training, const CudaCall& call) {
    if (takes_all()) return true;
    const uint64_t site = training.is_traced ? call.line : call.site;
    // cudaGetDevice precedes every other call, so one of its calls for each kind of event is
    // enough.
    const bool is_usual = call.name == "cudaGetDevice";
    return seen_.emplace(call.stage, call.name, is_usual ? call.event : "", is_usual ? 0 : site)
        .second;
  }

 private:
  std::set<std::tuple<Stage, std::string, std::string, uint64_t>> seen_;
};

std::vector<FaultyTraining> trainings() {
  std::vector<FaultyTraining> all;
  const auto add = [&](int world, const Options& options, bool is_traced) {
    all.push_back({.world = world, .options = options, .is_traced = is_traced});
  };
  add(1, {}, false);
  add(2, {}, false);
  add(2,
      {.mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kBFloat16},
       .prefetch_units = 2,
       .debug = true},
      false);
  add(2, {.mixed_precision = {.param_dtype = torch::kBFloat16}, .strategy = Strategy::kZero1},
      false);
  add(2, {.strategy = Strategy::kReplicate}, true);
  return all;
}

}  // namespace

TEST_CASE("each CUDA call of a training fails in turn") {
  Chosen chosen;
  int failed = 0, missed = 0;
  for (const FaultyTraining& training : trainings()) {
    const FaultyResult whole = train_with(training);
    for (const std::exception_ptr& each : whole.thrown) REQUIRE(!each);
    REQUIRE(whole.left == std::vector<std::string>{});
    REQUIRE(whole.reports == std::vector<std::string>{});
    int sites = 0;
    for (const CudaCall& call : whole.calls) {
      if (call.rank != training.world - 1 || !chosen.take(training, call)) continue;
      ++sites;
      const bool loses = sites % 2 == 0 && !allocates(call.name) && !training.is_traced;
      for (const bool is_lost : {false, true}) {
        if (is_lost && (allocates(call.name) || training.is_traced)) continue;
        if (!takes_all() && is_lost != loses) continue;
        const cudaError_t code = is_lost                ? cudaErrorIllegalAddress
                                 : allocates(call.name) ? cudaErrorMemoryAllocation
                                                        : cudaErrorInvalidValue;
        ++(check_fault(training, {call, code}, is_lost) ? failed : missed);
      }
    }
    MESSAGE(fmt::format("{} ranks: {} calls, {} sites", training.world, whole.calls.size(), sites));
  }
  MESSAGE(fmt::format("{} calls failed, {} did not come", failed, missed));
  CHECK(missed <= failed / 20);
}

TEST_CASE("each CUDA call with which a GPU is opened fails in turn") {
  int64_t calls = 0;
  {
    const sim::SimulatedGpu gpu;
    fsdp_cuda_library()->open_device(0);
    calls = gpu.all_calls();
  }
  CHECK(calls > 20);  // the kernels of most calls are loaded first
  for (int64_t n = 1; n <= calls; ++n) {
    CAPTURE(n);
    sim::SimulatedGpu gpu;
    std::string name;
    int64_t made = 0;
    bool is_open = false, fails_in_its_end = false;
    gpu.choose([&](std::string_view each) -> std::optional<cudaError_t> {
      if (++made != n) return std::nullopt;
      name = each;
      fails_in_its_end = is_open;
      return cudaErrorUnknown;
    });
    CAPTURE(name);
    try {
      {
        const auto device = fsdp_cuda_library()->open_device(0);
        is_open = true;
      }
      CHECK(fails_in_its_end);
    } catch (const DeviceError& error) {
      const std::string text = error.what();
      CHECK_MESSAGE(text.find(operation_of({.name = name})) != std::string::npos, text);
      CHECK_MESSAGE(text.find("cuda:0") != std::string::npos, text);
      CHECK(gpu.left() == std::vector<std::string>{});
    }
  }
}

TEST_CASE("after a model that did not fit, a smaller one is built on the same mesh") {
  const auto session = std::make_shared<SimulatedSession>(
      SimulatedRanksOptions{.simulation = {.bytes_each = 200'000}});
  RunRanksOptions ranks = on_simulated_gpu(session);
  run_ranks(
      1,
      [&](const Mesh& mesh) {
        const std::vector<std::string> before = session->gpu.left();
        for (const int64_t width : {300, 140}) {  // too large for u0; too large for u2
          const auto large = build_seeded(7, graph_twin(3, width, in_a_row).make);
          CHECK_THROWS_WITH_AS(
              Engine(large, mesh, {}),
              doctest::Contains(width == 300 ? "(construction of unit 'u0'); hint: use more ranks"
                                             : "(construction of unit 'u2'); hint: use more ranks"),
              DeviceError);
          CHECK(session->gpu.left() == before);
        }
        const auto small = build_seeded(7, graph_twin(3, 6, in_a_row).make);
        Engine engine(small, mesh, {});
        AdamW optimizer(engine, {});
        graph_loss(*small, 0, 0).backward();
        CHECK(optimizer.step().gradients.finite());
      },
      ranks);
}

TEST_CASE("a step for which the memory was not enough is repeated once there is some") {
  int64_t allocations = 0;
  // Trains while the n-th allocation of the first step fails. If n is 0, none fails.
  const auto train = [&](const Options& options, int64_t n) {
    const auto session = std::make_shared<SimulatedSession>(SimulatedRanksOptions{});
    RunRanksOptions ranks = on_simulated_gpu(session);
    std::map<std::string, at::Tensor> trained;
    run_ranks(
        1,
        [&](const Mesh& mesh) {
          const auto model = build_seeded(7, graph_twin(3, 6, in_a_row).make);
          Engine engine(model, mesh, options);
          AdamW optimizer(engine, {.lr = 1e-2});
          const auto step = [&] {
            graph_loss(*model, 0, 0).backward();
            optimizer.clip_grad_norm(1.0);
            optimizer.step();
            optimizer.zero_grad();
          };
          const int64_t before = session->gpu.calls("cudaMalloc");
          if (n > 0) {
            session->gpu.fail("cudaMalloc", n, cudaErrorMemoryAllocation);
            CHECK_THROWS_WITH_AS(step(), doctest::Contains("out of memory"), DeviceError);
            engine.zero_grad();
          }
          step();
          allocations = session->gpu.calls("cudaMalloc") - before;
          step();
          trained = full_parameters(engine);
        },
        ranks);
    return trained;
  };
  for (const bool is_low : {false, true}) {
    Options options;
    if (is_low)
      options = {
          .mixed_precision = {.param_dtype = torch::kBFloat16, .reduce_dtype = torch::kBFloat16}};
    const auto expected = train(options, 0);
    const int64_t count = allocations;
    CHECK(count >= 3);
    for (int64_t n = 1; n <= count; ++n) {
      CAPTURE(n);
      for (const auto& [fqn, value] : train(options, n)) {
        CAPTURE(fqn);
        CHECK(bit_equal(value, expected.at(fqn)));
      }
    }
  }
}
