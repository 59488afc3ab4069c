// A vocabulary given beside a model: text is still cut as the model's folder says.
#include "program.h"

using namespace fsdp::testing;

namespace {

Words finetune_with_vocabulary(const std::string& output, const Words& more) {
  return Words{"finetune",
               "--train-file",
               kTrainFile,
               "--max-train-samples",
               "8",
               "--max-steps",
               "3",
               "--dropout",
               "0",
               "--no-shuffle",
               "--max-seq-length",
               "64",
               "--doc-stride",
               "16",
               "--output-dir",
               output} +
         more;
}

std::vector<double> losses(const std::string& folder) {
  std::vector<double> losses;
  for (const auto& line : read_json_lines(folder + "/train_log.jsonl")) {
    losses.push_back(line["loss"]);
  }
  return losses;
}

}  // namespace

TEST_CASE("--vocab-file keeps the case that the model's folder asks for, in training and export") {
  const TemporaryDirectory place;
  const std::string model = place.path() + "/model";
  REQUIRE(run_ranks_of(
              BERT_QA, 2,
              finetune_with_vocabulary(model, {"--preset", "tiny", "--vocab-file", kVocabFile}))
              .code == 0);
  nlohmann::json config = read_json(model + "/tokenizer_config.json");
  config["do_lower_case"] = false;
  std::ofstream(model + "/tokenizer_config.json") << config;

  const std::string plain = place.path() + "/plain", given = place.path() + "/given";
  REQUIRE(run_ranks_of(BERT_QA, 2, finetune_with_vocabulary(plain, {"--model", model})).code == 0);
  const ProcessResult result = run_ranks_of(
      BERT_QA, 2, finetune_with_vocabulary(given, {"--model", model, "--vocab-file", kVocabFile}));
  REQUIRE(result.code == 0);
  CHECK(losses(given) == losses(plain));
  CHECK(read_json(given + "/tokenizer_config.json")["do_lower_case"] == false);
  CHECK(result.out.find("uncased") == std::string::npos);
}

TEST_CASE("a vocabulary for random weights brings the files beside it, or is uncased and says so") {
  const TemporaryDirectory place;
  const std::string folder = place.path() + "/vocabulary", vocab = folder + "/vocab.txt";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(kVocabFile, vocab);
  const Words arguments = {"--preset", "tiny", "--vocab-file", vocab};
  const std::string uncased = place.path() + "/uncased", cased = place.path() + "/cased";
  const ProcessResult silent =
      run_ranks_of(BERT_QA, 2, finetune_with_vocabulary(uncased, arguments));
  REQUIRE(silent.code == 0);
  CHECK(
      silent.out.find("note: " + folder + " has no tokenizer_config.json: an uncased tokenizer") !=
      std::string::npos);
  CHECK(read_json(uncased + "/tokenizer_config.json")["do_lower_case"] == true);

  std::ofstream(folder + "/tokenizer_config.json") << R"({"do_lower_case": false})";
  REQUIRE(run_ranks_of(BERT_QA, 2, finetune_with_vocabulary(cased, arguments)).code == 0);
  CHECK(read_json(cased + "/tokenizer_config.json")["do_lower_case"] == false);
  CHECK(losses(cased) != losses(uncased));
}
