// Sends signals to trainings under fsdp-run. launcher_signals_test.sh uses other launchers.
#include <doctest/doctest.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "resume/small_training.h"
#include "support/long_run.h"
#include "support/run_process.h"
#include "support/scratch_folder.h"

namespace fsdp::testing {
namespace {

using std::chrono::milliseconds;

constexpr int kTrainingSteps = 12;

// The time of a signal.
enum class Moment : uint8_t { kBeforeFirstStep, kStep, kSave, kEvaluation };

Words flags_of(Moment moment) {
  if (moment == Moment::kSave) return {"--save-steps", "1", "--pause-ms", "20"};
  if (moment == Moment::kEvaluation) return {"--evaluation-batches", "5", "--pause-ms", "40"};
  return {"--pause-ms", "100"};
}

// Waits for the time. Rank 0 prints a step before it calls after_step().
void wait_for(Moment moment, Process& process, const ScratchFolder& folder) {
  if (moment == Moment::kBeforeFirstStep) REQUIRE(process.read_until("ready\n"));
  if (moment == Moment::kStep) REQUIRE(process.read_until("step 2 "));
  if (moment == Moment::kEvaluation) REQUIRE(process.read_until("evaluation of step 1, batch 2\n"));
  if (moment != Moment::kSave) return;
  for (int i = 0; i < 10'000 && saves_in_progress(folder).empty(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  REQUIRE_FALSE(checkpoints_in(folder).empty());
}

int last_step_in(const std::string& out, int otherwise) {
  const size_t last = out.rfind("\nstep ");
  return last == out.npos ? otherwise : std::stoi(out.substr(last + 6));
}

void check_signal(Moment moment, int signal, bool to_a_rank) {
  CAPTURE(static_cast<int>(moment));
  CAPTURE(signal);
  CAPTURE(to_a_rank);
  const ScratchFolder folder;
  Process process(small_training(folder, kTrainingSteps, flags_of(moment)));
  wait_for(moment, process, folder);
  ::kill(to_a_rank ? ranks_of(folder).back() : process.pid(), signal);
  const ProcessResult result = process.wait();
  INFO(result.out << result.err);
  CHECK(result.code == 0);
  const Words saved = checkpoints_in(folder);
  REQUIRE_FALSE(saved.empty());
  const int newest = std::stoi(saved.back().substr(5));
  // The lines until the time of the signal were read by wait_for().
  const int done = last_step_in(result.out, moment == Moment::kStep ? 2 : 1);
  if (signal == SIGTERM) {
    CHECK(newest == done);
    CHECK(done < kTrainingSteps);
    CHECK(result.out.find("batch 4") == std::string::npos);
  } else {
    CHECK(done == kTrainingSteps);
    if (moment != Moment::kSave) CHECK(newest < kTrainingSteps);
  }
  if (moment == Moment::kSave) return;
  CHECK(saved.size() == 1);
  if (moment != Moment::kStep) CHECK(newest == 1);
}

}  // namespace

TEST_CASE("SIGTERM saves after the step and ends with 0; SIGUSR1 saves, and the training goes on") {
  bool to_a_rank = false;
  for (const Moment moment :
       {Moment::kBeforeFirstStep, Moment::kStep, Moment::kSave, Moment::kEvaluation}) {
    for (const int signal : {SIGTERM, SIGUSR1}) {
      check_signal(moment, signal, to_a_rank);
      if (is_long_run()) check_signal(moment, signal, !to_a_rank);
      to_a_rank = !to_a_rank;
    }
    to_a_rank = !to_a_rank;
  }
}

TEST_CASE("Ctrl-C saves, and a note has the command that continues the run") {
  const ScratchFolder folder;
  const Words command = small_training(folder, kTrainingSteps, {"--pause-ms", "100"});
  Process process(command);
  wait_for(Moment::kStep, process, folder);
  ::kill(process.pid(), SIGINT);
  const ProcessResult result = process.wait();
  INFO(result.out << result.err);
  CHECK(result.code == 0);
  REQUIRE(checkpoints_in(folder).size() == 1);
  const int step = std::stoi(checkpoints_in(folder).front().substr(5));
  CHECK(step < kTrainingSteps);
  const std::string begin =
      "fsdp: note: saved step " + std::to_string(step) + "; to continue, run: ";
  const size_t at = result.err.find(begin);
  REQUIRE(at != std::string::npos);
  const std::string line = result.err.substr(at + begin.size());
  const std::string shown = line.substr(0, line.find('\n'));
  CHECK(shown.starts_with(command.front() + " -n 2 "));
  const ProcessResult continued = run_process({"sh", "-c", shown});
  INFO(continued.out << continued.err);
  CHECK(continued.code == 0);
  CHECK(continued.err.find("resumed from step " + std::to_string(step)) != std::string::npos);
  CHECK(last_step_in(continued.out, 0) == kTrainingSteps);
}

TEST_CASE("a second Ctrl-C ends the job at once with 130, without a checkpoint") {
  for (const bool has_launcher : {true, false}) {
    CAPTURE(has_launcher);
    const ScratchFolder folder;
    Words words = small_training(folder, kTrainingSteps, {"--pause-ms", "5000"});
    if (!has_launcher) words.erase(words.begin(), words.begin() + 3);
    Process process(words);
    REQUIRE(process.read_until("ready\n"));
    ::kill(process.pid(), SIGINT);
    std::this_thread::sleep_for(milliseconds(100));
    ::kill(process.pid(), SIGINT);
    const ProcessResult result = process.wait();
    INFO(result.out << result.err);
    CHECK(result.code == 130);
    for (const std::string& name : checkpoints_in(folder)) CHECK_FALSE(name.starts_with("step-"));
  }
}

TEST_CASE("Ctrl-C in a run without checkpoints says once what is lost, and ends with 130") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    Process process({FSDP_RUN, "-n", std::to_string(ranks), RESUME_RANK, "--device", "cpu",
                     "--steps", "100", "--pause-ms", "100"});
    REQUIRE(process.read_until("step 3 "));
    ::kill(process.pid(), SIGINT);
    const ProcessResult result = process.wait();
    INFO(result.out << result.err);
    CHECK(result.code == 130);
    const std::string text = "fsdp: note: Ctrl-C: the run has no checkpoints, so its ";
    const size_t at = result.err.find(text);
    REQUIRE(at != std::string::npos);
    const int steps = std::stoi(result.err.substr(at + text.size()));
    CHECK(steps >= 2);
    CHECK(steps <= 4);
    CHECK(result.err.find(" steps are lost; with --save-dir DIR, Ctrl-C saves them", at) !=
          std::string::npos);
    CHECK(result.err.find(text, at + 1) == std::string::npos);
  }
}

