#include "bert_qa/hf/tokenizer_folder.h"

#include <doctest/doctest.h>

#include "bert_qa/tests/support/records.h"
#include "bert_qa/tests/support/tokenizer_json_text.h"
#include "fsdp/error.h"
#include "support/scratch_folder.h"

namespace bert_qa {
namespace {

using Ids = std::vector<int32_t>;

const std::string kVocab = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nbc\nBc\né\ne\n<s>\n";

TEST_CASE("a folder with nothing but a vocabulary is an uncased tokenizer, and says so") {
  const fsdp::ScratchFolder folder;
  folder.write("vocab.txt", kVocab);
  std::vector<std::string> notes;
  const WordPieceTokenizer tokenizer = read_tokenizer(folder.path(), notes);
  CHECK(tokenizer.tokenize("Bc é").ids == Ids{5, 8});
  REQUIRE(notes.size() == 2);
  CHECK(notes[0].ends_with("has no tokenizer_config.json: using an uncased tokenizer"));
  CHECK(notes[1].ends_with("has no special_tokens_map.json: using the standard tokens"));
}

TEST_CASE("what the folder's files say is done, and survives a round trip") {
  const fsdp::ScratchFolder folder;
  folder.write("vocab.txt", kVocab);
  folder.write(
      "tokenizer_config.json",
      R"({"do_lower_case":false,"strip_accents":true,"tokenizer_class":"BertTokenizerFast",)"
      R"("cls_token":{"content":"<s>","lstrip":false},"never_split":null})");
  std::vector<std::string> notes;
  const WordPieceTokenizer first = read_tokenizer(folder.path(), notes);
  const fsdp::ScratchFolder copy;
  copy.write("vocab.txt", format_vocab(first.vocab()));
  copy.write("tokenizer_config.json", format_tokenizer_config(first, 512));
  copy.write("special_tokens_map.json", format_special_tokens_map(first));
  const WordPieceTokenizer second = read_tokenizer(copy.path(), notes);
  CHECK(notes.empty());
  for (const WordPieceTokenizer* tokenizer : {&first, &second}) {
    CHECK(tokenizer->tokenize("Bc é bc<s>").ids == Ids{6, 8, 5, 9});
    CHECK(tokenizer->vocab().cls_id() == 9);
  }
  CHECK(fsdp::read_text(copy / "vocab.txt") == kVocab);
}

TEST_CASE("a vocabulary from elsewhere is used as the folder's files say") {
  const fsdp::ScratchFolder folder, elsewhere;
  folder.write("vocab.txt", "[PAD]\n");  // is not read
  folder.write("tokenizer_config.json", R"({"do_lower_case":false,"cls_token":"<s>"})");
  const std::filesystem::path vocab = elsewhere.write("words.txt", kVocab);
  std::vector<std::string> notes;
  const WordPieceTokenizer tokenizer = read_tokenizer(folder.path(), notes, vocab);
  CHECK(notes.empty());
  CHECK(tokenizer.tokenize("Bc bc").ids == Ids{6, 5});
  CHECK(tokenizer.vocab().cls_id() == 9);
  CHECK(has_tokenizer_config(folder.path()));
  CHECK_FALSE(has_tokenizer_config(elsewhere.path()));
}

TEST_CASE("special_tokens_map.json comes before tokenizer_config.json") {
  const fsdp::ScratchFolder folder;
  folder.write("vocab.txt", kVocab);
  folder.write("tokenizer_config.json", R"({"sep_token":"é"})");
  folder.write("special_tokens_map.json", R"({"sep_token":"e"})");
  std::vector<std::string> notes;
  CHECK(read_tokenizer(folder.path(), notes).vocab().sep_id() == 8);
}

std::string tokenizer_refusal(const std::string& config) {
  const fsdp::ScratchFolder folder;
  folder.write("vocab.txt", kVocab);
  folder.write("tokenizer_config.json", config);
  std::vector<std::string> notes;
  try {
    read_tokenizer(folder.path(), notes);
  } catch (const fsdp::Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("tokenizers that are not BERT's, and malformed files, are refused") {
  CHECK(tokenizer_refusal(R"({"tokenizer_class":"RobertaTokenizer"})")
            .starts_with("the tokenizer is a 'RobertaTokenizer'"));
  CHECK(tokenizer_refusal(R"({"do_basic_tokenize":false})")
            .starts_with("do_basic_tokenize is false"));
  CHECK(tokenizer_refusal(R"({"never_split":["x"]})").starts_with("never_split is not empty"));
  CHECK(tokenizer_refusal(R"({"do_lower_case":1})")
            .starts_with("do_lower_case is not true or false"));
  CHECK(tokenizer_refusal(R"({"cls_token":7})").starts_with("cls_token is not a token"));
  CHECK(tokenizer_refusal(R"({"cls_token":"<none>"})")
            .starts_with("the vocabulary has no special token '<none>'"));
  CHECK(tokenizer_refusal("[]").starts_with("the file is not a JSON object"));
  CHECK(tokenizer_refusal("{").starts_with("broken JSON"));
}

std::string with_file_refusal(const std::string& config, const std::string& file) {
  const fsdp::ScratchFolder folder;
  folder.write("tokenizer.json", file);
  folder.write("tokenizer_config.json", config);
  std::vector<std::string> notes;
  try {
    read_tokenizer(folder.path(), notes);
  } catch (const fsdp::Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST_CASE("a folder without vocab.txt is what its tokenizer.json says") {
  const fsdp::ScratchFolder folder;
  folder.write("tokenizer.json", bert_tokenizer_json());
  folder.write("tokenizer_config.json",
               R"({"tokenizer_class":"TokenizersBackend","cls_token":"[CLS]",)"
               R"("model_max_length":1000000000000000019884624838656})");
  std::vector<std::string> notes;
  const WordPieceTokenizer tokenizer = read_tokenizer(folder.path(), notes);
  CHECK(notes.empty());
  CHECK_FALSE(tokenizer.options().do_lower_case);
  CHECK(tokenizer.options().strip_accents == true);
  CHECK(tokenizer.tokenize("Bc é bc[SEP]").ids == Ids{6, 8, 5, 3});
  // If there is a vocab.txt, tokenizer.json is not read, because it may be older.
  folder.write("vocab.txt", kVocab);
  folder.write("tokenizer.json", "not JSON");
  folder.write("tokenizer_config.json", "{}");
  CHECK(read_tokenizer(folder.path(), notes).tokenize("Bc é").ids == Ids{5, 8});
}

TEST_CASE("what two files of a folder say differently is refused with both") {
  const std::string file = bert_tokenizer_json();
  CHECK(with_file_refusal(R"({"do_lower_case":false,"strip_accents":true})", file) == "accepted");
  CHECK(with_file_refusal(R"({"tokenizer_class":"BertTokenizer"})", file) == "accepted");
  CHECK(with_file_refusal(R"({"do_lower_case":true})", file)
            .starts_with("do_lower_case is true, but in tokenizer.json normalizer.lowercase is "
                         "false ("));
  CHECK(
      with_file_refusal(R"({"strip_accents":false})", file)
          .starts_with("strip_accents is false, but in tokenizer.json normalizer.strip_accents is "
                       "true ("));
  CHECK(with_file_refusal(R"({"tokenize_chinese_chars":false})", file)
            .starts_with("tokenize_chinese_chars is false, but in tokenizer.json "
                         "normalizer.handle_chinese_chars is true ("));
  CHECK(with_file_refusal(R"({"tokenizer_class":"RobertaTokenizer"})", file)
            .starts_with("the tokenizer is a 'RobertaTokenizer'"));
  CHECK(with_file_refusal(R"({"cls_token":"e"})", file)
            .starts_with("the added token '[CLS]' with id 2 is not one of the model's 5 special"));
  CHECK(with_file_refusal("{}", "{}").starts_with("version is missing ("));
}

}  // namespace
}  // namespace bert_qa
