// Measures one direction of a TCP connection between two hosts.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/descriptor.h"

namespace fsdp::doctor {

// The sizes of messages whose rates are measured, in bytes.
inline constexpr std::array<int64_t, 4> kMessageSizes{4 << 10, 64 << 10, 1 << 20, 16 << 20};

struct LinkRates {
  double latency_us = 0;  // half of the median time of a message of 64 bytes and its reply
  // Bytes per second, by kMessageSizes. A message counts until its reply has arrived. 0: the size
  // was left out, because the link is too slow for it.
  std::vector<double> rates{};
};

// Sends messages of each size for about `time` each, and returns the figures.
// Errors: CommError if the other host does not answer for ten seconds.
LinkRates send_messages(const Descriptor& socket, std::chrono::milliseconds time);
// Receives the messages of send_messages and replies to them. Errors: those of send_messages.
void receive_messages(const Descriptor& socket);

}  // namespace fsdp::doctor
