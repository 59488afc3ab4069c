// Messages with attached descriptors between processes of one user on one host.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/descriptor.h"

namespace fsdp {

// Listens at `path` for sequenced packets, so a message arrives as a whole or not at all.
Descriptor listen_at(const std::string& path);
// Connects to `path`. Empty if no process listens there.
Descriptor connect_to(const std::string& path);
// Accepts the next connection of a process of this user. Empty if there is none within `at_most`.
Descriptor accept_within(const Descriptor& listener, std::chrono::milliseconds at_most);

// Sends a message with at most kDescriptorsAMessage descriptors. Returns false if the other side
// has closed the connection.
inline constexpr size_t kDescriptorsAMessage = 200;
bool send_message(const Descriptor& socket, std::span<const std::byte> message,
                  std::span<const int> descriptors);

// Fills `message` and returns the attached descriptors. Empty if the other side has closed the
// connection, if no message arrived in time, or if the message does not have the size of `message`.
std::optional<std::vector<Descriptor>> receive_message(const Descriptor& socket,
                                                       std::span<std::byte> message,
                                                       std::chrono::milliseconds at_most);

}  // namespace fsdp
