// Tests the simulated CUDA runtime: it finds unordered work of several streams on the same bytes.
#include <vector>

#include "simulator/tests/gpu_arrays.h"
#include "simulator/tests/kernels/sim_kernels.h"

using namespace fsdp::testing;
using namespace fsdp::testing::sim;

namespace {

constexpr int64_t kRaceNumel = 64;

// Three steps of a layer. Each step gathers the parameters into a slot, uses them, and reduces the
// gradient in place. Each step issues four waits.
struct Layer {
  explicit Layer(SimulatedGpu& gpu)
      : gather(make_stream(gpu, "gather")),
        compute(make_stream(gpu, "compute")),
        reduce(make_stream(gpu, "reduce")) {
    gpu.name_memory(slot, "slot");
    gpu.name_memory(grad, "grad");
  }

  void step(int number) {
    const auto value = static_cast<float>(number);
    require(cudaStreamWaitEvent(gather, released, 0));
    samples::launch_fill(slot, value, kRaceNumel, gather);
    require(cudaEventRecord(gathered, gather));
    require(cudaStreamWaitEvent(compute, gathered, 0));
    require(cudaStreamWaitEvent(compute, reduced, 0));
    samples::launch_add(grad, slot, value, kRaceNumel, compute);
    require(cudaEventRecord(released, compute));
    require(cudaEventRecord(captured, compute));
    require(cudaStreamWaitEvent(reduce, captured, 0));
    samples::launch_add(grad, grad, 1, kRaceNumel, reduce);
    require(cudaEventRecord(reduced, reduce));
  }

  cudaStream_t gather, compute, reduce;
  cudaEvent_t released = make_event(), gathered = make_event();
  cudaEvent_t captured = make_event(), reduced = make_event();
  float* slot = make_floats(kRaceNumel);
  float* grad = make_floats(kRaceNumel);
};

}  // namespace

TEST_CASE("work with all its waits is in order on every seed, and gives the same") {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SimulatedGpu gpu({.seed = seed});
    Layer layer(gpu);
    for (int step = 1; step <= 3; ++step) layer.step(step);
    CHECK(download(layer.grad, kRaceNumel, layer.reduce) == std::vector<float>(kRaceNumel, 7));
    CHECK(gpu.take_reports().empty());
  }
}

TEST_CASE("each wait that is left out is found, on every seed and schedule") {
  for (const Schedule schedule : kAllSchedules) {
    for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
      for (int wait = 1; wait <= 4; ++wait) {
        CAPTURE(seed);
        CAPTURE(wait);
        SimulatedGpu gpu({.seed = seed, .schedule = schedule});
        Layer layer(gpu);
        layer.step(1);
        gpu.leave_out("cudaStreamWaitEvent", wait);
        layer.step(2);
        layer.step(3);
        const std::string memory = wait <= 2 ? "slot" : "grad";
        const std::string other = wait <= 2 ? " on gather " : " on reduce ";
        const std::vector<std::string> reports = gpu.take_reports();
        REQUIRE_FALSE(reports.empty());
        CAPTURE(reports.front());
        CHECK(reports.front().find(" byte 0 of " + memory) != std::string::npos);
        CHECK(reports.front().find(" on compute ") != std::string::npos);
        CHECK(reports.front().find(other) != std::string::npos);
        CHECK(reports.front().find("and nothing orders them") != std::string::npos);
      }
    }
  }
}

TEST_CASE("with one hardware queue the work of all streams begins in the order of issue") {
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    SimulatedGpu gpu({.seed = seed, .schedule = Schedule::kOneQueue});
    cudaStream_t one = make_stream(gpu, "one"), two = make_stream(gpu, "two");
    cudaStream_t three = make_stream(gpu, "three");
    float* const x = make_floats(kRaceNumel);
    float* const y = make_floats(kRaceNumel);
    samples::launch_fill(x, 1, kRaceNumel, one);
    order(one, two);
    samples::launch_add(x, x, 1, kRaceNumel, two);
    samples::launch_fill(y, 2, kRaceNumel, three);  // issued after the second stream's wait
    require(cudaStreamSynchronize(three));
    const std::vector<LaunchRecord> launches = gpu.launches();
    REQUIRE(launches.size() == 3);
    CHECK(launches[1].kernel.starts_with("add"));
    CHECK_FALSE(gpu.is_ordered("add #1 on two", "fill<float> #1 on three"));  // no event between
    CHECK(gpu.take_reports().empty());
  }
}

