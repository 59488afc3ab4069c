#include "comm/support/store_reader.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "comm/store/store_connection.h"
#include "comm/store/store_keys.h"
#include "fsdp/error.h"

namespace fsdp::testing {
namespace {

// A second, simpler store, with whose values replies are compared.
using Twin = std::map<std::string, std::string>;

void check_reply(const Twin& twin, const StoreMessage& request, const StoreMessage& reply) {
  const auto kind = static_cast<StoreReply>(reply.kind);
  const auto& texts = request.texts;
  switch (static_cast<StoreRequest>(request.kind)) {
    case StoreRequest::kSet:
    case StoreRequest::kForget:
    case StoreRequest::kForgetAll:
      return demand(kind == StoreReply::kDone && reply.texts.empty(), "a reply with a value");
    case StoreRequest::kSetOnce:
    case StoreRequest::kAdd:
      if (kind == StoreReply::kNotANumber) return;
      return demand(reply.texts.size() == 1 && reply.texts[0] == twin.at(texts[0]),
                    "another value than the key's");
    case StoreRequest::kHave:
      for (size_t i = 0; i < texts.size(); ++i) {
        demand(reply.texts.at(0).at(i) == (twin.contains(texts[i]) ? '1' : '0'), "a wrong have");
      }
      return;
    case StoreRequest::kWait:
      return demand((kind == StoreReply::kDone) ==
                        std::ranges::all_of(texts, [&](auto& key) { return twin.contains(key); }),
                    "a wrong end of a wait");
    case StoreRequest::kGet:
      if (kind == StoreReply::kMissing) {
        return demand(!twin.contains(reply.texts.at(0)), "a key that exists is missing");
      }
      demand(reply.texts.size() == texts.size(), "a number of values");
      for (size_t i = 0; i < texts.size(); ++i) {
        demand(reply.texts[i] == twin.at(texts[i]), "another value");
      }
  }
}

// Does to the twin what the request does to the store. The reply has the sum of an addition.
void apply(Twin& twin, const StoreMessage& request, const StoreMessage& reply) {
  switch (static_cast<StoreRequest>(request.kind)) {
    case StoreRequest::kSet:
      twin[request.texts[0]] = request.texts[1];
      break;
    case StoreRequest::kSetOnce:
      twin.emplace(request.texts[0], request.texts[1]);
      break;
    case StoreRequest::kAdd:
      if (!reply.texts.empty()) twin[request.texts[0]] = reply.texts[0];
      break;
    case StoreRequest::kForget:
      twin.erase(request.texts[0]);
      break;
    case StoreRequest::kForgetAll:
      std::erase_if(twin, [&](auto& each) { return each.first.starts_with(request.texts[0]); });
      break;
    case StoreRequest::kHave:
    case StoreRequest::kWait:
    case StoreRequest::kGet:
      break;
  }
}

StoreMessage message_of(const StoreKeys::Reply& reply) {
  StoreMessage message{.kind = static_cast<uint32_t>(reply.kind)};
  for (const StoreKeys::Value& text : reply.texts) message.texts.push_back(*text);
  StoreMessageReader reader(kReplyLimits);
  const std::string bytes = encoded(message);
  demand(reader.add(bytes) == bytes.size() && reader.is_complete(), "a reply that ends early");
  return reader.take();
}

// The bytes arrive in pieces whose sizes depend on the bytes.
Verdict read_stranger(std::string_view bytes) {
  std::array<int, 2> sockets{};
  demand(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sockets.data()) == 0,
         "no sockets");
  const Descriptor other(sockets[1]);
  StoreConnection connection{Descriptor(sockets[0])};
  const std::string key(32, 'k');
  size_t piece = 1;
  while (!bytes.empty()) {
    const size_t now = std::min(piece, bytes.size());
    if (connection.process(bytes.substr(0, now), key) == StoreConnection::Result::kClosed) {
      return Verdict::kRefused;
    }
    bytes.remove_prefix(now);
    piece = 1 + piece * 5 % 97;
    demand(connection.stage() != StoreConnection::Stage::kAdmitted, "a stranger is admitted");
  }
  return Verdict::kAccepted;
}

constexpr ByteReader kStoreReaders[] = {{"store", read_store_stream, 64},
                                        {"stranger", read_stranger, 1}};

}  // namespace

Verdict read_store_stream(std::string_view bytes) {
  StoreKeys keys;
  Twin twin;
  StoreMessageReader reader(kRequestLimits);
  uint64_t client = 2;
  const StoreKeys::Clock::time_point start{};
  try {
    while (!bytes.empty()) {
      bytes.remove_prefix(reader.add(bytes));
      if (!reader.is_complete()) break;
      const StoreMessage request = reader.take();
      // Each request is of another client, because a client that waits may not ask.
      const auto reply = keys.serve(++client, request, start);
      if (!reply) continue;
      const StoreMessage read = message_of(*reply);
      apply(twin, request, read);
      check_reply(twin, request, read);
      for (const auto& ended : keys.take_ended(start)) {
        demand(ended.reply.kind == StoreReply::kDone, "a wait that ends before its deadline");
      }
    }
  } catch (const CommError&) {
    return Verdict::kRefused;
  }
  demand(keys.size() == twin.size(), "another number of keys");
  for (uint64_t each = 3; each <= client; each += 2) keys.drop(each);
  keys.take_ended(StoreKeys::Clock::time_point::max());
  demand(!keys.next_deadline(), "a wait without an end");
  return Verdict::kAccepted;
}

const ByteReader& byte_reader(std::string_view name) {
  return name == kStoreReaders[0].name ? kStoreReaders[0] : kStoreReaders[1];
}

}  // namespace fsdp::testing
