#include "comm/store/store_keys.h"

#include <algorithm>
#include <charconv>

#include "fsdp/error.h"

namespace fsdp {
namespace {

// A longer wait is not useful, and a deadline must not overflow.
constexpr int64_t kLongestWaitMs = int64_t{1000} * 60 * 60 * 24 * 365;

StoreKeys::Value shared_text(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

// Throws if the request has another number of texts than its kind needs, or a key that is too long.
void require_valid_request(const StoreMessage& request) {
  const auto kind = static_cast<StoreRequest>(request.kind);
  const bool has_value = kind == StoreRequest::kSet || kind == StoreRequest::kSetOnce;
  const bool has_one_key = kind == StoreRequest::kAdd || kind == StoreRequest::kForget ||
                           kind == StoreRequest::kForgetAll;
  const size_t keys = has_value || has_one_key ? 1 : request.texts.size();
  const bool is_valid =
      request.texts.size() == keys + (has_value ? 1 : 0) &&
      std::all_of(request.texts.begin(), request.texts.begin() + static_cast<ptrdiff_t>(keys),
                  [](const std::string& key) { return key.size() <= kMostKeyBytes; });
  if (!is_valid) throw CommError({.what = "an invalid request", .where = "the ranks' store"});
}

}  // namespace

std::optional<StoreKeys::Reply> StoreKeys::serve(uint64_t client, StoreMessage request,
                                                 Clock::time_point now) {
  require_valid_request(request);
  std::vector<std::string>& texts = request.texts;
  switch (static_cast<StoreRequest>(request.kind)) {
    case StoreRequest::kSet:
      put(texts[0], std::move(texts[1]));
      return Reply{};
    case StoreRequest::kSetOnce:
      if (!values_.contains(texts[0])) put(texts[0], std::move(texts[1]));
      return Reply{.texts = {values_.at(texts[0])}};
    case StoreRequest::kAdd:
      return add(texts[0], request.number);
    case StoreRequest::kHave: {
      std::string have;
      for (const std::string& key : texts) have += values_.contains(key) ? '1' : '0';
      return Reply{.texts = {shared_text(std::move(have))}};
    }
    case StoreRequest::kWait:
      return wait(client, std::move(request), now);
    case StoreRequest::kGet:
      return get(texts);
    case StoreRequest::kForget:
      values_.erase(texts[0]);
      return Reply{};
    case StoreRequest::kForgetAll:
      std::erase_if(values_, [&](const auto& each) { return each.first.starts_with(texts[0]); });
      return Reply{};
  }
  throw CommError({.what = "a request of an unknown kind", .where = "the ranks' store"});
}

void StoreKeys::put(const std::string& key, std::string value) {
  values_[key] = shared_text(std::move(value));
  wake(key);
}

StoreKeys::Reply StoreKeys::add(const std::string& key, int64_t summand) {
  int64_t sum = 0;
  if (const auto found = values_.find(key); found != values_.end()) {
    const std::string& text = *found->second;
    const char* const end = text.data() + text.size();
    const auto [read, error] = std::from_chars(text.data(), end, sum);
    if (error != std::errc() || read != end) return {.kind = StoreReply::kNotANumber};
  }
  if (__builtin_add_overflow(sum, summand, &sum)) return {.kind = StoreReply::kNotANumber};
  put(key, std::to_string(sum));
  return {.texts = {values_.at(key)}};
}

StoreKeys::Reply StoreKeys::get(const std::vector<std::string>& keys) const {
  Reply reply;
  reply.texts.reserve(keys.size());
  for (const std::string& key : keys) {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      return {.kind = StoreReply::kMissing, .texts = {shared_text(key)}};
    }
    reply.texts.push_back(found->second);
  }
  return reply;
}

size_t StoreKeys::first_missing(const std::vector<std::string>& keys, size_t from) const {
  while (from < keys.size() && values_.contains(keys[from])) ++from;
  return from;
}

std::optional<StoreKeys::Reply> StoreKeys::wait(uint64_t client, StoreMessage request,
                                                Clock::time_point now) {
  const size_t missing = first_missing(request.texts, 0);
  if (missing == request.texts.size()) return Reply{};
  if (request.number <= 0) return Reply{.kind = StoreReply::kTimeOut};
  if (waits_.contains(client)) {
    throw CommError({.what = "a request during a wait", .where = "the ranks' store"});
  }
  const auto at_most = std::chrono::milliseconds(std::min(request.number, kLongestWaitMs));
  const Clock::time_point deadline = now + at_most;
  waiting_for_[request.texts[missing]].insert(client);
  deadlines_.emplace(deadline, client);
  waits_.emplace(client,
                 Wait{.keys = std::move(request.texts), .at = missing, .deadline = deadline});
  return std::nullopt;
}

void StoreKeys::wake(const std::string& key) {
  const auto found = waiting_for_.find(key);
  if (found == waiting_for_.end()) return;
  const std::set<uint64_t> clients = std::move(found->second);
  waiting_for_.erase(found);
  for (const uint64_t client : clients) {
    Wait& wait = waits_.at(client);
    wait.at = first_missing(wait.keys, wait.at);
    // A key that existed before may have been deleted meanwhile.
    if (wait.at == wait.keys.size()) wait.at = first_missing(wait.keys, 0);
    if (wait.at == wait.keys.size()) {
      end(client, StoreReply::kDone);
    } else {
      waiting_for_[wait.keys[wait.at]].insert(client);
    }
  }
}

void StoreKeys::end(uint64_t client, StoreReply kind) {
  drop(client);
  ended_.push_back({.client = client, .reply = {.kind = kind}});
}

void StoreKeys::drop(uint64_t client) {
  const auto wait = waits_.find(client);
  if (wait == waits_.end()) return;
  const Wait& dropped = wait->second;
  deadlines_.erase({dropped.deadline, client});
  // The wait has all keys, and is listed nowhere, while wake() ends it.
  if (dropped.at < dropped.keys.size()) {
    const auto listed = waiting_for_.find(dropped.keys[dropped.at]);
    if (listed != waiting_for_.end()) {
      listed->second.erase(client);
      if (listed->second.empty()) waiting_for_.erase(listed);
    }
  }
  waits_.erase(wait);
}

std::vector<StoreKeys::EndedWait> StoreKeys::take_ended(Clock::time_point now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    end(deadlines_.begin()->second, StoreReply::kTimeOut);
  }
  return std::exchange(ended_, {});
}

std::optional<StoreKeys::Clock::time_point> StoreKeys::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

}  // namespace fsdp
