#include "comm/store/tcp_address.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

namespace fsdp {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

struct Resolved {
  AddressList list{nullptr, &freeaddrinfo};
  int error = 0;
};

Resolved look_up(const std::string& host, int port, int flags) {
  // AF_UNSPEC is used, because the host may have both IPv4 and IPv6 addresses.
  const addrinfo wanted{.ai_flags = flags, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (error != 0) return {.error = error};
  return {.list = AddressList(found, &freeaddrinfo)};
}

const sockaddr_in& as_ipv4(const sockaddr* address) {
  return *reinterpret_cast<const sockaddr_in*>(address);
}
const sockaddr_in6& as_ipv6(const sockaddr* address) {
  return *reinterpret_cast<const sockaddr_in6*>(address);
}

}  // namespace

TcpAddress::TcpAddress(const sockaddr* address, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof bytes_)) {
  std::memcpy(&bytes_, address, size_);
}

bool TcpAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(as_ipv4(get()).sin_addr.s_addr) >> 24 == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&as_ipv6(get()).sin6_addr);
}

bool TcpAddress::is_wildcard() const {
  if (family() == AF_INET) return as_ipv4(get()).sin_addr.s_addr == htonl(INADDR_ANY);
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&as_ipv6(get()).sin6_addr);
}

std::string TcpAddress::host() const {
  std::array<char, NI_MAXHOST> text{};
  const int error = getnameinfo(get(), size_, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "an address that getnameinfo cannot convert to text";
}

int TcpAddress::port() const {
  return ntohs(family() == AF_INET ? as_ipv4(get()).sin_port : as_ipv6(get()).sin6_port);
}

std::string TcpAddress::text() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port())
                              : fmt::format("{}:{}", host(), port());
}

TcpAddress address_of_socket(int socket) {
  sockaddr_storage bytes{};
  socklen_t size = sizeof bytes;
  auto* const address = reinterpret_cast<sockaddr*>(&bytes);
  getsockname(socket, address, &size);
  return {address, size};
}

TcpAddress address_of_peer(int socket) {
  sockaddr_storage bytes{};
  socklen_t size = sizeof bytes;
  auto* const address = reinterpret_cast<sockaddr*>(&bytes);
  // A socket without a peer has the address of zeros, which equals no other address.
  if (getpeername(socket, address, &size) != 0) size = sizeof bytes;
  return {address, size};
}

FoundAddresses find_addresses(const std::string& host, int port) {
  const Resolved found = look_up(host, port, 0);
  if (found.error != 0) return {.why_none = gai_strerror(found.error)};
  std::vector<TcpAddress> addresses;
  for (const addrinfo* each = found.list.get(); each != nullptr; each = each->ai_next) {
    // getaddrinfo may return the same address several times.
    const TcpAddress address(each->ai_addr, each->ai_addrlen);
    if (std::ranges::find(addresses, address) == addresses.end()) addresses.push_back(address);
  }
  return {.addresses = std::move(addresses)};
}

bool is_numeric_host(const std::string& host) {
  return look_up(host, 0, AI_NUMERICHOST).error == 0;
}

}  // namespace fsdp
