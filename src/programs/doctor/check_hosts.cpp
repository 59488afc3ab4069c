#include "programs/doctor/check_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "comm/mesh_parts.h"
#include "comm/store/master_address.h"
#include "comm/store/open_job_store.h"
#include "comm/store/store_message.h"
#include "comm/store/store_text.h"
#include "comm/store/store_token.h"
#include "comm/store/tcp_socket.h"
#include "fsdp/error.h"

namespace fsdp::doctor {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr auto kHelloTime = milliseconds(2'000);
constexpr char kNotMeasured[] = "not measured, because the time was over";

// The first bytes of a connection. They show that it belongs to this check.
struct LinkHello {
  StoreHello hello;
  int64_t from = 0;
};

LinkHello hello_of(const std::string& key, int from) {
  LinkHello hello{.hello = {.nonce = new_nonce()}, .from = from};
  hello.hello.proof = proof_of_hello(key, hello.hello.nonce);
  return hello;
}

template <class Message>
std::span<char> space_of_message(Message& message) {
  return {reinterpret_cast<char*>(&message), sizeof message};
}

// One host's part of the check.
class HostCheck {
 public:
  HostCheck(const LaunchEnvironment& environment, const MeshOptions& options,
            const HostsTimes& times)
      : own_(environment.rank),
        count_(environment.world_size),
        times_(times),
        key_(read_token(environment).key),
        store_(open_job_store(environment, options, nullptr)) {
    const std::string address = route_address(environment, options.timeout);
    OpenedSocket opened = listen_at(find_addresses(address, 0).addresses.front());
    if (opened.error != 0) {
      throw CommError({.what = fmt::format("cannot listen at {}", address),
                       .cause = std::strerror(opened.error)});
    }
    listener_ = std::move(opened.socket);
    store_->set(key("host", own_), fmt::format("{}\n{}\n{}", host_name(), address,
                                               address_of_socket(listener_.get()).port()));
  }

  CheckedHosts run() {
    wait_for_all("host");
    CheckedHosts checked;
    for (const std::string& said : store_->get(keys_of("host"))) {
      std::vector<std::string> lines = parts_of(said, '\n', 3);
      addresses_.push_back(find_addresses(lines[1], number_in<int>(lines[2])).addresses.front());
      checked.hosts.push_back({.name = std::move(lines[0]), .address = std::move(lines[1])});
    }
    run_rounds();
    for (int from = 0; from < count_; ++from) {
      for (int to = 0; to < count_; ++to) {
        if (from != to) checked.links.push_back(result_of(from, to));
      }
    }
    // Host 0 serves the store, so it leaves last.
    store_->set(key("done", own_), "");
    if (own_ == 0) wait_for_all("done");
    return checked;
  }

 private:
  static std::string key(const std::string& name, int host) {
    return fmt::format("{}/{}", name, host);
  }
  std::vector<std::string> keys_of(const std::string& name) const {
    std::vector<std::string> keys;
    for (int host = 0; host < count_; ++host) keys.push_back(key(name, host));
    return keys;
  }

  void wait_for_all(const std::string& name) {
    const std::vector<std::string> keys = keys_of(name);
    // A round is within this time, too, because its connections and messages have limits.
    if (store_->wait(keys, times_.start)) return;
    const std::vector<bool> have = store_->have(keys);
    std::vector<int> missing;
    for (int host = 0; host < count_; ++host) {
      if (!have[static_cast<size_t>(host)]) missing.push_back(host);
    }
    throw CommError(
        {.what =
             fmt::format("host {} of {} did not arrive within {:.0f} s", fmt::join(missing, ", "),
                         count_, std::chrono::duration<double>(times_.start).count()),
         .hint = "start fsdp-doctor on every host, with node ranks from 0 to --nnodes − 1"});
  }

  void run_rounds() {
    const int rounds = rounds_of(count_);
    const auto begin = Clock::now();
    for (int round = 0; round < rounds; ++round) {
      // Host 0 decides for all whether there is time for this round.
      const std::string go = key("go", round);
      if (own_ == 0) store_->set(go, Clock::now() - begin < times_.all_links ? "yes" : "no");
      if (!store_->wait({go}, times_.start) || store_->get({go}).front() == "no") return;
      const std::optional<int> partner = partner_of(own_, round, count_);
      if (partner) {
        // The host with the lower number sends first.
        own_ < *partner ? send_to(*partner, rounds) : receive_from(*partner);
        own_ < *partner ? receive_from(*partner) : send_to(*partner, rounds);
      }
      store_->set(key(fmt::format("round/{}", round), own_), "");
      wait_for_all(fmt::format("round/{}", round));
    }
  }

  void send_to(int host, int rounds) {
    const std::string place = fmt::format("link/{}/{}", own_, host);
    // Two directions, and a size for the latency.
    const int64_t sizes = rounds * 2 * (std::ssize(kMessageSizes) + 1);
    const auto time = std::min(times_.longest_size, times_.all_links / sizes);
    try {
      const OpenedSocket opened =
          connect_within(addresses_[static_cast<size_t>(host)], times_.connection);
      if (opened.error != 0) throw CommError({.what = std::strerror(opened.error)});
      LinkHello hello = hello_of(key_, own_);
      const auto bytes = space_of_message(hello);
      send_all(opened.socket, {bytes.data(), bytes.size()}, kHelloTime);
      const LinkRates rates = send_messages(opened.socket, time);
      store_->set(place, fmt::format("ok\n{}\n{}", rates.latency_us, fmt::join(rates.rates, "\n")));
    } catch (const CommError& error) {
      store_->set(place, fmt::format("failed\n{}", error.what()));
    }
  }

  // Receives until the sender has no more messages. The sender reports failures.
  void receive_from(int host) {
    const auto deadline = Clock::now() + times_.connection;
    for (;;) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      if (left <= milliseconds(0) || !wait_until_ready(listener_, POLLIN, left)) return;
      const Descriptor socket(
          accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      LinkHello hello;
      if (!socket || receive_all(socket, space_of_message(hello), kHelloTime) != 0) continue;
      const Sha256 proof = proof_of_hello(key_, hello.hello.nonce);
      if (!equal_in_constant_time(proof, hello.hello.proof) || hello.from != host) continue;
      try {
        receive_messages(socket);
      } catch (const CommError&) {
      }
      return;
    }
  }

  CheckedLink result_of(int from, int to) {
    CheckedLink link{.from = from, .to = to};
    const std::string place = fmt::format("link/{}/{}", from, to);
    if (!store_->has(place)) {
      link.failure = kNotMeasured;
      return link;
    }
    const size_t count = 2 + kMessageSizes.size();
    std::vector<std::string> lines = parts_of(store_->get({place}).front(), '\n', count);
    if (lines[0] != "ok") {
      link.failure = std::move(lines[1]);
      return link;
    }
    link.rates.latency_us = number_in<double>(lines[1]);
    for (size_t at = 2; at < count; ++at) link.rates.rates.push_back(number_in<double>(lines[at]));
    return link;
  }

  const int own_, count_;
  const HostsTimes times_;
  const std::string key_;
  const std::unique_ptr<KeyValueStore> store_;
  Descriptor listener_;
  std::vector<TcpAddress> addresses_;  // of the listeners, by host
};

}  // namespace

CheckedHosts check_hosts(const LaunchEnvironment& environment, const MeshOptions& options,
                         const HostsTimes& times) {
  return HostCheck(environment, options, times).run();
}

int rounds_of(int hosts) { return hosts % 2 == 0 ? hosts - 1 : hosts; }

// The method of round-robin tournaments: in round r, hosts h and r − h (modulo the number of
// rounds) are partners. The host for which both are equal has the last host as its partner, if the
// number of hosts is even.
std::optional<int> partner_of(int host, int round, int hosts) {
  const int rounds = rounds_of(hosts);
  const bool is_even = hosts % 2 == 0;
  if (is_even && host == hosts - 1) return round * (hosts / 2) % rounds;
  const int partner = ((round - host) % rounds + rounds) % rounds;
  if (partner != host) return partner;
  return is_even ? std::optional(hosts - 1) : std::nullopt;
}

int broken_links(const CheckedHosts& checked) {
  return static_cast<int>(std::ranges::count_if(
      checked.links, [](const CheckedLink& link) { return !link.failure.empty(); }));
}

}  // namespace fsdp::doctor
