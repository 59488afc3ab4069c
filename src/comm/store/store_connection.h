// The server's end of one connection to the ranks' own store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "comm/store/store_keys.h"
#include "comm/store/store_message.h"

namespace fsdp {

// The protocol of one connection: [Note: the protocol of the store]. The functions that receive and
// send never block.
class StoreConnection {
 public:
  enum class Stage : uint8_t {
    kSilent,      // no valid hello yet
    kChallenged,  // has a valid hello; the answer is missing
    kAdmitted,    // has the token
  };
  enum class Result : uint8_t { kOpen, kClosed };

  explicit StoreConnection(Descriptor socket) : socket_(std::move(socket)) {}

  int socket() const { return socket_.get(); }
  Stage stage() const { return stage_; }
  // Receives what has arrived, at most up to the end of a request. Returns kClosed if the client
  // has closed the connection, or if what it sent is not the protocol.
  Result receive(std::string_view key);
  bool has_request() const { return reader_.is_complete(); }
  StoreMessage take_request() { return reader_.take(); }
  // Sends a reply. What cannot be sent now stays here: the reply's head, and shares of its values.
  Result send(const StoreKeys::Reply& reply);
  // Continues to send.
  Result send_rest();
  bool is_sending() const { return next_ < pieces_.size(); }
  int64_t bytes_in() const { return bytes_in_; }
  int64_t bytes_out() const { return bytes_out_; }

  // Processes bytes as if they had arrived. Separate from receive() for tests.
  Result process(std::string_view bytes, std::string_view key);

 private:
  Result process_hello(std::string_view key);
  Result process_answer(std::string_view key);

  Descriptor socket_;
  Stage stage_ = Stage::kSilent;
  std::string handshake_;  // bytes of the hello or of the answer
  StoreNonce client_nonce_{}, server_nonce_{};
  StoreMessageReader reader_{kRequestLimits};
  std::vector<StoreKeys::Value> pieces_;  // of the reply
  size_t next_ = 0;                       // the piece that is being sent
  size_t sent_ = 0;                       // bytes of it that were sent
  int64_t bytes_in_ = 0, bytes_out_ = 0;
};

}  // namespace fsdp