// The training saves only after its pause.
TEST_CASE("a second SIGTERM after a second ends the job at once with 143, without a checkpoint") {
  for (const bool to_a_rank : {false, true}) {
    CAPTURE(to_a_rank);
    const ScratchFolder folder;
    Process process(small_training(folder, kTrainingSteps, {"--pause-ms", "2500"}));
    REQUIRE(process.read_until("ready\n"));
    const pid_t target = to_a_rank ? ranks_of(folder).back() : process.pid();
    ::kill(target, SIGTERM);
    std::this_thread::sleep_for(milliseconds(1200));
    ::kill(target, SIGTERM);
    const ProcessResult result = process.wait();
    INFO(result.out << result.err);
    CHECK(result.code == 143);
    CHECK(result.out.find("step") == std::string::npos);
    for (const std::string& name : checkpoints_in(folder)) CHECK_FALSE(name.starts_with("step-"));
  }
}

TEST_CASE("a second SIGTERM within a second is the same request") {
  const ScratchFolder folder;
  Process process(small_training(folder, kTrainingSteps, {"--pause-ms", "400"}));
  REQUIRE(process.read_until("ready\n"));
  const pid_t rank = ranks_of(folder).front();
  ::kill(rank, SIGTERM);
  std::this_thread::sleep_for(milliseconds(200));
  ::kill(rank, SIGTERM);
  const ProcessResult result = process.wait();
  INFO(result.out << result.err);
  CHECK(result.code == 0);
  CHECK(checkpoints_in(folder) == Words{"step-00000001"});
}

}  // namespace fsdp::testing
