// Tests a machine without a GPU. A run that requires a GPU is refused with the reason. Other runs
// work.
#include "program.h"

using namespace fsdp::testing;

namespace {

bool has_gpu() { return std::filesystem::exists("/dev/nvidiactl"); }

ProcessResult one_step(int ranks, const std::string& device) {
  const TemporaryDirectory output;
  return run_ranks_of(
      BERT_QA, ranks,
      {"finetune", "--preset", "tiny", "--data", "synthetic", "--max-seq-length", "32",
       "--max-steps", "1", "--output-dir", output.path(), "--device", device});
}

int64_t lines_of(const std::string& text) { return std::ranges::count(text, '\n'); }

}  // namespace

TEST_CASE("cuda without a GPU ends with 78 and one line that says why") {
  if (has_gpu()) return;
  const ProcessResult alone =
      run_process({BERT_QA, "finetune", "--preset", "tiny", "--data", "synthetic", "--output-dir",
                   "/nowhere", "--device", "cuda"});
  INFO(alone.err);
  CHECK(alone.code == 78);
  CHECK(lines_of(alone.err) == 1);
  CHECK(alone.err.starts_with("fsdp: error[78] rank 0/1 host "));
  CHECK(alone.err.find(": ranks cannot compute on a GPU (device cuda); ") != std::string::npos);
  CHECK(alone.err.find("; hint: ") != std::string::npos);
  CHECK(alone.out.empty());
  CHECK(one_step(2, "cuda").code == 78);
}

TEST_CASE("auto without a GPU goes on with the CPU, and one rank says so in a line") {
  if (has_gpu()) return;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const ProcessResult result = one_step(ranks, "auto");
    INFO(result.err);
    CHECK(result.code == 0);
    CHECK(lines_of(result.err) == 1);
    CHECK(result.err.starts_with("fsdp: warning rank 0/"));
    CHECK(result.err.find(": the ranks compute on the CPU (device auto); ") != std::string::npos);
    CHECK(result.out.find("step 1/1") != std::string::npos);
  }
}

TEST_CASE("cpu says nothing") {
  const ProcessResult result = one_step(2, "cpu");
  CHECK(result.code == 0);
  CHECK(result.err.empty());
}
