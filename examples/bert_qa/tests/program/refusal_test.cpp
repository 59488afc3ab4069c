// Tests input that bert_qa refuses before the first step. Checks the code, that there is one error
// line, and that no file is left.
#include "bert_qa/tests/support/error_texts.h"
#include "program.h"

using namespace fsdp::testing;

namespace {

Words finetune_wrongly(const std::string& output) {
  return {"finetune",     "--preset", "tiny",         "--vocab-file", kVocabFile,
          "--train-file", kTrainFile, "--output-dir", output};
}

void check_refused(const Words& arguments, int code, const std::string& text) {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    CAPTURE(text);
    const ProcessResult result = run_ranks_of(BERT_QA, ranks, arguments);
    INFO(result.out << result.err);
    CHECK(result.code == code);
    // There is one line of the program, then one line of the launcher. The other ranks print
    // nothing.
    const std::string begin = "fsdp: error[" + std::to_string(code) + "] rank 0/";
    const size_t end = result.err.find('\n') + 1;
    const std::string line = result.err.substr(0, end), rest = result.err.substr(end);
    CHECK(line.starts_with(begin));
    CHECK(line.find(text) != std::string::npos);
    CHECK(rest.starts_with(begin));
    CHECK(rest.find("rank 0 ended with code") != std::string::npos);
    CHECK(rest.find('\n') + 1 == rest.size());
    CHECK(result.out.find("step ") == std::string::npos);
  }
}

}  // namespace

TEST_CASE("a wrong command line ends with 64 and the flag") {
  const TemporaryDirectory output;
  check_refused({"finetune", "--typo"}, 64, "--typo");
  check_refused({"finetune", "--train-file", kTrainFile, "--output-dir", output.path()}, 64,
                "--preset NAME");
  check_refused(finetune_wrongly(output.path()) + Words{"--learning-rate", "fast"}, 64,
                "--learning-rate");
  check_refused(finetune_wrongly(output.path()) + Words{"--memory-limit", "16G"}, 64,
                "--memory-limit");
  check_refused({"finetune", "--preset", "huge", "--vocab-file", kVocabFile, "--train-file",
                 kTrainFile, "--output-dir", output.path()},
                64, "choose from tiny, mini");
  check_refused(finetune_wrongly(output.path()) + Words{"--max-seq-length", "1024"}, 64,
                "512 positions");
  check_refused(finetune_wrongly(output.path()) + Words{"--max-shard-size", "1G"}, 64,
                "--max-shard-size cannot be '1G'; hint: use a size like 5GB");
  check_refused({"init", "--preset", "tiny", "--vocab-file", kVocabFile}, 64,
                "add --output-dir DIR");
  check_refused({"predict", "--model", kPretrained, "--output-dir", output.path()}, 64,
                "--validation-file");
}

TEST_CASE("a model folder that is missing or broken ends with its name") {
  const TemporaryDirectory place;
  const auto with_model = [&](const std::string& model) {
    return Words{"finetune",           "--model", model, "--train-file", kTrainFile, "--output-dir",
                 place.path() + "/out"};
  };
  check_refused(with_model(place.path() + "/nowhere"), 74, "/nowhere");
  const std::string broken = place.path() + "/broken";
  std::filesystem::create_directory(broken);
  std::ofstream(broken + "/model.safetensors") << "no tensors here";
  check_refused(with_model(broken), 65, "model.safetensors");
}

TEST_CASE("a head that does not fit the model ends with 65 and the tensor") {
  const TemporaryDirectory output;
  check_refused(finetune_wrongly(output.path()) + Words{"--qa-head", kHeadFile}, 65, "qa_outputs");
}

TEST_CASE("a broken data file ends with 65, file and place") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/train.json";
  std::ofstream(file) << "{\"data\": [{\"paragraphs\": [}";
  check_refused({"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file", file,
                 "--output-dir", place.path() + "/out"},
                65, file);
  std::ofstream(file) << R"({"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "q1",
      "question": "?", "answers": [{"text": "b", "answer_start": 0}]}]}]}]})";
  check_refused({"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file", file,
                 "--output-dir", place.path() + "/out"},
                65, "q1");
}

TEST_CASE("data that is read while the model is built is refused with its place") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/train.json", out = place.path() + "/out/deep";
  const auto refused = [&](const std::string& content, int code, const std::string& text) {
    std::ofstream(file, std::ios::binary) << content;
    check_refused({"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file", file,
                   "--output-dir", out},
                  code, text);
    CHECK(!std::filesystem::exists(place.path() + "/out"));
  };
  refused("", 65, file + ", line 1, byte 0");
  refused("\xef\xbb\xbf{}", 65, "a byte order mark (" + file);
  refused("{\"data\":\n[\xff]}", 65, file + ", line 2, byte 10");
  refused("\x1f\x8b\x08", 65, "the file is a gzip archive, expected JSON (" + file);
  refused("\xff\xfe{", 65, "the file is text in UTF-16, expected JSON (" + file);
  refused("id,question\n1,why?\n", 65, "the file is a CSV table, expected JSON (" + file);
  refused("{\"rows\":[{}]}", 65, "the key 'rows' is unknown, expected 'data' (" + file);
  refused("{\"data\":[]}", 65, kHasNoQuestions + " (" + file);
  check_refused({"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file",
                 place.path() + "/nowhere.json", "--output-dir", out},
                74, "nowhere.json");
  CHECK(!std::filesystem::exists(place.path() + "/out"));
  // A folder that existed before is not removed, even if it is empty.
  std::filesystem::create_directory(place.path() + "/out");
  check_refused({"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file",
                 place.path() + "/nowhere.json", "--output-dir", out},
                74, "nowhere.json");
  CHECK(std::filesystem::is_empty(place.path() + "/out"));
}

