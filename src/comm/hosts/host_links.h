// Connections between ranks of several hosts. A connection carries bytes from one rank to another.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/store/key_value_store.h"

namespace fsdp {

// A message that is being sent or received.
class Transfer {
 public:
  // Abandons the message if it is not complete. Afterwards the message's memory is not used.
  virtual ~Transfer() = default;
  Transfer() = default;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Blocks until the message is sent or received. Then its memory may be reused. After cancel() the
  // call returns although the message is not complete.
  // Errors: CommError if the connection is broken.
  virtual void wait() = 0;
  // Ends a present or later wait(). Any thread may call it while the Transfer exists.
  virtual void cancel() noexcept = 0;
};

// The connections of one rank to the other ranks of a list. A rank is named by its index in the
// list. Messages from one rank to another with equal tags arrive in the order in which they were
// sent. Thread-safe.
class HostLinks {
 public:
  virtual ~HostLinks() = default;
  HostLinks() = default;
  HostLinks(const HostLinks&) = delete;
  HostLinks& operator=(const HostLinks&) = delete;

  // Begins to send `bytes` bytes. Does not block. The peer must receive exactly as many bytes.
  // Errors: CommError if the connection is broken.
  virtual std::unique_ptr<Transfer> send(int peer, uint32_t tag, const void* data,
                                         int64_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int peer, uint32_t tag, void* data, int64_t bytes) = 0;
};

// A way to connect ranks, for example Gloo. One object serves one rank.
class HostTransport {
 public:
  virtual ~HostTransport() = default;
  HostTransport() = default;
  HostTransport(const HostTransport&) = delete;
  HostTransport& operator=(const HostTransport&) = delete;

  // A list of ranks and this rank's place in it.
  struct Group {
    std::string name;  // equal on all ranks of the list; no other list of the job has it
    int rank = 0;
    int size = 0;
  };
  // Connects this rank to the other ranks of a list. The ranks publish their addresses in `store`,
  // which must exist as long as the result. Calls `check` about ten times a second while it waits
  // for the address of a rank; an error that `check` throws ends the wait.
  // Requires: all ranks of the list call it.
  // Errors: CommError if a rank does not answer within `timeout`. Also the errors of `check`.
  virtual std::shared_ptr<HostLinks> connect(KeyValueStore& store, const Group& group,
                                             std::chrono::milliseconds timeout,
                                             const std::function<void()>& check) = 0;
};

// Opens a transport that listens at `address`, an IP address of this host. Errors: CommError (78)
// if the host does not have the address.
using OpenTransport = std::unique_ptr<HostTransport> (*)(const std::string& address);

}  // namespace fsdp
