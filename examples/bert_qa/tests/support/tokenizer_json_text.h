// Contains a small tokenizer.json in the format of Hugging Face's programs. Tests modify it.
#pragma once

#include <string>

namespace bert_qa {

// Returns a tokenizer.json. Its tokenizer is cased, strips accents, and has the tokens [PAD] [UNK]
// [CLS] [SEP] [MASK] bc Bc é e.
inline std::string bert_tokenizer_json() {
  const auto added = [](int id, const char* content) {
    return R"({"id":)" + std::to_string(id) + R"(,"content":")" + content +
           R"(","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,)"
           R"("special":true})";
  };
  const auto special = [](const char* token, int type) {
    return std::string(R"({"SpecialToken":{"id":")") + token + R"(","type_id":)" +
           std::to_string(type) + "}}";
  };
  const auto text = [](const char* id, int type) {
    return std::string(R"({"Sequence":{"id":")") + id + R"(","type_id":)" + std::to_string(type) +
           "}}";
  };
  return R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)" +
         added(0, "[PAD]") + "," + added(1, "[UNK]") + "," + added(2, "[CLS]") + "," +
         added(3, "[SEP]") + "," + added(4, "[MASK]") +
         R"(],"normalizer":{"type":"BertNormalizer","clean_text":true,)"
         R"("handle_chinese_chars":true,"strip_accents":true,"lowercase":false},)"
         R"("pre_tokenizer":{"type":"BertPreTokenizer"},)"
         R"("post_processor":{"type":"TemplateProcessing","single":[],"pair":[)" +
         special("[CLS]", 0) + "," + text("A", 0) + "," + special("[SEP]", 0) + "," + text("B", 1) +
         "," + special("[SEP]", 1) +
         R"(],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},)"
         R"("[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},)"
         R"("decoder":{"type":"WordPiece","prefix":"##","cleanup":true},)"
         R"("model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##",)"
         R"("max_input_chars_per_word":100,"vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,)"
         R"("[MASK]":4,"bc":5,"Bc":6,"é":7,"e":8}}})";
}

}  // namespace bert_qa
