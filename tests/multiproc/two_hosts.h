// Tests in which processes of this machine act as ranks of two hosts.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <string>

#include "comm/descriptor.h"

namespace fsdp::testing {

// Returns the number of a port at which nothing listens.
inline std::string unused_port() {
  const Descriptor holder(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  REQUIRE(bind(holder.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
  REQUIRE(getsockname(holder.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return std::to_string(ntohs(address.sin_port));
}

}  // namespace fsdp::testing
