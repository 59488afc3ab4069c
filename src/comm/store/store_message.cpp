#include "comm/store/store_message.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {
namespace {

static_assert(std::endian::native == std::endian::little, "messages are little-endian");

[[noreturn]] void refuse_message(const char* what) {
  throw CommError({.what = what, .where = "messages of the ranks' store"});
}

template <class Value>
std::string_view view_of(const Value& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

Sha256 proof_of(std::string_view key, std::string_view role, const StoreNonce& client,
                const StoreNonce& server) {
  std::string text("fsdp store ");
  text += role;
  text += view_of(client);
  text += view_of(server);
  return hmac_sha256(key, text);
}

}  // namespace

std::string head_of(uint32_t kind, int64_t number, const std::vector<std::string_view>& texts) {
  StoreHeader header{
      .kind = kind, .count = static_cast<uint32_t>(texts.size()), .bytes = 0, .number = number};
  for (const std::string_view text : texts) header.bytes += text.size();
  std::string head(view_of(header));
  for (const std::string_view text : texts) head += view_of(static_cast<uint32_t>(text.size()));
  return head;
}

std::string encoded(const StoreMessage& message) {
  std::string bytes =
      head_of(message.kind, message.number, {message.texts.begin(), message.texts.end()});
  for (const std::string& text : message.texts) bytes += text;
  return bytes;
}

size_t StoreMessageReader::stage_bytes() const {
  switch (stage_) {
    case Stage::kHeader:
      return sizeof(StoreHeader);
    case Stage::kLengths:
      return header_.count * sizeof(uint32_t);
    case Stage::kTexts:
      return header_.bytes;
    case Stage::kComplete:
      break;
  }
  return 0;
}

size_t StoreMessageReader::add(std::string_view bytes) {
  size_t used = 0;
  while (!is_complete()) {
    const size_t now = std::min(stage_bytes() - bytes_.size(), bytes.size() - used);
    bytes_ += bytes.substr(used, now);
    used += now;
    if (bytes_.size() < stage_bytes()) break;
    end_stage();
  }
  return used;
}

void StoreMessageReader::end_stage() {
  switch (stage_) {
    case Stage::kHeader:
      std::memcpy(&header_, bytes_.data(), sizeof header_);
      if (header_.kind < limits_.first_kind || header_.kind > limits_.last_kind) {
        refuse_message("a message of an unknown kind");
      }
      if (header_.count > kMostTexts) refuse_message("a message with too many texts");
      if (header_.bytes > limits_.most_bytes) refuse_message("a message that is too large");
      stage_ = Stage::kLengths;
      break;
    case Stage::kLengths: {
      lengths_.resize(header_.count);
      if (header_.count > 0) std::memcpy(lengths_.data(), bytes_.data(), bytes_.size());
      uint64_t sum = 0;
      for (const uint32_t length : lengths_) sum += length;
      if (sum != header_.bytes) refuse_message("a message whose texts have another size");
      stage_ = Stage::kTexts;
      break;
    }
    case Stage::kTexts:
      stage_ = Stage::kComplete;
      return;  // keeps the texts
    case Stage::kComplete:
      return;
  }
  bytes_.clear();
}

StoreMessage StoreMessageReader::take() {
  StoreMessage message{.kind = header_.kind, .number = header_.number, .texts = {}};
  message.texts.reserve(lengths_.size());
  // A single text is moved, because it may be large.
  if (lengths_.size() == 1) {
    message.texts.push_back(std::move(bytes_));
  } else {
    size_t at = 0;
    for (const uint32_t length : lengths_) {
      message.texts.push_back(bytes_.substr(at, length));
      at += length;
    }
  }
  bytes_ = {};  // frees the memory of a large message
  lengths_.clear();
  stage_ = Stage::kHeader;
  return message;
}

StoreNonce new_nonce() {
  StoreNonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw CommError({.what = "the system has no random numbers", .where = "getrandom"});
  }
  return nonce;
}

Sha256 proof_of_hello(std::string_view key, const StoreNonce& client) {
  return proof_of(key, "hello", client, {});
}

Sha256 proof_of_server(std::string_view key, const StoreNonce& client, const StoreNonce& server) {
  return proof_of(key, "server", client, server);
}

Sha256 proof_of_client(std::string_view key, const StoreNonce& client, const StoreNonce& server) {
  return proof_of(key, "client", client, server);
}

}  // namespace fsdp
