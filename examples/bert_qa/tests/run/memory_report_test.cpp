#include "bert_qa/run/memory_report.h"

#include "support/torch_doctest.h"

using namespace bert_qa;

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
