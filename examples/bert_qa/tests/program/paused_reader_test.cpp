// Tests a reader of a run's output that pauses for longer than ranks wait for each other in a
// collective.
#include <thread>

#include "program.h"

using namespace fsdp::testing;

TEST_CASE("a reader that pauses longer than the time-out neither ends a run nor misses a line" *
          doctest::skip(!is_long_run())) {
  const TemporaryDirectory place;
  Process process({FSDP_RUN,    "-n",
                   "2",         BERT_QA,
                   "finetune",  "--preset",
                   "tiny",      "--data",
                   "synthetic", "--max-train-samples",
                   "64",        "--max-seq-length",
                   "16",        "--per-device-train-batch-size",
                   "1",         "--max-steps",
                   "200",       "--logging-steps",
                   "1",         "--timeout",
                   "1",         "--device",
                   "cpu",       "--output-dir",
                   place.path()});
  process.make_pipe_small();
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const ProcessResult result = process.wait();
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(result.out.find("step 200/200  loss ") != std::string::npos);
  CHECK(result.out.find("the model was written to ") != std::string::npos);
}
