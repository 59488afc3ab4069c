// Addresses of hosts, as sockets use them.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace fsdp {

// An IPv4 or IPv6 address with a port.
class TcpAddress {
 public:
  TcpAddress(const sockaddr* address, socklen_t size);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes_); }
  socklen_t size() const { return size_; }
  int family() const { return bytes_.ss_family; }
  // Returns true for 127.0.0.0/8 and ::1.
  bool is_loopback() const;
  // Returns true for 0.0.0.0 and ::.
  bool is_wildcard() const;
  std::string host() const;  // "10.0.0.5"
  int port() const;
  std::string text() const;  // "10.0.0.5:29500", "[::1]:29500"

  bool operator==(const TcpAddress& other) const { return text() == other.text(); }

 private:
  sockaddr_storage bytes_{};
  socklen_t size_ = 0;
};

// The local and the remote address of a socket.
TcpAddress address_of_socket(int socket);
TcpAddress address_of_peer(int socket);

// The addresses of a host name, each once.
struct FoundAddresses {
  std::vector<TcpAddress> addresses;
  std::string why_none;  // the system's message; empty if there are addresses
};
// Resolves a name or an address. Blocks until the system's resolver returns.
FoundAddresses find_addresses(const std::string& host, int port);
// Returns true for "10.0.0.5", and false for names.
bool is_numeric_host(const std::string& host);

}  // namespace fsdp
