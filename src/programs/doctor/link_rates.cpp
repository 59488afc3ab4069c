#include "programs/doctor/link_rates.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/median.h"
#include "comm/store/tcp_socket.h"
#include "fsdp/error.h"

namespace fsdp::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kAnswerTime = std::chrono::milliseconds(10'000);
constexpr int64_t kSmallest = 64;
// A size is left out if one message would take this many times the time for a size.
constexpr double kMostTimes = 5;

// Precedes each message. The reply is a copy.
struct MessageHead {
  int64_t bytes = 0;  // of the message; -1: no message follows, and there is no reply
};

void require_sent(int error) {
  if (error == 0) return;
  throw CommError(
      {.what = "the connection between two hosts broke", .cause = std::strerror(error)});
}

void send_bytes(const Descriptor& socket, std::string_view bytes) {
  require_sent(send_all(socket, bytes, kAnswerTime));
}

void receive_bytes(const Descriptor& socket, std::span<char> to) {
  require_sent(receive_all(socket, to, kAnswerTime));
}

std::string_view bytes_of(const MessageHead& head) {
  return {reinterpret_cast<const char*>(&head), sizeof head};
}

std::span<char> space_of(MessageHead& head) {
  return {reinterpret_cast<char*>(&head), sizeof head};
}

// Sends messages of this size until the time is over, at least one, and returns the seconds that
// each took.
std::vector<double> times_of(const Descriptor& socket, int64_t bytes, double seconds) {
  const std::string message(static_cast<size_t>(bytes), 'm');
  std::vector<double> times;
  const auto begin = Clock::now();
  for (auto now = begin;
       times.empty() || std::chrono::duration<double>(now - begin).count() < seconds;) {
    MessageHead head{.bytes = bytes};
    send_bytes(socket, bytes_of(head));
    send_bytes(socket, message);
    receive_bytes(socket, space_of(head));
    const auto end = Clock::now();
    times.push_back(std::chrono::duration<double>(end - now).count());
    now = end;
  }
  return times;
}

}  // namespace

LinkRates send_messages(const Descriptor& socket, std::chrono::milliseconds time) {
  const double seconds = std::chrono::duration<double>(time).count();
  times_of(socket, kSmallest, 0);  // the first message may wait for the other host
  LinkRates found{.latency_us = median_of(times_of(socket, kSmallest, seconds)) / 2 * 1e6};
  double last = 0;
  for (const int64_t bytes : kMessageSizes) {
    const bool is_too_slow = last > 0 && static_cast<double>(bytes) / last > kMostTimes * seconds;
    double rate = 0;
    if (!is_too_slow)
      rate = static_cast<double>(bytes) / median_of(times_of(socket, bytes, seconds));
    found.rates.push_back(rate);
    last = std::max(last, rate);
  }
  send_bytes(socket, bytes_of({.bytes = -1}));
  return found;
}

void receive_messages(const Descriptor& socket) {
  std::string message;
  for (;;) {
    MessageHead head;
    receive_bytes(socket, space_of(head));
    if (head.bytes < 0 || head.bytes > kMessageSizes.back()) return;
    message.resize(static_cast<size_t>(head.bytes));
    receive_bytes(socket, message);
    send_bytes(socket, bytes_of(head));
  }
}

}  // namespace fsdp::doctor
