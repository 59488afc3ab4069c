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

// Listens at `path`, for sequenced packets: a message arrives whole or not at all.
Descriptor listen_at(const std::string& path);
// Connects; empty if no process listens there.
Descriptor connect_to(const std::string& path);
// Accepts the next connection of a process of this user; empty if there is none within `at_most`.
Descriptor accept_within(const Descriptor& listener, std::chrono::milliseconds at_most);

// Sends a message with at most kDescriptorsAMessage descriptors. Returns false if the other side is
// gone.
inline constexpr size_t kDescriptorsAMessage = 200;
bool send_message(const Descriptor& socket, std::span<const std::byte> message,
                  std::span<const int> descriptors);

// Fills `message` and returns its descriptors; empty if the other side is gone, nothing arrived in
// time, or the size differs.
std::optional<std::vector<Descriptor>> receive_message(const Descriptor& socket,
                                                       std::span<std::byte> message,
                                                       std::chrono::milliseconds at_most);

}  // namespace fsdp
