#include "comm/store/reach.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "comm/descriptor.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

struct Found {
  Addresses addresses{nullptr, &freeaddrinfo};
  std::string why_none;
};

Found find(const std::string& host, const std::string& port) {
  // AF_UNSPEC is used, because the host may have both IPv4 and IPv6 addresses.
  const addrinfo wanted{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found);
  if (error != 0) return {.why_none = gai_strerror(error)};
  return {.addresses = Addresses(found, &freeaddrinfo)};
}

std::string text_of(const addrinfo& address) {
  std::array<char, NI_MAXHOST> text{};
  const int error = getnameinfo(address.ai_addr, address.ai_addrlen, text.data(), text.size(),
                                nullptr, 0, NI_NUMERICHOST);
  return error == 0 ? text.data() : "an address that getnameinfo cannot convert to text";
}

std::vector<std::string> texts_of(const Found& found) {
  std::vector<std::string> texts;
  for (const addrinfo* each = found.addresses.get(); each != nullptr; each = each->ai_next) {
    // getaddrinfo may return the same address several times; it is listed once.
    const std::string text = text_of(*each);
    if (std::ranges::find(texts, text) == texts.end()) texts.push_back(text);
  }
  return texts;
}

// Tries to connect and returns the system's error, or 0 if a program listens.
int connect_error(const addrinfo& address, milliseconds at_most) {
  const Descriptor socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  if (!socket) return errno;
  if (connect(socket.get(), address.ai_addr, address.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  // When a non-blocking connect ends, the socket becomes writable and SO_ERROR holds the result.
  pollfd writable{.fd = socket.get(), .events = POLLOUT, .revents = 0};
  if (poll(&writable, 1, static_cast<int>(at_most.count())) != 1) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

ResolvedName resolve(const std::string& host) {
  Found found = find(host, "");
  return {.addresses = texts_of(found), .why_none = std::move(found.why_none)};
}

Reach reach_of(const std::string& host, int port, milliseconds at_most) {
  const Found found = find(host, std::to_string(port));
  if (!found.addresses) {
    return {
        .text = fmt::format("{} does not resolve on this host: {}", host, found.why_none),
        .hint = "set MASTER_ADDR on all ranks to a name or address that resolves on every host"};
  }
  // All addresses of the host share one deadline.
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  int error = ETIMEDOUT;
  // The loop ends when an address answers. If none answers, the last error is reported.
  for (const addrinfo* each = found.addresses.get(); each != nullptr && error != 0;
       each = each->ai_next) {
    const auto left = deadline - std::chrono::steady_clock::now();
    error = connect_error(
        *each, std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(left)));
  }
  const std::string addresses = fmt::format("{}", fmt::join(texts_of(found), ", "));
  const std::string at = addresses == host ? host : fmt::format("{} ({})", host, addresses);
  if (error == 0) {
    return {.resolves = true,
            .text = fmt::format(
                "the process that listens at {} on port {} does not answer as LibTorch's store", at,
                port),
            .hint = "set another MASTER_PORT on all ranks: another program uses the port"};
  }
  if (error == ECONNREFUSED) {
    return {.resolves = true,
            .text = fmt::format("nothing listens at {} on port {}", at, port),
            .hint = "start rank 0, or its launcher, there with this MASTER_PORT"};
  }
  return {
      .resolves = true,
      .text = fmt::format("port {} of {} cannot be reached: {}", port, at,
                          std::generic_category().message(error)),
      .hint = "check that the host is up and its port is open to this host (firewall, network)"};
}

}  // namespace fsdp
