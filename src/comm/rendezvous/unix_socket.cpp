#include "comm/rendezvous/unix_socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "fsdp/error.h"

namespace fsdp {
namespace {

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // private_directory_path limits the length of paths, so no path is cut here.
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

bool readable_within(const Descriptor& socket, std::chrono::milliseconds at_most) {
  pollfd entry{.fd = socket.get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, static_cast<int>(at_most.count())) == 1;
}

// The descriptors of a message, after the header that the kernel requires.
using ControlBytes = std::array<char, CMSG_SPACE(kDescriptorsAMessage * sizeof(int))>;

}  // namespace

Descriptor listen_at(const std::string& path) {
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  if (!listener ||
      bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener.get(), SOMAXCONN) != 0) {
    throw InvalidArgument(
        {.what = "the ranks' rendezvous socket cannot be opened",
         .where = path,
         .cause = std::strerror(errno),
         .hint = "check the permissions of its directory, or start the ranks with fsdp-run"});
  }
  return listener;
}

Descriptor connect_to(const std::string& path) {
  // No error is fatal here, because the caller tries again until its deadline.
  Descriptor client(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const sockaddr_un address = address_of(path);
  if (connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return {};
  }
  return client;
}

Descriptor accept_within(const Descriptor& listener, std::chrono::milliseconds at_most) {
  if (!readable_within(listener, at_most)) return {};
  Descriptor client(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  // The kernel reports the peer's user, so the check does not rely on the mode of the directory
  // alone.
  ucred peer{};
  socklen_t length = sizeof peer;
  if (!client || getsockopt(client.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
      peer.uid != geteuid()) {
    return {};
  }
  return client;
}

bool send_message(const Descriptor& socket, std::span<const std::byte> message,
                  std::span<const int> descriptors) {
  iovec part{.iov_base = const_cast<std::byte*>(message.data()), .iov_len = message.size()};
  alignas(cmsghdr) ControlBytes control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!descriptors.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* entry = CMSG_FIRSTHDR(&header);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(entry), descriptors.data(), descriptors.size_bytes());
  }
  // MSG_NOSIGNAL: if the peer has ended, the call fails and does not end this process by a signal.
  return sendmsg(socket.get(), &header, MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

std::optional<std::vector<Descriptor>> receive_message(const Descriptor& socket,
                                                       std::span<std::byte> message,
                                                       std::chrono::milliseconds at_most) {
  if (!readable_within(socket, at_most)) return std::nullopt;
  iovec part{.iov_base = message.data(), .iov_len = message.size()};
  alignas(cmsghdr) ControlBytes control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  const ssize_t received = recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
  // Descriptor objects own all received descriptors before the size is checked, so that a message
  // of a wrong size leaks none.
  std::vector<Descriptor> descriptors;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&header); entry != nullptr;
       entry = CMSG_NXTHDR(&header, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(entry) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  // If the size differs, the connection has ended (0 bytes), or another program has sent the
  // message.
  if (received != static_cast<ssize_t>(message.size())) return std::nullopt;
  return descriptors;
}

}  // namespace fsdp
