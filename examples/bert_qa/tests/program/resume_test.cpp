// Tests runs that stop and resume from a checkpoint.
#include <algorithm>
#include <csignal>
#include <functional>
#include <thread>

#include "program.h"

using namespace fsdp::testing;

namespace {

const Words kTiny = {"finetune", "--preset",      "tiny", "--max-seq-length",
                     "64",       "--num-threads", "1"};
const Words kSynthetic = kTiny + Words{"--data", "synthetic", "--per-device-train-batch-size", "1"};

// Two epochs of ten steps. The last step of an epoch has fewer windows.
Words two_epochs(const std::string& output) {
  return kTiny + Words{"--vocab-file",
                       kVocabFile,
                       "--train-file",
                       kTrainFile,
                       "--validation-file",
                       kDevFile,
                       "--max-train-samples",
                       "50",
                       "--max-eval-samples",
                       "13",
                       "--doc-stride",
                       "16",
                       "--num-train-epochs",
                       "2",
                       "--dropout",
                       "0.1",
                       "--lr-scheduler-type",
                       "cosine_with_min_lr",
                       "--lr-scheduler-kwargs",
                       R"({"min_lr_rate": 0.1})",
                       "--warmup-ratio",
                       "0.1",
                       "--learning-rate",
                       "1e-3",
                       "--gradient-accumulation-steps",
                       "2",
                       "--per-device-train-batch-size",
                       "5",
                       "--output-dir",
                       output};
}

ProcessResult finetune(const Words& arguments, int ranks = 2) {
  ProcessResult result = run_ranks_of(BERT_QA, ranks, arguments);
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  return result;
}

bool says(const ProcessResult& result, const std::string& text) {
  return result.err.find(text) != std::string::npos;
}

// Returns the numbers of each step that must not depend on a stop.
std::vector<nlohmann::json> numbers_in(const std::string& folder) {
  std::vector<nlohmann::json> numbers;
  for (const nlohmann::json& line : read_json_lines(folder + "/train_log.jsonl")) {
    numbers.push_back({line["step"], line["loss"], line["grad_norm"], line["lr"]});
  }
  return numbers;
}

std::vector<std::string> checkpoints_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder + "/checkpoints", missing)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

void wait_until(const std::function<bool()>& holds) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds() && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(holds());
}

// Compares a run that stops after each step of `stops`, and resumes, with an undisturbed run.
void check_exact(const std::vector<int>& stops, const Words& more) {
  const TemporaryDirectory place;
  const std::string whole = place.path() + "/whole";
  finetune(two_epochs(whole) + more);
  REQUIRE(numbers_in(whole).size() == 20);
  for (const int stop : stops) {
    CAPTURE(stop);
    const std::string output = place.path() + "/" + std::to_string(stop),
                      step = std::to_string(stop);
    finetune(two_epochs(output) + more + Words{"--save-steps", step, "--stop-after-step", step});
    REQUIRE(checkpoints_in(output).size() == 1);
    const ProcessResult resumed = finetune(two_epochs(output) + more + Words{"--resume", "auto"});
    CHECK(says(resumed,
               "train_log.jsonl: continued after step " + step + ", 0 later lines were dropped\n"));
    CHECK(numbers_in(output) == numbers_in(whole));
    for (const char* file : {"/model.safetensors", "/predictions.json"}) {
      CHECK(read_text(output + file) == read_text(whole + file));
    }
    const nlohmann::json metrics = read_json(output + "/metrics.json");
    for (const char* name : {"train_loss", "train_steps", "train_samples", "skipped_steps"}) {
      CAPTURE(name);
      CHECK(metrics[name] == read_json(whole + "/metrics.json")[name]);
    }
    std::filesystem::remove_all(output);
  }
}

}  // namespace

TEST_CASE("a run that stops and resumes takes the steps of the undisturbed run") {
  if (!is_long_run()) return check_exact({7, 11}, {});
  for (const char* dtype : {"float32", "float16"}) {
    check_exact({1, 7, 9, 10, 11, 15}, {"--param-dtype", dtype});
  }
}

