#include "comm/store/tcp_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace fsdp {
namespace {

using std::chrono::milliseconds;

// A call of poll waits at most for this time. If the process was stopped in a call, the call
// returns late, but only this time counts.
constexpr auto kPollSlice = milliseconds(100);

OpenedSocket new_socket(const TcpAddress& address) {
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return {.error = errno};
  // A request is a small message, which must not wait for the acknowledgement of the last one.
  const int on = 1;
  setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return {.socket = std::move(socket)};
}

}  // namespace

OpenedSocket listen_at(const TcpAddress& address) {
  OpenedSocket opened = new_socket(address);
  if (opened.error != 0) return opened;
  const int on = 1;
  setsockopt(opened.socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(opened.socket.get(), address.get(), address.size()) != 0 ||
      listen(opened.socket.get(), SOMAXCONN) != 0) {
    return {.error = errno};
  }
  return opened;
}

OpenedSocket connect_within(const TcpAddress& address, milliseconds at_most) {
  OpenedSocket opened = new_socket(address);
  if (opened.error != 0) return opened;
  const int socket = opened.socket.get();
  if (connect(socket, address.get(), address.size()) != 0) {
    if (errno != EINPROGRESS) return {.error = errno};
    // When a non-blocking connect ends, the socket becomes writable and SO_ERROR holds the result.
    if (!wait_until_ready(opened.socket, POLLOUT, at_most)) return {.error = ETIMEDOUT};
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return {.error = error};
  }
  // While no process listens at a port of this host, the system may choose this port for the socket
  // that connects to it, and so connect the socket to itself.
  if (address_of_socket(socket) == address_of_peer(socket)) return {.error = ECONNREFUSED};
  return opened;
}

bool wait_until_ready(const Descriptor& socket, short events, milliseconds at_most) {
  using Clock = std::chrono::steady_clock;
  Clock::duration left = at_most;
  do {
    const auto slice = std::min(std::chrono::ceil<milliseconds>(left), kPollSlice);
    pollfd entry{.fd = socket.get(), .events = events, .revents = 0};
    const auto begin = Clock::now();
    if (poll(&entry, 1, static_cast<int>(slice.count())) == 1) return true;
    left -= std::min<Clock::duration>(Clock::now() - begin, slice);
  } while (left > Clock::duration::zero());
  return false;
}

int send_all(const Descriptor& socket, std::string_view bytes, milliseconds at_most) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_until_ready(socket, POLLOUT, at_most)) return ETIMEDOUT;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int receive_all(const Descriptor& socket, std::span<char> to, milliseconds at_most) {
  while (!to.empty()) {
    const ssize_t got = recv(socket.get(), to.data(), to.size(), 0);
    if (got > 0) {
      to = to.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      return ECONNRESET;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_until_ready(socket, POLLIN, at_most)) return ETIMEDOUT;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace fsdp
