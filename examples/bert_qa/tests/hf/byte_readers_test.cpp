// Tests all readers of untrusted files with the same hostile bytes.
#include "bert_qa/tests/support/byte_readers.h"

#include <doctest/doctest.h>

#include <vector>

#include "bert_qa/tests/support/records.h"
#include "bert_qa/tests/support/tokenizer_json_text.h"
#include "support/hostile_bytes.h"

namespace bert_qa {
namespace {

using fsdp::SampledReader;

const std::vector<SampledReader>& sampled_readers() {
  static const std::vector<SampledReader> readers = {
      {byte_reader("config"),
       R"({"model_type":"bert","x":"é","vocab_size":10,"hidden_size":4,"num_hidden_layers":1,)"
       R"("num_attention_heads":2,"intermediate_size":8,"max_position_embeddings":16})"},
      {byte_reader("squad"),
       R"({"data":[{"paragraphs":[{"context":"aé b","qas":[{"id":"1","question":"Q?",)"
       R"("answers":[{"text":"é","answer_start":1}]}]}]}]})"},
      {byte_reader("vocabulary"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##é\nb\n",
       /*line_by_line=*/true},
      {byte_reader("tokenizer_json"), bert_tokenizer_json()},
  };
  return readers;
}

TEST_CASE("The samples are accepted; empty files are refused") {
  for (const SampledReader& each : sampled_readers()) check_sample_and_empty(each);
}

TEST_CASE("Every truncation is read or refused; only line by line it can be sound") {
  for (const SampledReader& each : sampled_readers()) check_truncations(each);
}

TEST_CASE("A NUL, a byte order mark or invalid UTF-8 is refused wherever it stands") {
  for (const SampledReader& each : sampled_readers()) check_foreign_bytes(each);
}

TEST_CASE("Every byte may change: what is made of it is sound, or it is refused") {
  for (const SampledReader& each : sampled_readers()) check_changed_bytes(each);
}

TEST_CASE("Inputs that were once a finding, or nearly, stay what they are") {
  CHECK(fsdp::check_kept_inputs(byte_readers(), record_file("hostile")) > 0);
}

}  // namespace
}  // namespace bert_qa
