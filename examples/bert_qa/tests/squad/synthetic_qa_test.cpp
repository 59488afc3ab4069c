#include "bert_qa/squad/synthetic_qa.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>

#include "fsdp/error.h"

namespace bert_qa {
namespace {

std::vector<int64_t> all_windows(const SyntheticQa& data) {
  std::vector<int64_t> windows(data.window_count());
  std::iota(windows.begin(), windows.end(), 0);
  return windows;
}

TEST_CASE("synthetic windows have the form and the label ranges of real ones") {
  const SyntheticOptions options{.window_count = 500, .min_length = 16, .max_length = 48};
  const SyntheticQa data(options);
  const QaBatch batch = data.make_batch(0, all_windows(data), 64);
  CHECK(batch.rows == 500);
  CHECK(batch.length == 64);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t* ids = &batch.input_ids[row * 64];
    const int64_t* types = &batch.token_type_ids[row * 64];
    const int64_t* mask = &batch.attention_mask[row * 64];
    const int64_t length = std::accumulate(mask, mask + 64, int64_t{0});
    CHECK(length == data.window_length(0, row));
    CHECK((length >= 16 && length <= 48));
    CHECK(ids[0] == 101);
    CHECK(ids[length - 1] == 102);
    CHECK(std::count(ids, ids + length, 102) == 2);
    CHECK(std::count(ids, ids + 64, 0) == 64 - length);
    CHECK(*std::max_element(ids, ids + 64) < options.vocab_size);
    const int64_t context = std::find(types, types + 64, 1) - types;
    CHECK(ids[context - 1] == 102);
    CHECK(context >= 3);
    CHECK(batch.start_positions[row] >= context);
    CHECK(batch.end_positions[row] > batch.start_positions[row]);
    CHECK(batch.end_positions[row] <= batch.start_positions[row] + 4);
    CHECK(batch.end_positions[row] < length - 1);
  }
}

TEST_CASE("a window is a function of seed, epoch and index") {
  const SyntheticQa data({.max_length = 64});
  const SyntheticQa other({.seed = 43, .max_length = 64});
  const std::vector<int64_t> pair = {3, 900};
  const std::vector<int64_t> one = {900};
  const QaBatch both = data.make_batch(1, pair, 64);
  const QaBatch alone = data.make_batch(1, one, 64);
  CHECK(std::equal(alone.input_ids.begin(), alone.input_ids.end(), both.input_ids.begin() + 64));
  CHECK(alone.start_positions[0] == both.start_positions[1]);
  CHECK(data.make_batch(2, one, 64).input_ids != alone.input_ids);
  CHECK(other.make_batch(1, one, 64).input_ids != alone.input_ids);
}

TEST_CASE(
    "with answer types, windows of type 0 have no answer, and the learnable word tells the type") {
  const SyntheticQa data({.max_length = 64, .learnable = true, .answer_types = 5});
  const QaBatch batch = data.make_batch(0, all_windows(data), 64);
  int64_t counts[5] = {};
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t* ids = &batch.input_ids[row * 64];
    const int64_t type = batch.answer_types[row];
    ++counts[type];
    CHECK(ids[1] == 1001 + type);
    const bool has_answer = type != 0;
    CHECK(std::count(ids, ids + 64, 999) == has_answer);
    CHECK(std::count(ids, ids + 64, 1000) == has_answer);
    CHECK(batch.start_positions[row] == (has_answer ? std::find(ids, ids + 64, 999) - ids : 0));
    CHECK(batch.end_positions[row] == (has_answer ? std::find(ids, ids + 64, 1000) - ids : 0));
  }
  for (const int64_t count : counts) CHECK(count > 0);
  CHECK(SyntheticQa({}).make_batch(0, std::vector<int64_t>{0}).answer_types.empty());
}

TEST_CASE("the learnable variant marks the ends of the answer and nothing else") {
  const SyntheticQa data({.max_length = 64, .learnable = true});
  const QaBatch batch = data.make_batch(0, all_windows(data), 64);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t* ids = &batch.input_ids[row * 64];
    CHECK(std::count(ids, ids + 64, 999) == 1);
    CHECK(std::count(ids, ids + 64, 1000) == 1);
    CHECK(std::find(ids, ids + 64, 999) - ids == batch.start_positions[row]);
    CHECK(std::find(ids, ids + 64, 1000) - ids == batch.end_positions[row]);
  }
}

TEST_CASE("a batch is padded to its longest window, or to the length asked for") {
  const SyntheticQa data({.min_length = 20, .max_length = 30});
  const std::vector<int64_t> windows = {0, 1, 2, 3};
  int64_t longest = 0;
  for (const int64_t w : windows) longest = std::max(longest, data.window_length(0, w));
  CHECK(data.make_batch(0, windows).length == longest);
  CHECK(data.make_batch(0, {}).rows == 0);
  CHECK_THROWS_AS(data.make_batch(0, windows, 19), fsdp::InvalidArgument);
}

TEST_CASE("synthetic data that cannot be made is refused") {
  CHECK_THROWS_WITH_AS(SyntheticQa({.min_length = 8}),
                       "synthetic windows have 8 to 384 tokens; hint: use at least 16 tokens",
                       fsdp::InvalidArgument);
  CHECK_THROWS_WITH_AS(SyntheticQa({.vocab_size = 1000}),
                       "the highest special id is 102, first_word_id is 999 and vocab_size is "
                       "1000, which do not fit together; hint: use special ids from 0 to "
                       "first_word_id - 1, and a vocab_size of at least first_word_id + 16",
                       fsdp::InvalidArgument);
  CHECK_THROWS_AS(SyntheticQa({.window_count = 0}), fsdp::InvalidArgument);
}

}  // namespace
}  // namespace bert_qa
