// Messages of the rendezvous of a job's processes. Their sizes are fixed. Receivers check all
// contents.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fsdp {

inline constexpr std::array<char, 8> kRendezvousMagic{'f', 's', 'd', 'p', 'm', 'e', 'e', 't'};
inline constexpr auto kRendezvousSocket = "meet";  // in the job's private directory

// A rank's request to rank 0 to join the job.
struct JoinRequest {
  std::array<char, 8> magic = kRendezvousMagic;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t pid = 0;
};

// The reason why rank 0 refuses to start the job. Every rank gets it.
struct Refusal {
  std::string what;
  std::string hint;
};

// A reply of rank 0. If the rank is accepted, the job's descriptors are attached.
struct JoinReply {
  std::array<char, 8> magic = kRendezvousMagic;
  int32_t accepted = 1;
  std::array<char, 256> what{};
  std::array<char, 256> hint{};
};

inline JoinReply reply_of(const Refusal& refusal) {
  const auto put = [](std::array<char, 256>& field, std::string_view text) {
    std::copy_n(text.data(), std::min(text.size(), field.size() - 1), field.data());
  };
  JoinReply reply{.accepted = 0};
  put(reply.what, refusal.what);
  put(reply.hint, refusal.hint);
  return reply;
}

template <class Message>
std::span<std::byte> bytes_of(Message& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

}  // namespace fsdp
