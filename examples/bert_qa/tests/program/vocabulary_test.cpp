// Tests --vocab-file together with a model. Text is still normalized as the model's folder defines.
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

// Returns a tokenizer.json in the format of transformers 5. It contains the content of vocab.txt
// and of the two other files.
std::string tokenizer_json_of(const std::string& vocabulary) {
  std::ifstream lines(vocabulary);
  nlohmann::json tokens = nlohmann::json::object(), added = nlohmann::json::array();
  for (std::string token; std::getline(lines, token);) {
    const size_t id = tokens.size();
    tokens[token] = id;
    if (token != "[PAD]" && token != "[UNK]" && token != "[CLS]" && token != "[SEP]" &&
        token != "[MASK]") {
      continue;
    }
    added.push_back({{"id", id},
                     {"content", token},
                     {"special", true},
                     {"normalized", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"single_word", false}});
  }
  const nlohmann::json file = {{"version", "1.0"},
                               {"truncation", nullptr},
                               {"padding", nullptr},
                               {"decoder", nullptr},
                               {"added_tokens", added},
                               {"post_processor", nullptr},
                               {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
                               {"normalizer",
                                {{"type", "BertNormalizer"},
                                 {"clean_text", true},
                                 {"lowercase", true},
                                 {"handle_chinese_chars", true},
                                 {"strip_accents", nullptr}}},
                               {"model",
                                {{"type", "WordPiece"},
                                 {"unk_token", "[UNK]"},
                                 {"vocab", tokens},
                                 {"continuing_subword_prefix", "##"},
                                 {"max_input_chars_per_word", 100}}}};
  return file.dump();
}

TEST_CASE("a folder with tokenizer.json in place of vocab.txt answers the same") {
  const TemporaryDirectory place;
  const std::string model = place.path() + "/model";
  REQUIRE(
      run_ranks_of(BERT_QA, 1,
                   {"init", "--preset", "tiny", "--vocab-file", kVocabFile, "--output-dir", model})
          .code == 0);
  const auto answers = [&](const std::string& output) {
    const ProcessResult result =
        run_ranks_of(BERT_QA, 2,
                     {"predict", "--model", model, "--validation-file", kDevFile,
                      "--max-eval-samples", "4", "--output-dir", output});
    INFO(result.err);
    CHECK(result.code == 0);
    return read_text(output + "/nbest_predictions.json");
  };
  const std::string before = answers(place.path() + "/before");
  for (const char* file : {"/vocab.txt", "/special_tokens_map.json"}) {
    std::filesystem::remove(model + file);
  }
  std::ofstream(model + "/tokenizer.json") << tokenizer_json_of(kVocabFile);
  CHECK(answers(place.path() + "/after") == before);
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
