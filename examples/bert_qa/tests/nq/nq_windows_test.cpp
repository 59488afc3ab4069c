// Compares windows with those of the baseline's own code, which record_nq_windows.py writes.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "bert_qa/nq/nq_features.h"
#include "bert_qa/nq/nq_reader.h"
#include "bert_qa/nq/nq_vocab.h"
#include "bert_qa/tests/support/nq_cases.h"
#include "bert_qa/tests/support/qa_cases.h"
#include "bert_qa/tests/support/records.h"

namespace bert_qa {
namespace {

using nlohmann::json;

uint64_t hash_of(std::span<const int64_t> values, uint64_t hash = kHashStart) {
  for (const int64_t value : values) hash = add_to_hash(hash, value);
  return hash;
}

// Compares the windows of one record, with and without labels.
void compare(const NqRecord& record, const json& windows, NqFeatureOptions options) {
  options.for_training = true;
  options.include_unknowns = 1;
  NqFeatures training(nq_tokenizer(), options);
  training.add(record);
  options.for_training = false;
  NqFeatures asked(nq_tokenizer(), options);
  asked.add(record);
  REQUIRE(training.window_count() == std::ssize(windows));
  REQUIRE(asked.window_count() == std::ssize(windows));
  for (int64_t i = 0; i < std::ssize(windows); ++i) {
    CAPTURE(i);
    const json& theirs = windows[i];
    const std::vector<int64_t> one = {i};
    const QaBatch batch = make_batch(training, one);
    CHECK(batch.length == theirs[0]);
    CHECK(batch.start_positions[0] == theirs[1]);
    CHECK(batch.end_positions[0] == theirs[2]);
    CHECK(batch.answer_types[0] == theirs[3]);
    CHECK(hash_of(batch.token_type_ids, hash_of(batch.input_ids)) == theirs[4].get<uint64_t>());
    CHECK(make_batch(asked, one).input_ids == batch.input_ids);
    std::vector<int64_t> words(batch.length);
    std::iota(words.begin(), words.end(), 0);
    std::ranges::transform(words, words.begin(), [&](int64_t at) { return asked.word_at(i, at); });
    CHECK(hash_of(words) == theirs[5].get<uint64_t>());
  }
}

TEST_CASE("windows and labels of Natural Questions equal those of the baseline") {
  const json recorded = json::parse(fsdp::read_text(record_file("nq_windows.json")));
  const std::vector<NqRecord> records = recorded_nq_records();
  for (const json& each : recorded) {
    const json& settings = each.at("settings");
    CAPTURE(settings.dump());
    REQUIRE(each.at("records").size() == records.size());
    int64_t types[kAnswerTypes] = {};
    for (size_t i = 0; i < records.size(); ++i) {
      CAPTURE(records[i].question);
      const json& row = each.at("records")[i];
      if (row.contains("nested")) continue;
      for (const json& window : row.at("windows")) ++types[window[3].get<int64_t>()];
      compare(records[i], row.at("windows"),
              {.max_seq_length = settings.at("max_seq_length"),
               .doc_stride = settings.at("doc_stride"),
               .max_query_length = settings.at("max_query_length")});
    }
    CHECK(std::ranges::all_of(types, [](int64_t count) { return count > 0; }));
  }
}

}  // namespace
}  // namespace bert_qa
