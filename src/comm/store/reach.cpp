#include "comm/store/reach.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "comm/store/tcp_address.h"
#include "comm/store/tcp_socket.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

std::vector<std::string> hosts_of(const FoundAddresses& found) {
  std::vector<std::string> hosts;
  for (const TcpAddress& each : found.addresses) hosts.push_back(each.host());
  return hosts;
}

}  // namespace

Reach reach_of(const std::string& host, int port, milliseconds at_most) {
  const FoundAddresses found = find_addresses(host, port);
  if (found.addresses.empty()) {
    return {
        .text = fmt::format("{} does not resolve on this host: {}", host, found.why_none),
        .hint = "set MASTER_ADDR on all ranks to a name or address that resolves on every host"};
  }
  // All addresses of the host share one deadline.
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  int error = ETIMEDOUT;
  // The loop ends when an address answers. If none answers, the last error is reported.
  for (const TcpAddress& each : found.addresses) {
    if (error == 0) break;
    const auto left = deadline - std::chrono::steady_clock::now();
    error = connect_within(
                each, std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(left)))
                .error;
  }
  const std::string addresses = fmt::format("{}", fmt::join(hosts_of(found), ", "));
  const std::string at = addresses == host ? host : fmt::format("{} ({})", host, addresses);
  if (error == 0) {
    return {.resolves = true,
            .text = fmt::format(
                "the process that listens at {} on port {} does not answer as the ranks' store", at,
                port),
            .hint = "set another MASTER_PORT on all ranks: another program uses the port"};
  }
  if (error == ECONNREFUSED) {
    return {.resolves = true,
            .text = fmt::format("nothing listens at {} on port {}", at, port),
            .hint = "start rank 0, or its launcher, there with this MASTER_PORT"};
  }
  return {
      .resolves = true,
      .text = fmt::format("port {} of {} cannot be reached: {}", port, at,
                          std::generic_category().message(error)),
      .hint = "check that the host is up and its port is open to this host (firewall, network)"};
}

}  // namespace fsdp
