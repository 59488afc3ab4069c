// Messages between the ranks' own store (TokenStoreServer) and its clients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"

namespace fsdp {

// [Note: the protocol of the store] All numbers are little-endian.
//
// A connection begins with four messages of fixed sizes. No secret is sent, and each side proves
// that it has the token (MAC is HMAC-SHA-256 with the token as the key):
//   client: StoreHello      a new nonce, and MAC("hello", client's nonce)
//   server: StoreChallenge  another new nonce, and MAC("server", both nonces)
//   client: StoreAnswer     MAC("client", both nonces)
//   server: StoreAdmission  the server has accepted the answer
// The hello lets the server drop strangers before it spends time or a place on them. A recorded
// hello can be sent again, so it grants no access. Only the answer does, because it depends on the
// server's new nonce. If the hello's hash is wrong, the challenge has the verdict kRefused.
//
// Then the client sends requests, each after the reply to the last one. A request or a reply is a
// StoreHeader, the lengths of the texts (uint32_t each), and the texts.

enum class StoreRequest : uint32_t {  // texts of the request → texts of the reply
  kSet = 1,                           // key, value → none
  kSetOnce,                           // key, value → the value that the key has then
  kAdd,                               // key; number: the summand → the sum in decimal digits
  kHave,                              // keys → one text with a '1' or '0' for each key
  kWait,                              // keys; number: milliseconds → none
  kGet,                               // keys → values
  kForget,                            // key → none
  kForgetAll,                         // beginning of keys → none
};
inline constexpr uint32_t kStoreRequests = 8;

enum class StoreReply : uint32_t {
  kDone = 101,
  kTimeOut,     // kWait: a key does not exist
  kMissing,     // kGet: a key does not exist. The reply has this key
  kNotANumber,  // kAdd: the value is not a number, or the sum has more than 64 bits
};

struct StoreHeader {
  uint32_t kind;   // StoreRequest or StoreReply
  uint32_t count;  // number of texts
  uint64_t bytes;  // size of all texts
  int64_t number;
};
static_assert(sizeof(StoreHeader) == 24);

inline constexpr size_t kMostKeyBytes = 1024;
// A value of StoreCommunicator is a rank's input of a collective, and it may hold a user's array.
inline constexpr size_t kMostValueBytes = size_t{64} << 20;
inline constexpr size_t kMostTexts = size_t{1} << 16;  // a job's most ranks

struct StoreMessage {
  uint32_t kind = 0;
  int64_t number = 0;
  std::vector<std::string> texts;
};

// Returns the header and the lengths of a message. The texts follow them.
std::string head_of(uint32_t kind, int64_t number, const std::vector<std::string_view>& texts);
// Returns the whole message.
std::string encoded(const StoreMessage& message);

// Reads messages from a stream of bytes of any cut. It holds no more memory than the bytes that
// have arrived, whatever sizes a header promises.
class StoreMessageReader {
 public:
  // `kinds` are the allowed kinds: first and last.
  struct Limits {
    uint32_t first_kind, last_kind;
    uint64_t most_bytes;
  };
  explicit StoreMessageReader(Limits limits) : limits_(limits) {}

  // Adds bytes up to the end of a message, and returns the number of bytes that were used.
  // Requires: the message is not complete.
  // Errors: CommError if the bytes are no message within the limits.
  size_t add(std::string_view bytes);
  bool is_complete() const { return stage_ == Stage::kComplete; }
  // Returns the complete message. The next bytes begin a new message.
  StoreMessage take();

 private:
  enum class Stage : uint8_t { kHeader, kLengths, kTexts, kComplete };

  size_t stage_bytes() const;
  void end_stage();

  const Limits limits_;
  Stage stage_ = Stage::kHeader;
  StoreHeader header_{};
  std::vector<uint32_t> lengths_;
  std::string bytes_;  // of this stage
};

// The limits of what a server accepts.
inline constexpr StoreMessageReader::Limits kRequestLimits{1, kStoreRequests,
                                                           kMostKeyBytes + kMostValueBytes};
// The limits of what a client accepts. A reply may have a large value of each rank.
inline constexpr StoreMessageReader::Limits kReplyLimits{
    static_cast<uint32_t>(StoreReply::kDone), static_cast<uint32_t>(StoreReply::kNotANumber),
    uint64_t{1} << 40};

using StoreMagic = std::array<char, 8>;
inline constexpr StoreMagic kStoreMagic{'f', 's', 'd', 'p', 's', 't', 'o', '2'};
using StoreNonce = std::array<uint8_t, 32>;

struct StoreHello {
  StoreMagic magic = kStoreMagic;
  StoreNonce nonce{};
  Sha256 proof{};
};
enum class StoreVerdict : uint64_t { kAccepted = 1, kRefused = 2 };
struct StoreChallenge {
  StoreMagic magic = kStoreMagic;
  StoreVerdict verdict = StoreVerdict::kRefused;
  StoreNonce nonce{};
  Sha256 proof{};
};
struct StoreAnswer {
  Sha256 proof{};
};
struct StoreAdmission {
  StoreMagic magic = kStoreMagic;
};
static_assert(sizeof(StoreHello) == 72 && sizeof(StoreChallenge) == 80);

// Returns a random number that cannot be guessed. Errors: CommError if the system has no random
// numbers.
StoreNonce new_nonce();
// The proofs of the first three messages.
Sha256 proof_of_hello(std::string_view key, const StoreNonce& client);
Sha256 proof_of_server(std::string_view key, const StoreNonce& client, const StoreNonce& server);
Sha256 proof_of_client(std::string_view key, const StoreNonce& client, const StoreNonce& server);

}  // namespace fsdp
