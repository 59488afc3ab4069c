#include "examples/bert_qa/progress.h"

#include "examples/bert_qa/memory_report.h"
#include "support/torch_doctest.h"

using namespace bert_qa;

namespace {

std::string written_by(const std::function<void(std::FILE*)>& write) {
  std::FILE* file = std::tmpfile();
  write(file);
  std::string text(std::ftell(file), '\0');
  std::rewind(file);
  REQUIRE(std::fread(text.data(), 1, text.size(), file) == text.size());
  std::fclose(file);
  return text;
}

}  // namespace

TEST_CASE("a log gets whole lines: the first, every so many, and the last") {
  const std::string text = written_by([](std::FILE* file) {
    Progress progress(file, "step", 25, 10);
    for (int step = 1; step <= 25; ++step) progress.update(step, "loss 1.0");
  });
  CHECK(text ==
        "step  1/25  loss 1.0  0:00 left\nstep 10/25  loss 1.0  0:00 left\n"
        "step 20/25  loss 1.0  0:00 left\nstep 25/25  loss 1.0  0:00 left\n");
}

TEST_CASE("a note is a line of its own") {
  const std::string text = written_by([](std::FILE* file) {
    Progress progress(file, "step", 25, 10);
    progress.update(1, "loss 1.0");
    progress.note("step 1 was skipped");
  });
  CHECK(text == "step  1/25  loss 1.0  0:00 left\nstep 1 was skipped\n");
}

TEST_CASE("ranks that do not speak write nothing") {
  Progress progress(nullptr, "step", 1, 1);
  progress.update(1, "loss");
  progress.interrupt("table");
  progress.note("note");
}

TEST_CASE("durations read as a clock") {
  CHECK(clock_text(-1) == "0:00");
  CHECK(clock_text(59.6) == "1:00");
  CHECK(clock_text(247) == "4:07");
  CHECK(clock_text(3723) == "1:02:03");
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
