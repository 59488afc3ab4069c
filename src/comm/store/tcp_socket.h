// TCP sockets that never block.
#pragma once

#include <chrono>
#include <span>
#include <string_view>

#include "base/descriptor.h"
#include "comm/store/tcp_address.h"

namespace fsdp {

// The result of an attempt to open a socket.
struct OpenedSocket {
  Descriptor socket;  // none if `error` is not 0
  int error = 0;      // the system's error (errno)
};

// Listens at this address alone. A port in which only connections of an earlier job are closing is
// free.
OpenedSocket listen_at(const TcpAddress& address);
// Connects. The error is ETIMEDOUT if the connection is not complete after `at_most`, and
// ECONNREFUSED if the system has connected the socket to itself.
OpenedSocket connect_within(const TcpAddress& address, std::chrono::milliseconds at_most);
// Waits until `socket` is ready for `events` (of poll). Time in which this process was stopped, for
// example by Ctrl-Z, does not count. Returns false after `at_most`.
bool wait_until_ready(const Descriptor& socket, short events, std::chrono::milliseconds at_most);
// Sends or receives all bytes. Returns 0 or the system's error (errno): ETIMEDOUT if no byte is
// transferred for `at_most`, ECONNRESET if the other side has closed the connection.
int send_all(const Descriptor& socket, std::string_view bytes, std::chrono::milliseconds at_most);
int receive_all(const Descriptor& socket, std::span<char> to, std::chrono::milliseconds at_most);

}  // namespace fsdp
