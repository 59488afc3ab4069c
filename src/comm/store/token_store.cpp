#include "comm/store/token_store.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "comm/job/collective_failures.h"
#include "comm/store/reach.h"
#include "comm/store/store_text.h"
#include "comm/store/tcp_socket.h"
#include "fsdp/error.h"
#include "fsdp/program_text.h"

namespace fsdp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr auto kFirstPause = milliseconds(5), kLastPause = milliseconds(250);
// One attempt to connect and to be admitted, so that a lost packet or a dead address does not use
// up the whole time-out.
constexpr auto kAttempt = milliseconds(5000);
constexpr auto kLookForStore = milliseconds(1000);
constexpr size_t kTogetherBytes = size_t{64} << 10;  // smaller texts are sent in one call

enum class Admission : uint8_t { kAdmitted, kNoAnswer, kRefused, kFalseServer };

template <class Message>
bool send_message(const Descriptor& socket, const Message& message, milliseconds at_most) {
  return send_all(socket, {reinterpret_cast<const char*>(&message), sizeof message}, at_most) == 0;
}

template <class Message>
bool receive_message(const Descriptor& socket, Message& message, milliseconds at_most) {
  return receive_all(socket, {reinterpret_cast<char*>(&message), sizeof message}, at_most) == 0;
}

// Shows that this process has the token, and checks that the server has it.
Admission seek_admission(const Descriptor& socket, const std::string& key, milliseconds at_most) {
  StoreHello hello{.nonce = new_nonce()};
  hello.proof = proof_of_hello(key, hello.nonce);
  StoreChallenge challenge;
  if (!send_message(socket, hello, at_most) || !receive_message(socket, challenge, at_most) ||
      challenge.magic != kStoreMagic) {
    return Admission::kNoAnswer;
  }
  if (challenge.verdict == StoreVerdict::kRefused) return Admission::kRefused;
  const Sha256 expected = proof_of_server(key, hello.nonce, challenge.nonce);
  if (!equal_in_constant_time(challenge.proof, expected)) return Admission::kFalseServer;
  const StoreAnswer answer{.proof = proof_of_client(key, hello.nonce, challenge.nonce)};
  StoreAdmission admission;
  const bool is_admitted = send_message(socket, answer, at_most) &&
                           receive_message(socket, admission, at_most) &&
                           admission.magic == kStoreMagic;
  return is_admitted ? Admission::kAdmitted : Admission::kNoAnswer;
}

[[noreturn]] void refuse_admission(const TokenStore::Parts& parts, const TcpAddress& address,
                                   Admission admission) {
  if (admission == Admission::kFalseServer) {
    throw InvalidArgument(
        {.what = fmt::format("the process that listens at {} does not know this rank's token",
                             address.text()),
         .where = parts.token.source,
         .hint = "set another MASTER_PORT on all ranks: another program may use the port"});
  }
  throw InvalidArgument(
      {.what =
           fmt::format("the ranks' store at {} does not accept this rank's token", address.text()),
       .where = parts.token.source,
       .hint = parts.token.is_secret
                   ? "copy rank 0's token file to this host"
                   : "set FSDP_NO_TOKEN=1 on all ranks, or FSDP_JOB_TOKEN_FILE on all ranks"});
}

[[noreturn]] void refuse_silence(const TokenStore::Parts& parts) {
  Reach reach = reach_of(parts.host, parts.port, kLookForStore);
  throw InvalidArgument({.what = fmt::format("rendezvous at {}:{} failed", parts.host, parts.port),
                         .where = "MASTER_ADDR, MASTER_PORT",
                         .cause = std::move(reach.text),
                         .hint = std::move(reach.hint)});
}

struct Admitted {
  Descriptor socket;
  TcpAddress address;
};

