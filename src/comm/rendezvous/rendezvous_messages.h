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

// A rank's request to join the job. The server is the first rank of the host.
struct JoinRequest {
  std::array<char, 8> magic = kRendezvousMagic;
  int32_t rank = 0;
  int32_t world_size = 0;
  int32_t local_begin = 0, local_count = 0;  // the ranks of the host, as the client knows them
  int32_t pid = 0;
};

// The reason why the server refuses to start the job. Every rank of the host gets it.
struct Refusal {
  std::string what;
  std::string hint;
};

// A reply of the server. If the rank is accepted, the job's descriptors are attached.
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
