// Tests changes of the output folder during a run. The trained model must be kept.
#include <algorithm>
#include <thread>

#include "bert_qa/tests/support/error_texts.h"
#include "program.h"

using namespace fsdp::testing;

namespace {

Words finetune_slowly(const std::string& output, const Words& more = {}) {
  return Words{"finetune",  "--preset",         "tiny", "--data",
               "learnable", "--max-seq-length", "32",   "--per-device-train-batch-size",
               "1",         "--max-steps",      "2",    "--output-dir",
               output} +
         more;
}

// Runs two ranks. Rank 0 runs `command` in a shell before it syncs the model.
ProcessResult run_harmed(const std::string& command, const Words& arguments) {
  return run_process(Words{FSDP_RUN, "-n", "2", BERT_QA_HARMED} + with_device(arguments),
                     {{"AT_FSYNC", command}}, std::chrono::seconds(120));
}

std::vector<std::string> hidden_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".")) names.push_back(name);
  }
  return names;
}

void check_model(const std::string& folder) {
  CAPTURE(folder);
  for (const char* name : {"model.safetensors", "config.json", "metrics.json"}) {
    CAPTURE(name);
    CHECK(std::filesystem::is_regular_file(folder + "/" + name));
  }
}

}  // namespace

TEST_CASE("a disk slower than the time-out is waited for, and said") {
  const TemporaryDirectory output;
  const ProcessResult result =
      run_harmed("sleep 7", finetune_slowly(output.path(), {"--timeout", "5"}));
  INFO(result.out << result.err);
  CHECK(result.code == 0);
  CHECK(result.err.starts_with("fsdp: warning rank 0/2 host "));
  CHECK(result.err.ends_with(
      "rank 0 is still writing the model after 5 s; the other ranks wait for this rank\n"));
  CHECK(std::ranges::count(result.err, '\n') == 1);
  check_model(output.path());
  CHECK(hidden_in(output.path()).empty());
}

TEST_CASE("a rank killed while it saves is noticed, and the next run removes what it left") {
  const TemporaryDirectory output;
  const ProcessResult killed = run_harmed("kill -9 $PPID", finetune_slowly(output.path()));
  INFO(killed.err);
  CHECK(killed.code == 75);
  CHECK(killed.err.find("rank 0 was killed by signal 9 (SIGKILL) (all_reduce (max) of 1 int64 "
                        "'writing the model'") != std::string::npos);
  std::vector<std::string> left = hidden_in(output.path());
  std::sort(left.begin(), left.end());
  REQUIRE(left.size() == 2);
  CHECK(left[0] == ".bert_qa.lock");
  CHECK(left[1].starts_with(".model.safetensors.tmp."));

  const ProcessResult next = run_ranks_of(BERT_QA, 2, finetune_slowly(output.path()));
  INFO(next.out << next.err);
  CHECK(next.code == 0);
  CHECK(next.out.find("note: removed " + output.path() + "/" + left[1] + kLeftIncomplete) !=
        std::string::npos);
  check_model(output.path());
  CHECK(hidden_in(output.path()).empty());
}

TEST_CASE(
    "an output folder that goes while the model is saved ends with 73 and the model beside it") {
  const TemporaryDirectory place;
  const std::string output = place.path() + "/out", beside = place.path() + "/out.saved-1";
  const std::string file = output + "/model.safetensors";
  struct Harm {
    std::string command, cause;
  };
  for (const auto& [command, cause] : {Harm{"rm -rf " + output, "No such file or directory"},
                                       Harm{"mkdir " + file, "Is a directory"}}) {
    CAPTURE(command);
    const ProcessResult result = run_harmed(command, finetune_slowly(output));
    INFO(result.out << result.err);
    CHECK(result.code == 73);
    const std::string reason = "cannot create the file (" + file + "); " + cause;
    CHECK(result.out.find("note: " + reason + ": the model is written to " + beside + "\n") !=
          std::string::npos);
    CHECK(result.err.starts_with("fsdp: error[73] rank 0/2 host "));
    CHECK(result.err.find("the output folder could not be written at the end (" + output + "); " +
                          reason + "; hint: use the complete model and results in " + beside +
                          "\n") != std::string::npos);
    check_model(beside);
    CHECK(hidden_in(beside).empty());
    std::filesystem::remove_all(output);
    std::filesystem::remove_all(beside);
  }
}

TEST_CASE("an output folder that goes while the model is trained does not cost it either" *
          doctest::skip(!is_long_run())) {
  const TemporaryDirectory place;
  const std::string output = place.path() + "/out";
  Process job(Words{FSDP_RUN, "-n", "2", BERT_QA} +
              with_device(finetune_slowly(output, {"--max-steps", "1000"})));
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (read_text(output + "/train_log.jsonl").empty() &&
         std::chrono::steady_clock::now() < give_up) {
    // Polls, because the run is another process.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::filesystem::remove_all(output);
  const ProcessResult result = job.wait(std::chrono::seconds(500));  // enough for slow machines
  INFO(result.out << result.err);
  CHECK(result.code == 73);
  check_model(place.path() + "/out.saved-1");
}
