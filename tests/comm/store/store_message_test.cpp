#include "comm/store/store_message.h"

#include <doctest/doctest.h>

#include "comm/store/store_keys.h"
#include "comm/support/store_reader.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using Texts = std::vector<std::string>;
using Clock = StoreKeys::Clock;

StoreMessage request_of(StoreRequest kind, Texts texts, int64_t number = 0) {
  return {.kind = static_cast<uint32_t>(kind), .number = number, .texts = std::move(texts)};
}

StoreMessage reply_to(StoreKeys& keys, uint64_t client, StoreMessage request) {
  const auto reply = keys.serve(client, std::move(request), Clock::time_point());
  REQUIRE(reply);
  StoreMessage message{.kind = static_cast<uint32_t>(reply->kind)};
  for (const auto& text : reply->texts) message.texts.push_back(*text);
  return message;
}

TEST_CASE("a message is read as it was written, however its bytes arrive") {
  const StoreMessage messages[] = {request_of(StoreRequest::kGet, {}),
                                   request_of(StoreRequest::kSet, {"key", "value"}),
                                   request_of(StoreRequest::kAdd, {""}, -7),
                                   request_of(StoreRequest::kGet, {"", "a", "", "bc", ""})};
  std::string stream;
  for (const StoreMessage& message : messages) stream += encoded(message);
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{24}, stream.size()}) {
    CAPTURE(piece);
    StoreMessageReader reader(kRequestLimits);
    std::string_view rest = stream;
    for (const StoreMessage& message : messages) {
      while (!reader.is_complete()) rest.remove_prefix(reader.add(rest.substr(0, piece)));
      const StoreMessage read = reader.take();
      CHECK(read.kind == message.kind);
      CHECK(read.number == message.number);
      CHECK(read.texts == message.texts);
    }
    CHECK(rest.empty());
  }
}

TEST_CASE("headers beyond the limits are refused before memory is allocated for them") {
  const auto refused = [](StoreHeader header, const std::string& lengths = {}) {
    StoreMessageReader reader(kRequestLimits);
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    CHECK_THROWS_AS(reader.add(bytes + lengths), CommError);
  };
  refused({.kind = 0});
  refused({.kind = kStoreRequests + 1});
  refused({.kind = static_cast<uint32_t>(StoreReply::kDone)});
  refused({.kind = 1, .count = static_cast<uint32_t>(kMostTexts) + 1});
  refused({.kind = 1, .count = 1, .bytes = kRequestLimits.most_bytes + 1});
  refused({.kind = 1, .count = 1, .bytes = ~uint64_t{0}});
  refused({.kind = 1, .count = 0, .bytes = 1});
  refused({.kind = 1, .count = 2, .bytes = 3}, std::string("\1\0\0\0\1\0\0\0", 8));
}

TEST_CASE("hostile bytes are read as a valid message, or refused") {
  const std::string sample = encoded(request_of(StoreRequest::kSet, {"key", "value"})) +
                             encoded(request_of(StoreRequest::kWait, {"key", "no"}, 5)) +
                             encoded(request_of(StoreRequest::kGet, {"key"}));
  CHECK(testing::read_store_stream(sample) == Verdict::kAccepted);
  for (size_t at = 0; at < sample.size(); ++at) {
    CAPTURE(at);
    const std::string cut = sample.substr(0, at);
    CHECK_NOTHROW(testing::read_store_stream(cut));
    for (const int value : {0, 1, 7, 8, 100, 255}) {
      std::string changed = sample;
      changed[at] = static_cast<char>(value);
      CHECK_NOTHROW(testing::read_store_stream(changed));
    }
  }
  CHECK(testing::read_store_stream(std::string(24, '\xff')) == Verdict::kRefused);
}

TEST_CASE("requests with a wrong number of texts are refused") {
  StoreKeys keys;
  for (const StoreRequest kind : {StoreRequest::kSet, StoreRequest::kSetOnce}) {
    for (const Texts& texts : {Texts{}, {"a"}, {"a", "b", "c"}}) {
      CHECK_THROWS_AS(keys.serve(2, request_of(kind, texts), {}), CommError);
    }
  }
  for (const StoreRequest kind : {StoreRequest::kAdd, StoreRequest::kForget}) {
    for (const Texts& texts : {Texts{}, {"a", "b"}}) {
      CHECK_THROWS_AS(keys.serve(2, request_of(kind, texts), {}), CommError);
    }
  }
  CHECK(keys.size() == 0);
}

TEST_CASE("a wait ends with its last key, at its deadline, or with its client") {
  StoreKeys keys;
  const auto start = Clock::time_point(std::chrono::hours(1));
  const auto at = [&](int ms) { return start + std::chrono::milliseconds(ms); };
  const auto ended = [&](int ms) {
    std::vector<std::pair<uint64_t, StoreReply>> all;
    for (const auto& each : keys.take_ended(at(ms))) {
      all.emplace_back(each.client, each.reply.kind);
    }
    return all;
  };
  using Ended = std::vector<std::pair<uint64_t, StoreReply>>;
  const auto wait = [&](uint64_t client, Texts texts, int64_t ms) {
    return keys.serve(client, request_of(StoreRequest::kWait, std::move(texts), ms), at(0));
  };
  CHECK_FALSE(keys.next_deadline());
  CHECK_FALSE(wait(2, {"a", "b"}, 100));
  CHECK_FALSE(wait(3, {"b"}, 50));
  CHECK_FALSE(wait(4, {"b", "c"}, 10));
  CHECK_FALSE(wait(5, {"c", "a"}, 1'000'000'000'000'000));
  CHECK(keys.next_deadline() == at(10));
  CHECK_THROWS_AS(wait(5, {"d"}, 1), CommError);
  reply_to(keys, 6, request_of(StoreRequest::kSet, {"b", ""}));
  CHECK(ended(0) == Ended{{3, StoreReply::kDone}});
  CHECK(ended(10) == Ended{{4, StoreReply::kTimeOut}});
  keys.drop(5);
  // Key b is deleted before key a exists, so the wait for both goes on.
  reply_to(keys, 6, request_of(StoreRequest::kForget, {"b"}));
  reply_to(keys, 6, request_of(StoreRequest::kSet, {"a", ""}));
  CHECK(ended(20).empty());
  CHECK(keys.next_deadline() == at(100));
  reply_to(keys, 6, request_of(StoreRequest::kAdd, {"b"}, 1));
  CHECK(ended(20) == Ended{{2, StoreReply::kDone}});
  CHECK_FALSE(keys.next_deadline());
}

}  // namespace
}  // namespace fsdp