Admitted admitted_within(const TokenStore::Parts& parts) {
  const auto deadline = Clock::now() + parts.timeout;
  for (auto pause = kFirstPause;; pause = std::min(2 * pause, kLastPause)) {
    for (const TcpAddress& address : parts.addresses) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      const auto at_most = std::clamp(left, milliseconds(1), kAttempt);
      OpenedSocket opened = connect_within(address, at_most);
      if (opened.error != 0) continue;
      const Admission admission = seek_admission(opened.socket, parts.token.key, at_most);
      if (admission == Admission::kAdmitted) return {std::move(opened.socket), address};
      if (admission != Admission::kNoAnswer) refuse_admission(parts, address, admission);
    }
    if (Clock::now() + pause >= deadline) refuse_silence(parts);
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace

TokenStore::TokenStore(Parts parts) : parts_(std::move(parts)) {
  Admitted admitted = admitted_within(parts_);
  socket_ = std::move(admitted.socket);
  parts_.addresses = {admitted.address};
}

void TokenStore::set(const std::string& key, std::string_view value) {
  ask({.kind = StoreRequest::kSet, .keys = {key}, .value = value});
}

std::string TokenStore::set_once(const std::string& key, std::string_view value) {
  return ask({.kind = StoreRequest::kSetOnce, .keys = {key}, .value = value}).texts.at(0);
}

int64_t TokenStore::add(const std::string& key, int64_t value) {
  const StoreMessage reply = ask({.kind = StoreRequest::kAdd, .keys = {key}, .number = value});
  return number_in<int64_t>(reply.texts.at(0));
}

bool TokenStore::has(const std::string& key) { return have({key}).front(); }

std::vector<bool> TokenStore::have(const std::vector<std::string>& keys) {
  const StoreMessage reply = ask({.kind = StoreRequest::kHave, .keys = keys});
  std::vector<bool> have;
  for (const char each : reply.texts.at(0)) have.push_back(each == '1');
  return have;
}

bool TokenStore::wait(const std::vector<std::string>& keys, milliseconds at_most) {
  const StoreMessage reply =
      ask({.kind = StoreRequest::kWait, .keys = keys, .number = at_most.count(), .wait = at_most});
  return reply.kind == static_cast<uint32_t>(StoreReply::kDone);
}

std::vector<std::string> TokenStore::get(const std::vector<std::string>& keys) {
  return ask({.kind = StoreRequest::kGet, .keys = keys}).texts;
}

void TokenStore::forget(const std::string& key) {
  ask({.kind = StoreRequest::kForget, .keys = {key}});
}

void TokenStore::forget_all(const std::string& beginning) {
  ask({.kind = StoreRequest::kForgetAll, .keys = {beginning}});
}

std::unique_ptr<KeyValueStore> TokenStore::connect_again() {
  return std::make_unique<TokenStore>(parts_);
}

StoreMessage TokenStore::ask(Request request) {
  std::vector<std::string_view> texts;
  for (std::string& key : request.keys) {
    key.insert(0, parts_.prefix);
    if (key.size() > kMostKeyBytes) {
      throw StateError(
          {.what = fmt::format("a key of {} bytes, expected at most {}", key.size(), kMostKeyBytes),
           .where = "the ranks' store"});
    }
    texts.emplace_back(key);
  }
  if (texts.size() > kMostTexts) {
    throw StateError({.what = fmt::format("a request for {} keys, expected at most {}",
                                          texts.size(), kMostTexts),
                      .where = "the ranks' store"});
  }
  if (request.value) {
    if (request.value->size() > kMostValueBytes) {
      throw StateError(
          {.what = fmt::format("a value of {}, expected at most {}",
                               format_bytes(static_cast<int64_t>(request.value->size())),
                               format_bytes(kMostValueBytes)),
           .where = "the ranks' store",
           .hint = "exchange less between ranks of several hosts at once"});
    }
    texts.push_back(*request.value);
  }
  StoreMessage reply = exchange(request.kind, request.number, texts, request.wait + parts_.timeout);
  switch (static_cast<StoreReply>(reply.kind)) {
    case StoreReply::kMissing:
      throw CommError({.what = fmt::format("key {} does not exist", quoted_name(reply.texts.at(0))),
                       .where = "the ranks' store"});
    case StoreReply::kNotANumber:
      throw CommError({.what = fmt::format("the value of key {} is not a number that can be added "
                                           "to",
                                           quoted_name(request.keys.front())),
                       .where = "the ranks' store"});
    case StoreReply::kDone:
    case StoreReply::kTimeOut:
      break;
  }
  return reply;
}

StoreMessage TokenStore::exchange(StoreRequest kind, int64_t number,
                                  const std::vector<std::string_view>& texts,
                                  milliseconds at_most) {
  if (!socket_) lose("the connection was lost before");
  std::string together = head_of(static_cast<uint32_t>(kind), number, texts);
  for (const std::string_view text : texts) {
    if (together.size() + text.size() <= kTogetherBytes) {
      together += text;
      continue;
    }
    send(together);
    together.clear();
    send(text);
  }
  send(together);
  StoreMessageReader reader(kReplyLimits);
  std::array<char, kTogetherBytes> bytes;  // NOLINT: recv fills it
  while (!reader.is_complete()) {
    if (!wait_until_ready(socket_, POLLIN, at_most)) {
      lose(fmt::format("no reply within {}", seconds_text(at_most)));
    }
    const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got < 0) lose(std::strerror(errno));
    if (got == 0) lose("the store has closed the connection");
    const std::string_view arrived(bytes.data(), static_cast<size_t>(got));
    try {
      if (reader.add(arrived) == arrived.size()) continue;
    } catch (const CommError& error) {
      lose(error.what());
    }
    lose("a reply without a request");
  }
  return reader.take();
}

void TokenStore::send(std::string_view bytes) {
  const int error = send_all(socket_, bytes, parts_.timeout);
  if (error != 0) lose(std::strerror(error));
}

void TokenStore::lose(const std::string& cause) {
  socket_ = {};
  throw CommError({.what = fmt::format("the ranks' store at {} does not answer",
                                       parts_.addresses.front().text()),
                   .where = "communication between hosts",
                   .cause = cause,
                   .hint = "see what rank 0 printed"});
}

}  // namespace fsdp
