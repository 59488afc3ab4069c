// Messages with descriptors between processes of one user on one host.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/descriptor.h"

namespace fsdp {

// Sequenced packets: a message arrives whole or not at all.
Descriptor listen_at(const std::string& path);
// Empty if nobody listens there.
Descriptor connect_to(const std::string& path);
// The next connection of a process of this user; empty if none came within `at_most`.
Descriptor accept_within(const Descriptor& listener, std::chrono::milliseconds at_most);

// At most kDescriptorsAMessage descriptors. False if the other side is gone.
inline constexpr size_t kDescriptorsAMessage = 200;
bool send_message(const Descriptor& socket, std::span<const std::byte> message,
                  std::span<const int> descriptors);

// Fills `message`; empty if the other side is gone, nothing came in time, or the size differs.
std::optional<std::vector<Descriptor>> receive_message(const Descriptor& socket,
                                                       std::span<std::byte> message,
                                                       std::chrono::milliseconds at_most);

}  // namespace fsdp