TEST_CASE("an event that is recorded before the work that it stands for orders nothing of it") {
  for (const uint32_t seed : {1U, 2U, 3U, 4U}) {
    SimulatedGpu gpu({.seed = seed});
    cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
    float* const slot = make_floats(kRaceNumel);
    float* const out = make_floats(kRaceNumel);
    gpu.name_memory(slot, "slot");
    require(cudaMemsetAsync(slot, 0, kRaceNumel * 4, gather));
    cudaEvent_t gathered = make_event();
    require(cudaEventRecord(gathered, gather));
    samples::launch_fill(slot, 1, kRaceNumel, gather);
    require(cudaStreamWaitEvent(compute, gathered, 0));
    samples::launch_add(out, slot, 1, kRaceNumel, compute);
    const std::vector<std::string> reports = gpu.take_reports();
    REQUIRE(reports.size() == 1);
    CHECK((reports[0] == "add #1 on compute reads byte 0 of slot, which fill<float> #1 on gather "
                         "writes, and nothing orders them" ||
           reports[0] == "fill<float> #1 on gather writes byte 0 of slot, which add #1 on compute "
                         "reads, and nothing orders them"));
  }
}

TEST_CASE("an event carries the point of its last record at the time of the wait") {
  SimulatedGpu gpu({.schedule = Schedule::kLate});
  cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
  float* const slot = make_floats(kRaceNumel);
  cudaEvent_t event = make_event();
  require(cudaStreamWaitEvent(compute, event, 0));  // the event was never recorded: no wait
  samples::launch_fill(slot, 1, kRaceNumel, gather);
  require(cudaEventRecord(event, gather));
  require(cudaStreamWaitEvent(compute, event, 0));
  require(cudaEventRecord(event, compute));  // a new point; the earlier wait keeps its own point
  samples::launch_add(slot, slot, 1, kRaceNumel, compute);
  CHECK(gpu.happens_before("fill<float> #1 on gather", "add #1 on compute"));
  CHECK(download(slot, kRaceNumel, compute) == std::vector<float>(kRaceNumel, 2));
}

TEST_CASE("work that overlaps is told from work that is in order, by name or by label") {
  SimulatedGpu gpu;
  cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
  float* const slots[] = {make_floats(kRaceNumel), make_floats(kRaceNumel)};
  float* const out = make_floats(kRaceNumel);
  samples::launch_fill(slots[0], 1, kRaceNumel, gather);
  gpu.label(gather, "gather of unit 1");
  order(gather, compute);
  samples::launch_fill(slots[1], 2, kRaceNumel, gather);
  gpu.label(gather, "gather of unit 2");
  samples::launch_add(out, slots[0], 1, kRaceNumel, compute);
  gpu.label(compute, "forward of unit 1");
  order(gather, compute);
  samples::launch_add(out, slots[1], 1, kRaceNumel, compute);
  CHECK(gpu.is_ordered("gather of unit 1", "forward of unit 1"));
  CHECK(gpu.happens_before("gather of unit 1", "gather of unit 2"));
  CHECK_FALSE(gpu.happens_before("gather of unit 2", "gather of unit 1"));
  CHECK_FALSE(gpu.is_ordered("gather of unit 2", "forward of unit 1"));
  CHECK(gpu.is_ordered("gather of unit 2", "add #2 on compute"));
  CHECK_THROWS_WITH(gpu.is_ordered("gather of unit 3", "add #2 on compute"),
                    doctest::Contains("no operation 'gather of unit 3'"));
}

TEST_CASE("who waits for the host's own memory or for the host is in order, too") {
  SimulatedGpu gpu;
  cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
  float* const slot = make_floats(kRaceNumel);
  samples::launch_fill(slot, 1, kRaceNumel, gather);
  SUBCASE("after cudaStreamSynchronize") { require(cudaStreamSynchronize(gather)); }
  SUBCASE("after cudaDeviceSynchronize") { require(cudaDeviceSynchronize()); }
  SUBCASE("after a copy to pageable memory") { download(slot, 1, gather); }
  SUBCASE("after an event that was waited for") {
    cudaEvent_t event = make_event();
    require(cudaEventRecord(event, gather));
    require(cudaEventSynchronize(event));
  }
  SUBCASE("after an event that was asked for until it came") {
    cudaEvent_t event = make_event();
    require(cudaEventRecord(event, gather));
    while (cudaEventQuery(event) == cudaErrorNotReady) continue;
    static_cast<void>(cudaGetLastError());
  }
  samples::launch_add(slot, slot, 1, kRaceNumel, compute);
  CHECK(download(slot, kRaceNumel, compute) == std::vector<float>(kRaceNumel, 2));
}

TEST_CASE("pinned memory that two streams use needs an order") {
  SimulatedGpu gpu;
  cudaStream_t gather = make_stream(gpu, "gather"), compute = make_stream(gpu, "compute");
  float* const pinned = make_pinned_floats(kRaceNumel);
  float* const slot = make_floats(kRaceNumel);
  samples::launch_fill(slot, 1, kRaceNumel, gather);
  require(cudaMemcpyAsync(pinned, slot, kRaceNumel * 4, cudaMemcpyDeviceToHost, gather));
  order(gather, compute);
  require(cudaMemcpyAsync(slot, pinned, kRaceNumel * 4, cudaMemcpyHostToDevice, compute));
  CHECK(gpu.take_reports().empty());
  require(cudaMemcpyAsync(pinned, slot, kRaceNumel * 4, cudaMemcpyDeviceToHost, gather));
  CHECK(gpu.take_reports().size() == 2);  // it reads written bytes and writes read bytes
}
