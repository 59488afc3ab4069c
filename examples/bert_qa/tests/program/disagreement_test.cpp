// Tests processes with different arguments or files. All ranks must end with code 78 and name both
// sides.
#include "program.h"

using namespace fsdp::testing;

namespace {

// Checks two ranks that run `script` in a shell. The line of each rank must contain `text`, and the
// launcher's line must contain the code.
void check_refused(const std::string& script, const Words& arguments, const std::string& text) {
  CAPTURE(text);
  const ProcessResult result =
      run_process(Words{FSDP_RUN, "-n", "2", "--all-errors", "sh", "-c", script, "sh"} + arguments);
  INFO(result.err);
  CHECK(result.code == 78);
  int lines = 0;
  std::istringstream all(result.err);
  for (std::string line; std::getline(all, line); ++lines) {
    CHECK(line.starts_with("fsdp: error[78] rank "));
    CHECK(line.find(lines < 2 ? text : "ended with code 78") != std::string::npos);
  }
  CHECK(lines == 3);  // two ranks and the launcher
}

Words finetune_apart(const std::string& output) {
  return {BERT_QA, "finetune",    "--data", "synthetic", "--output-dir", output, "--max-seq-length",
          "32",    "--max-steps", "1",      "--device",  "cpu"};
}

// Returns a script that runs the program. On rank 1 the program gets additional arguments.
std::string with_on_one(const std::string& more) {
  return "if [ $RANK = 1 ]; then exec \"$@\" " + more + "; fi; exec \"$@\"";
}

}  // namespace

TEST_CASE("different flags are refused with both") {
  const TemporaryDirectory output;
  check_refused(with_on_one("--learning-rate 2e-4"),
                finetune_apart(output.path()) + Words{"--preset", "tiny"},
                "ranks do not agree on the command line: rank 0 has '(nothing)', rank 1 has "
                "'--learning-rate 2e-4'");
  check_refused("exec \"$@\" --seed $RANK",
                finetune_apart(output.path()) + Words{"--preset", "tiny"},
                "ranks do not agree on the command line: rank 0 has '--seed 0', rank 1 has "
                "'--seed 1' (command line, line 8); hint: start all ranks with the same program, "
                "options and files");
  CHECK(read_text(output.path() + "/train_log.jsonl").empty());
}

TEST_CASE("different configurations of the model are refused with both lines") {
  const TemporaryDirectory place;
  std::filesystem::create_directories(place.path() + "/0");
  REQUIRE(run_ranks_of(BERT_QA, 1,
                       {"finetune", "--data", "synthetic", "--preset", "tiny", "--max-steps", "1",
                        "--max-seq-length", "32", "--output-dir", place.path() + "/0/model"})
              .code == 0);
  std::filesystem::copy(place.path() + "/0", place.path() + "/1",
                        std::filesystem::copy_options::recursive);
  const std::string file = place.path() + "/1/model/config.json";
  nlohmann::ordered_json config = nlohmann::ordered_json::parse(read_text(file));
  config["hidden_dropout_prob"] = 0.25;
  std::ofstream(file) << config.dump(2);
  check_refused("cd " + place.path() + "/$RANK && exec \"$@\"",
                finetune_apart(place.path() + "/out") + Words{"--model", "model"},
                "ranks do not agree on the model configuration: rank 0 has "
                "'  \"hidden_dropout_prob\": 0.1,', rank 1 has '  \"hidden_dropout_prob\": 0.25,'");
}

TEST_CASE("different engine options and models are refused with both") {
  check_refused("if [ $RANK = 1 ]; then export TRAINING_PREFETCH=2; fi; exec \"$@\"",
                {TRAINING_RANK, "3", "60000"},
                "ranks do not agree on the configuration: rank 0 has 'prefetch_units 1', rank 1 "
                "has 'prefetch_units 2'");
  check_refused("if [ $RANK = 1 ]; then export TRAINING_PRESET=mini; fi; exec \"$@\"",
                {TRAINING_RANK, "3", "60000"}, "ranks do not agree on the model: rank 0 has '");
}