TEST_CASE("a vocabulary that is not the model's ends with 65 and both sizes") {
  const TemporaryDirectory place;
  const auto refused = [&](const std::string& vocabulary, const std::string& text) {
    check_refused({"finetune", "--model", kSource / "examples/bert_qa/tests/records/bert_small",
                   "--vocab-file", vocabulary, "--train-file", kTrainFile, "--max-seq-length", "32",
                   "--doc-stride", "8", "--output-dir", place.path() + "/out"},
                  65, text);
  };
  refused(kVocabFile,
          "the vocabulary has 30522 tokens, the model only 96 embeddings (" + kVocabFile + ")");
  std::ofstream(place.path() + "/cut.txt") << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n";
  check_refused(
      {"finetune", "--model", kPretrained, "--vocab-file", place.path() + "/cut.txt",
       "--train-file", kTrainFile, "--output-dir", place.path() + "/out"},
      65, "the vocabulary has 6 tokens, the model 30522 embeddings (" + place.path() + "/cut.txt");
  const std::string file = place.path() + "/vocab.txt";
  std::ofstream(file) << "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n";
  refused(file, "no special token '[MASK]' (" + file + ")");
  std::ofstream(file) << "";
  refused(file, "the vocabulary is empty (" + file + ")");
}

TEST_CASE("a configuration of another size than its weights ends with 65 before it is built") {
  const TemporaryDirectory place;
  const std::filesystem::path record = kSource / "examples/bert_qa/tests/records/bert_small";
  std::filesystem::copy_file(record / "model.safetensors", place.path() + "/model.safetensors");
  nlohmann::json config = read_json(record / "config.json");
  config["vocab_size"] = 1 << 24;  // with the next line, 6 TB of embeddings
  config["hidden_size"] = 3 << 15;
  std::ofstream(place.path() + "/config.json") << config;
  check_refused(
      {"finetune", "--model", place.path(), "--vocab-file", kVocabFile, "--train-file", kTrainFile,
       "--max-seq-length", "32", "--doc-stride", "8", "--output-dir", place.path() + "/out"},
      65, "the configuration requires [");
}

TEST_CASE("an output folder that cannot be written ends with 73 before anything is read") {
  const TemporaryDirectory place;
  std::ofstream(place.path() + "/file") << "not a folder";
  check_refused(finetune_wrongly(place.path() + "/file/out"), 73, place.path() + "/file/out");
  check_refused({"finetune", "--model", place.path() + "/nowhere", "--train-file", kTrainFile,
                 "--output-dir", place.path() + "/file/out"},
                73, "output folder");
}

TEST_CASE("a trace that cannot be written ends with 73 before the first step") {
  const TemporaryDirectory output;
  check_refused(finetune_wrongly(output.path()) + Words{"--trace", "/no/such/folder/trace.json"},
                73, "/no/such/folder/trace.json");
}

TEST_CASE("a model that cannot tell question and context apart ends with 78 before it is built") {
  const TemporaryDirectory place;
  for (const char* file : {"model.safetensors", "config.json"}) {
    std::filesystem::copy_file(kSource / "examples/bert_qa/tests/records/bert_small" / file,
                               place.path() + "/" + file);
  }
  nlohmann::json config = read_json(place.path() + "/config.json");
  config["type_vocab_size"] = 1;
  std::ofstream(place.path() + "/config.json") << config;
  check_refused({"finetune", "--model", place.path(), "--data", "synthetic", "--max-seq-length",
                 "32", "--output-dir", place.path() + "/out"},
                78,
                "type_vocab_size is 1, expected 2: one for the question, one for the context (");
}

TEST_CASE("unanswerable questions need --version-2-with-negative") {
  const TemporaryDirectory place;
  const std::string file = place.path() + "/train.json";
  std::ofstream(file) << R"({"data": [{"paragraphs": [{"context": "a b", "qas": [{"id": "q1",
      "question": "why?", "answers": [], "is_impossible": true}]}]}]})";
  check_refused({"finetune", "--preset", "tiny", "--vocab-file", kVocabFile, "--train-file", file,
                 "--output-dir", place.path() + "/out"},
                64, "--version-2-with-negative");
}
