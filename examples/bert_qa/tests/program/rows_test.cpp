// Tests imperfect data sets: questions without answers, bad rows, long questions, and texts that
// contain control characters.
#include "bert_qa/tests/support/error_texts.h"
#include "program.h"

using namespace fsdp::testing;

namespace {

const std::string kContext = "the quick brown fox jumps over the lazy dog near the river bank";

std::string row(const std::string& id, const std::string& question, const std::string& answers) {
  std::string text =
      nlohmann::json{{"id", id}, {"question", question}, {"context", kContext}}.dump();
  text.pop_back();
  return text + answers + "}\n";
}

std::string answered(const std::string& text, int start) {
  return R"(,"answers":{"text":[")" + text + R"("],"answer_start":[)" + std::to_string(start) +
         "]}";
}

Words with_model(const std::string& command, const std::string& output) {
  return {command, "--max-seq-length", "32", "--doc-stride", "8", "--output-dir", output};
}

}  // namespace

TEST_CASE("data as people have them: what cannot be used is left out by name, or only asked") {
  const TemporaryDirectory place;
  const std::string model = place.path() + "/model", file = place.path() + "/rows.jsonl";
  std::string long_question = "why";
  for (int i = 0; i < 30; ++i) long_question += " very";
  std::ofstream(file) << row("good", "what jumps?", answered("fox", 16))
                      << row("minus", "who?", answered("cat", -1))
                      << row("long", long_question, answered("dog", 40))
                      << row("open",
                             "where?\x1b[31m\xc2\x9b"
                             "2J",
                             answered("river", 53));
  const Words train =
      Words{"--preset",    "tiny", "--vocab-file",          kVocabFile, "--train-file", file,
            "--max-steps", "1",    "--overwrite-output-dir"};
  const Words finetune = with_model("finetune", model) + train;
  const ProcessResult refused = run_ranks_of(BERT_QA, 2, finetune);
  CHECK(refused.code == 65);
  CHECK(refused.err.find(kAtMinusOne + " (" + file + ", question 'minus')") != std::string::npos);
  const ProcessResult trained =
      run_ranks_of(BERT_QA, 2, finetune + Words{"--skip-bad-rows", "--max-train-samples", "9"});
  INFO(trained.out << trained.err);
  CHECK(trained.code == 0);
  CHECK(trained.out.find(": row minus is left out: answer_start is -1") != std::string::npos);
  CHECK(trained.out.find("note: " + file + ": 2 of 4 rows left out\n") != std::string::npos);
  CHECK(trained.out.find(": row long is left out: a question of 31 tokens") != std::string::npos);

  // These questions have no answers, which is enough for predict.
  const std::string asked = place.path() + "/asked.jsonl";
  std::ofstream(asked) << row("a", "what jumps?", "") << row("long", long_question, "")
                       << row("b",
                              "where?\x1b[31m\xc2\x9b"
                              "2J",
                              R"(,"answers":[])");
  const Words ask = with_model("predict", place.path() + "/answers") +
                    Words{"--model", model, "--validation-file", asked};
  CHECK(run_ranks_of(BERT_QA, 1, ask).code == 78);  // because of the long question
  const ProcessResult answers = run_ranks_of(BERT_QA, 2, ask + Words{"--skip-bad-rows"});
  INFO(answers.out << answers.err);
  CHECK(answers.code == 0);
  const nlohmann::json predictions = read_json(place.path() + "/answers/predictions.json");
  CHECK(predictions.size() == 2);
  CHECK(predictions.contains("a"));
  CHECK(answers.out.find("Q: where?\\x1b[31m\\xc2\\x9b2J\n") != std::string::npos);
  CHECK(answers.out.find('\x1b') == std::string::npos);
  CHECK(answers.out.find("\xc2\x9b") == std::string::npos);
  // evaluate needs answers.
  const ProcessResult compared =
      run_ranks_of(BERT_QA, 1,
                   Words{"evaluate", "--model", model, "--validation-file", asked,
                         "--max-seq-length", "64", "--doc-stride", "8"});
  CHECK(compared.code == 65);
  CHECK(compared.err.find("the key 'answers' is missing (" + asked + ", question 'a')") !=
        std::string::npos);
  const std::string none = place.path() + "/none.jsonl";
  std::ofstream(none) << row("a", "what jumps?", R"(,"answers":[])");
  const ProcessResult without =
      run_ranks_of(BERT_QA, 1,
                   Words{"evaluate", "--model", model, "--validation-file", none,
                         "--max-seq-length", "64", "--doc-stride", "8"});
  CHECK(without.code == 64);
  CHECK(without.err.find(
            "1 questions of " + none +
            " have no answer; the first is 'a'; hint: add --version-2-with-negative if") !=
        std::string::npos);
}

TEST_CASE("names of files reach a terminal without what it would obey") {
  const TemporaryDirectory place;
  const std::string folder = place.path() + "/a\x1b[31m\nb";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(kVocabFile, folder + "/vocab.txt");
  const ProcessResult result =
      run_ranks_of(BERT_QA, 1,
                   {"init", "--preset", "tiny", "--vocab-file", folder + "/vocab.txt",
                    "--output-dir", folder + "/out"});
  CHECK(result.code == 0);
  CHECK((result.out + result.err).find('\x1b') == std::string::npos);
  CHECK(result.out.find("note: " + place.path() +
                        "/a\\x1b[31m\\x0ab has no tokenizer_config.json") != std::string::npos);
}
