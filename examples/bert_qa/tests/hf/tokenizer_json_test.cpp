#include "bert_qa/hf/tokenizer_json.h"

#include <doctest/doctest.h>

#include "bert_qa/tests/support/tokenizer_json_text.h"
#include "fsdp/error.h"

namespace bert_qa {
namespace {

// Returns the sample with `to` in place of `from`. Requires: the sample contains `from`.
std::string with_change(const std::string& from, const std::string& to) {
  std::string text = bert_tokenizer_json();
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("the vocabulary is in the order of ids, whatever that of the file") {
  const TokenizerFile file =
      parse_tokenizer_json(with_change(R"("bc":5,"Bc":6)", R"("Bc":6,"bc":5)"), "f");
  CHECK(file.vocab.size() == 9);
  CHECK(file.vocab.token(5) == "bc");
  CHECK(file.vocab.token(6) == "Bc");
  CHECK(file.vocab.mask_id() == 4);
}

TEST_CASE("what the normalizer says is done") {
  const TokenizerFile file = parse_tokenizer_json(bert_tokenizer_json(), "f");
  CHECK_FALSE(file.options.do_lower_case);
  CHECK(file.options.strip_accents == true);
  CHECK(file.options.tokenize_chinese_chars);
  const TokenizerFile other = parse_tokenizer_json(
      with_change(R"("handle_chinese_chars":true,"strip_accents":true,"lowercase":false)",
                  R"("handle_chinese_chars":false,"strip_accents":null,"lowercase":true)"),
      "f");
  CHECK(other.options.do_lower_case);
  CHECK(other.options.strip_accents == std::nullopt);
  CHECK_FALSE(other.options.tokenize_chinese_chars);
}

TEST_CASE("what decides nothing here is not looked at, and both forms of pairs are known") {
  const std::string text = bert_tokenizer_json();
  const size_t begin = text.find(R"({"type":"TemplateProcessing")"),
               end = text.find(R"(,"decoder")");
  for (const char* processor :
       {"null", R"({"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]})"}) {
    parse_tokenizer_json(std::string(text).replace(begin, end - begin, processor), "f");
  }
  parse_tokenizer_json(with_change(R"("truncation":null)", R"("truncation":{"max_length":8})"),
                       "f");
  parse_tokenizer_json(with_change(R"("decoder":{"type":"WordPiece","prefix":"##","cleanup":true})",
                                   R"("decoder":null)"),
                       "f");
}

TEST_CASE("a tokenizer that is not BERT's is refused by the part that differs") {
  const auto refusal = [](const std::string& from, const std::string& to) -> std::string {
    try {
      parse_tokenizer_json(with_change(from, to), "f");
    } catch (const fsdp::InvalidArgument& error) {
      CHECK(error.code() == fsdp::ExitCode::kConfiguration);
      CHECK(error.text().where == "f");
      return error.text().what;
    }
    return "accepted";
  };
  CHECK(refusal(R"("version":"1.0")", R"("version":"2.0")") == "version is '2.0', not '1.0'");
  CHECK(refusal(R"("truncation":null)", R"("sparse":null)") == "the key 'sparse' is unknown");
  CHECK(refusal("BertNormalizer", "Sequence") ==
        "the normalizer is a 'Sequence', not a BertNormalizer");
  CHECK(refusal(R"("clean_text":true)", R"("clean_text":false)") ==
        "normalizer.clean_text is false");
  CHECK(refusal(R"("clean_text":true)", R"("clean_text":true,"nfc":true)") ==
        "the key normalizer.'nfc' is unknown");
  CHECK(refusal("BertPreTokenizer", "ByteLevel") ==
        "the pre_tokenizer is a 'ByteLevel', not a BertPreTokenizer");
  CHECK(refusal(R"("BertPreTokenizer")", R"("BertPreTokenizer","x":1)") ==
        "the key pre_tokenizer.'x' is unknown");
  CHECK(refusal(R"("model":{"type":"WordPiece")", R"("model":{"type":"BPE")") ==
        "the model is a 'BPE', not a WordPiece");
  CHECK(refusal(R"("unk_token":"[UNK]")", R"("unk_token":"e")") ==
        "model.unk_token is 'e', not '[UNK]'");
  CHECK(refusal(R"("continuing_subword_prefix":"##")", R"("continuing_subword_prefix":"@")") ==
        "model.continuing_subword_prefix is '@', not '##'");
  CHECK(refusal(R"("max_input_chars_per_word":100)", R"("max_input_chars_per_word":200)") ==
        "model.max_input_chars_per_word is 200, not 100");
  CHECK(refusal(R"("max_input_chars_per_word":100)", R"("max_input_chars_per_word":100,"x":0)") ==
        "the key model.'x' is unknown");
  CHECK(refusal(R"("id":4,"content":"[MASK]")", R"("id":8,"content":"e")") ==
        "the added token 'e' with id 8 is not one of the model's 5 special tokens, or is repeated");
  CHECK(refusal(R"("id":4,"content":"[MASK]")", R"("id":3,"content":"[MASK]")") ==
        "the added token '[MASK]' with id 3 is not one of the model's 5 special tokens, or is "
        "repeated");
  CHECK(refusal(R"("lstrip":false)", R"("lstrip":true)") == "added token 0.lstrip is true");
  CHECK(refusal(R"("normalized":false)", R"("normalized":true)") ==
        "added token 0.normalized is true");
  CHECK(refusal(R"({"id":0,"content":"[PAD]","single_word":false,"lstrip":false,"rstrip":false,)"
                R"("normalized":false,"special":true},)",
                "") == "added_tokens lacks the special token '[PAD]'");
  CHECK(refusal("TemplateProcessing", "RobertaProcessing") ==
        "the post_processor is a 'RobertaProcessing', not a TemplateProcessing");
  const std::string pairs = "post_processor does not turn a pair into [CLS] A [SEP] B [SEP]";
  CHECK(refusal(R"({"Sequence":{"id":"B","type_id":1}})",
                R"({"Sequence":{"id":"B","type_id":0}})") == pairs);
  CHECK(refusal(R"("ids":[3])", R"("ids":[1])") == pairs);
}

TEST_CASE("a malformed tokenizer.json is refused with what is wrong") {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      parse_tokenizer_json(text, "f");
    } catch (const fsdp::IoError& error) {
      CHECK(error.code() == fsdp::ExitCode::kCorruptData);
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal("[]") == "the file is not an object (f)");
  CHECK(refusal(R"({"version":1})") == "version is not a string (f)");
  CHECK(refusal(with_change(R"("lowercase":false)", R"("lowercase":0)")) ==
        "normalizer.lowercase is not true or false (f)");
  CHECK(refusal(with_change(R"(,"lowercase":false)", "")) == "normalizer.lowercase is missing (f)");
  CHECK(refusal(with_change(R"("added_tokens":[)", R"("added_tokens":[7,)")) ==
        "added token 0 is not an object (f)");
  CHECK(refusal(with_change(R"("bc":5)", R"("bc":9)")) ==
        "the id of token 'bc' is not a number from 0 to 8 (f)");
  CHECK(refusal(with_change(R"("bc":5)", R"("bc":-5)")) ==
        "the id of token 'bc' is not a number from 0 to 8 (f)");
  CHECK(refusal(with_change(R"("bc":5)", R"("bc":6)")) ==
        "tokens 'Bc' and 'bc' have the same id 6 (f)");
  CHECK(refusal(with_change(R"("bc":5)", R"("bc":5,"bc":5)"))
            .starts_with("the key 'bc' appears twice"));
  const std::string unfit = "of model.vocab is empty, or has a line break or NUL";
  for (const char* token : {R"("":5)", R"("b\nc":5)", R"("b\r":5)", R"("\u0000":5)"}) {
    CAPTURE(token);
    CHECK(refusal(with_change(R"("bc":5)", token)).find(unfit) != std::string::npos);
  }
  // A byte order mark is an ordinary character, except at the position where a vocab.txt would
  // begin.
  CHECK(refusal(with_change(R"("bc":5)", R"("\ufeffb":5)")) == "accepted");
  CHECK(refusal(with_change(R"("[PAD]":0)", R"("\ufeff":0)")) ==
        "the token with id 0 begins with a byte order mark (f)");
  CHECK(refusal(with_change(R"("[MASK]":4)", R"("[mask]":4)"))
            .starts_with("the vocabulary has no special token '[MASK]' (f)"));
  CHECK(refusal(with_change(R"("version":"1.0")", R"("version":"1.0)")).starts_with("broken JSON"));
}

TEST_CASE("a vocabulary of more tokens than other documents may have values is read") {
  constexpr int kMore = 200'000;
  std::string more;
  for (int id = 9; id < kMore; ++id) {
    more += ",\"##" + std::to_string(id) + "\":" + std::to_string(id);
  }
  CHECK(parse_tokenizer_json(with_change(R"("e":8)", R"("e":8)" + more), "f").vocab.size() ==
        kMore);
}

}  // namespace
}  // namespace bert_qa
