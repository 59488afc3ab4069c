#include "bert_qa/run/memory_report.h"

#include <vector>

#include "support/torch_doctest.h"

using namespace bert_qa;

TEST_CASE("bytes sent stand beside the plan's, and what the process holds beside the whole plan") {
  fsdp::StepPlan plan;
  plan.memory.held_bytes = 3 << 20;
  plan.torch.backward_peak = 2 << 20;
  plan.traffic.world.gathered_bytes = 7 << 20;
  fsdp::Traffic sent;
  sent.world.reduced_bytes = 14 << 20;
  const std::string text = planned_and_taken(plan, sent, 2);
  CHECK(text.find("planned 7.0 MiB, measured 14.0 MiB for 2 micro-batches\n") != std::string::npos);
  CHECK(text.find("planned 5.0 MiB with LibTorch's tensors, resident ") != std::string::npos);
}

TEST_CASE("amounts are as planned, or say how far they are off") {
  using Amounts = std::vector<Amount>;
  const Amount rest{"at rest", 1 << 20, 1 << 20}, peak{"at peak", 2 << 20, 3 << 20};
  const Amount sent{"sent", 2 << 20, (2 << 20) - 8};
  CHECK(beside_plan(Amounts{rest}) == "1.0 MiB at rest, as planned");
  CHECK(beside_plan(Amounts{rest, peak}) ==
        "1.0 MiB at rest, 3.0 MiB at peak (1.0 MiB over plan), else as planned");
  CHECK(beside_plan(Amounts{peak, sent}) ==
        "3.0 MiB at peak (1.0 MiB over plan), 2.0 MiB sent (8 B under plan)");
}

TEST_CASE("under a limit what the device held stands beside the plan, and how far off it is") {
  DeviceUse use{.planned_bytes = 2000 << 10,
                .measured_bytes = 1999 << 10,
                .limit_bytes = 4 << 20,
                .engine_as_planned = true};
  CHECK(device_use(use) ==
        "device: planned 2.0 MiB, measured 2.0 MiB (0.05 % less), limit 4.0 MiB\n"
        "        of which the engine's buffers are the plan's, to the byte\n");
  use.measured_bytes = 2100 << 10;
  use.engine_as_planned = false;
  use.planned_host_bytes = use.measured_host_bytes = 8 << 20;
  CHECK(device_use(use) ==
        "device: planned 2.0 MiB, measured 2.1 MiB (5.00 % more), limit 4.0 MiB\n"
        "        of which the engine's buffers are not the plan's\n"
        "host: planned 8.0 MiB, measured 8.0 MiB (the same)\n");
}

TEST_CASE("the memory table shows the plan's highest phase beside what was measured") {
  fsdp::MemoryPlan plan;
  plan.rest[fsdp::MemoryCategory::kMainShards] = 1 << 20;
  plan.backward_peak[fsdp::MemoryCategory::kMainShards] = 3 << 20;
  fsdp::MemoryBytes peak;
  peak[fsdp::MemoryCategory::kMainShards] = 2 << 20;
  const std::string table = planned_and_measured(plan, plan.rest, peak);
  const std::string row = table.substr(table.find("main shards"));
  CHECK(row.find("1.0 MiB") < row.find("3.0 MiB"));
  CHECK(row.find("3.0 MiB") < row.find("2.0 MiB"));
  CHECK(row.find("2.0 MiB") < row.find('\n'));
}