TEST_CASE("SIGTERM saves and ends with 0, and the resumed run continues the log") {
  const TemporaryDirectory output;
  const std::string log = output.path() + "/train_log.jsonl";
  const Words endless = kSynthetic + Words{"--max-steps", "1000000",     "--output-dir",
                                           output.path(), "--report-to", "tensorboard"};
  Process process(Words{FSDP_RUN, "-n", "2", BERT_QA} + with_device(endless));
  wait_until([&] { return !read_text(log).empty(); });
  kill(-process.pid(), SIGUSR1);  // saves, and the training goes on
  wait_until([&] { return checkpoints_in(output.path()).size() == 1; });
  kill(-process.pid(), SIGTERM);
  const ProcessResult stopped = process.wait();
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 0);
  const size_t done = read_json_lines(log).size();
  CHECK(stopped.out.find("stopped by a signal after step " + std::to_string(done) +
                         "; --resume auto continues\n") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(output.path() + "/model.safetensors"));

  // As if the run had been killed later, within a line.
  std::ofstream(log, std::ios::app) << "{\"step\": " << done + 1 << "}\n{\"step\": 12";
  const std::string last = std::to_string(done + 2);
  const Words two_more = endless + Words{"--stop-after-step", last};
  const ProcessResult resumed =
      finetune(two_more + Words{"--save_steps", last, "--resume_from_checkpoint", "true"});
  CHECK(says(resumed, "fsdp: note: train_log.jsonl: continued after step " + std::to_string(done) +
                          ", 1 later line was dropped, 1 damaged line was dropped\n"));
  CHECK(resumed.out.find("step " + std::to_string(done + 1) + "/") != std::string::npos);
  CHECK(read_text(log).ends_with("}\n"));
  const std::vector<nlohmann::json> lines = read_json_lines(log);
  REQUIRE(lines.size() == done + 2);
  for (size_t i = 0; i < lines.size(); ++i) CHECK(lines[i]["step"] == i + 1);

  // Each process has written an event file, with the fields of the log.
  std::vector<std::string> events;
  for (const auto& file : std::filesystem::directory_iterator(output.path() + "/runs")) {
    events.push_back(read_text(file));
  }
  REQUIRE(events.size() == 2);
  for (const std::string& file : events) {
    for (const auto& [field, value] : lines.front().items()) {
      CAPTURE(field);
      CHECK((file.find("train/" + field) != std::string::npos) == (field != "step"));
    }
  }

  // Nothing is left to train. The run writes the same model again.
  const std::string model = read_text(output.path() + "/model.safetensors");
  const ProcessResult finished = finetune(two_more + Words{"--resume"});
  CHECK(finished.out.find("\nstep ") == std::string::npos);
  CHECK(read_text(output.path() + "/model.safetensors") == model);
  CHECK(read_json(output.path() + "/metrics.json")["train_loss"] == lines.back()["loss"]);

  // Without a resume the run begins a new log.
  finetune(two_more + Words{"--stop-after-step", "1", "--overwrite-output-dir"});
  CHECK(read_json_lines(log).size() == 1);
}

TEST_CASE("SIGTERM while questions are answered saves, and the resumed run answers them") {
  const TemporaryDirectory output;
  const Words words =
      two_epochs(output.path()) +
      Words{"--max-eval-samples",           "-1", "--doc-stride", "24", "--max-steps", "1",
            "--per-device-eval-batch-size", "1"};
  Process process(Words{FSDP_RUN, "-n", "2", BERT_QA} + with_device(words));
  wait_until([&] { return std::filesystem::exists(output.path() + "/special_tokens_map.json"); });
  kill(-process.pid(), SIGTERM);
  const ProcessResult stopped = process.wait();
  INFO(stopped.out << stopped.err);
  CHECK(stopped.code == 0);
  CHECK(stopped.out.find("stopped by a signal after step 1;") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(output.path() + "/predictions.json"));
  REQUIRE(checkpoints_in(output.path()) == Words{"step-00000001"});
  const ProcessResult resumed =
      finetune(words + Words{"--resume", "auto", "--max-eval-samples", "2"});
  CHECK(resumed.out.find("\nstep ") == std::string::npos);
  CHECK(read_json(output.path() + "/predictions.json").size() == 2);
}

TEST_CASE("only a run that continues its own checkpoints may replace results") {
  const TemporaryDirectory place;
  const auto to = [&](const std::string& name) { return place.path() + "/" + name; };
  const auto run = [&](const std::string& output, const Words& more) {
    return kSynthetic + Words{"--max-steps", "1", "--output-dir", output} + more;
  };
  const auto check_refused = [&](const Words& arguments, int code, const std::string& text) {
    const ProcessResult result = run_ranks_of(BERT_QA, 1, arguments);
    INFO(result.out << result.err);
    CHECK(result.code == code);
    CHECK(says(result, text));
  };
  finetune(run(to("a"), {}), 1);
  CHECK_FALSE(std::filesystem::exists(to("a/checkpoints")));  // nothing was saved
  const std::string summary = finetune(run(to("b"), {"--save-steps", "1"}), 1).out;
  CHECK(summary.find("trained on 1 sample in 1 step, ") != std::string::npos);
  CHECK(summary.find("\n1 checkpoint saved, the training waited ") != std::string::npos);
  const std::string results = "the output folder holds an earlier run's results";
  check_refused(run(to("a"), {"--resume", "auto"}), 73, results);
  check_refused(run(to("a"), {"--resume", to("b/checkpoints/step-00000001")}), 73, results);
  check_refused(run(to("b"), {"--resume", "auto", "--resume-weights-only"}), 73, results);
  check_refused(run(to("b"), {}), 73, results);
  finetune(run(to("b"), {"--resume", to("b/checkpoints/step-00000001/")}), 1);
  const ProcessResult elsewhere = finetune(
      run(to("c"), {"--resume", to("b/checkpoints/step-00000001"), "--max-steps", "2"}), 1);
  CHECK(says(elsewhere, "train_log.jsonl: begins after step 1\n"));
  CHECK(read_json_lines(to("c/train_log.jsonl")).size() == 1);
  check_refused(run(to("d"), {"--ablate", "communication", "--save-steps", "1"}), 64,
                "a run without communication has no checkpoints");
  check_refused(run(to("d"), {"--save-total-limit", "1"}), 64, "--save-total-limit is 1");
  check_refused({"evaluate", "--model", "m", "--resume", "auto"}, 64,
                "there is no flag --resume; hint: leave it out");
}
