#include "bert_qa/run/memory_report.h"

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
