#include "comm/store/store_connection.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr size_t kReceiveBytes = size_t{64} << 10;  // in one call, so that clients take turns
constexpr size_t kMostPieces = 1024;                // in one call: the system's limit
constexpr int kSendCalls = 2;                       // in one turn

bool is_temporary(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

template <class Message>
Message message_in(const std::string& bytes) {
  Message message;
  std::memcpy(&message, bytes.data(), sizeof message);
  return message;
}

// Sends a message of the handshake. The buffer of a new socket has room for it.
template <class Message>
bool send_now(const Descriptor& socket, const Message& message) {
  return ::send(socket.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof message);
}

}  // namespace

StoreConnection::Result StoreConnection::receive(std::string_view key) {
  std::array<char, kReceiveBytes> bytes;  // NOLINT: recv fills it
  const ssize_t got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (got < 0 && is_temporary(errno)) return Result::kOpen;
  if (got <= 0) return Result::kClosed;
  return process({bytes.data(), static_cast<size_t>(got)}, key);
}

StoreConnection::Result StoreConnection::process(std::string_view bytes, std::string_view key) {
  if (stage_ == Stage::kAdmitted) bytes_in_ += static_cast<int64_t>(bytes.size());
  while (stage_ != Stage::kAdmitted && !bytes.empty()) {
    const bool is_hello = stage_ == Stage::kSilent;
    const size_t wanted = is_hello ? sizeof(StoreHello) : sizeof(StoreAnswer);
    const size_t now = std::min(bytes.size(), wanted - handshake_.size());
    handshake_ += bytes.substr(0, now);
    bytes.remove_prefix(now);
    // Another program's first bytes differ, so it is not kept until it has sent a whole hello.
    const size_t magic = std::min(handshake_.size(), kStoreMagic.size());
    if (is_hello && std::memcmp(handshake_.data(), kStoreMagic.data(), magic) != 0) {
      return Result::kClosed;
    }
    if (handshake_.size() < wanted) return Result::kOpen;
    const Result result = is_hello ? process_hello(key) : process_answer(key);
    if (result == Result::kClosed) return result;
    handshake_.clear();
  }
  try {
    // A client waits for each reply, so no bytes may follow a request.
    if (!bytes.empty() && (has_request() || reader_.add(bytes) < bytes.size())) {
      return Result::kClosed;
    }
  } catch (const CommError&) {
    return Result::kClosed;
  }
  return Result::kOpen;
}

StoreConnection::Result StoreConnection::process_hello(std::string_view key) {
  const auto hello = message_in<StoreHello>(handshake_);
  client_nonce_ = hello.nonce;
  const bool is_valid = equal_in_constant_time(hello.proof, proof_of_hello(key, client_nonce_));
  StoreChallenge challenge;
  if (is_valid) {
    server_nonce_ = new_nonce();
    challenge.verdict = StoreVerdict::kAccepted;
    challenge.nonce = server_nonce_;
    challenge.proof = proof_of_server(key, client_nonce_, server_nonce_);
  }
  if (!send_now(socket_, challenge) || !is_valid) return Result::kClosed;
  stage_ = Stage::kChallenged;
  return Result::kOpen;
}

StoreConnection::Result StoreConnection::process_answer(std::string_view key) {
  const auto answer = message_in<StoreAnswer>(handshake_);
  const Sha256 expected = proof_of_client(key, client_nonce_, server_nonce_);
  if (!equal_in_constant_time(answer.proof, expected)) return Result::kClosed;
  if (!send_now(socket_, StoreAdmission{})) return Result::kClosed;
  stage_ = Stage::kAdmitted;
  return Result::kOpen;
}

StoreConnection::Result StoreConnection::send(const StoreKeys::Reply& reply) {
  std::vector<std::string_view> texts;
  texts.reserve(reply.texts.size());
  for (const StoreKeys::Value& text : reply.texts) texts.emplace_back(*text);
  pieces_.push_back(
      std::make_shared<const std::string>(head_of(static_cast<uint32_t>(reply.kind), 0, texts)));
  pieces_.insert(pieces_.end(), reply.texts.begin(), reply.texts.end());
  return send_rest();
}

StoreConnection::Result StoreConnection::send_rest() {
  for (int call = 0; call < kSendCalls && is_sending(); ++call) {
    std::array<iovec, kMostPieces> vectors;  // NOLINT: only the first `count` are used
    size_t count = 0;
    for (size_t at = next_; at < pieces_.size() && count < kMostPieces; ++at) {
      const size_t begin = at == next_ ? sent_ : 0;
      vectors[count++] = {.iov_base = const_cast<char*>(pieces_[at]->data()) + begin,
                          .iov_len = pieces_[at]->size() - begin};
    }
    const msghdr message{.msg_iov = vectors.data(), .msg_iovlen = count};
    const ssize_t written = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) return is_temporary(errno) ? Result::kOpen : Result::kClosed;
    bytes_out_ += written;
    sent_ += static_cast<size_t>(written);
    while (is_sending() && sent_ >= pieces_[next_]->size()) {
      sent_ -= pieces_[next_]->size();
      pieces_[next_++].reset();
    }
  }
  if (!is_sending()) {
    pieces_.clear();
    next_ = sent_ = 0;
  }
  return Result::kOpen;
}

}  // namespace fsdp
