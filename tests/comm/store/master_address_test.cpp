#include "comm/store/master_address.h"

#include <doctest/doctest.h>

#include "base/descriptor.h"
#include "comm/mesh_parts.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

constexpr auto kAtOnce = std::chrono::milliseconds(0);

LaunchEnvironment rank_at(const std::string& master, const std::string& own = {}) {
  return {
      .rank = 1, .world_size = 2, .master_addr = master, .master_port = 29500, .own_address = own};
}

bool is_refused(const LaunchEnvironment& environment, std::string_view text) {
  try {
    route_address(environment, kAtOnce);
  } catch (const InvalidArgument& error) {
    CAPTURE(error.what());
    CHECK(error.exit_code() == 78);
    return std::string(error.what()).find(text) != std::string::npos;
  }
  return false;
}

TEST_CASE("the route to a loopback address begins at a loopback address") {
  CHECK(route_address(rank_at("127.0.0.1"), kAtOnce) == "127.0.0.1");
  CHECK(route_address(rank_at("localhost"), kAtOnce) ==
        find_master(rank_at("localhost"), kAtOnce).addresses.front().host());
  const MasterAddress master = find_master(rank_at("127.0.0.1"), kAtOnce);
  CHECK(master.addresses.front().text() == "127.0.0.1:29500");
  CHECK(master.addresses.front().is_loopback());
}

// Returns true if this machine has IPv6.
bool has_ipv6() {
  const Descriptor socket(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const TcpAddress loopback = find_addresses("::1", 0).addresses.front();
  return socket && bind(socket.get(), loopback.get(), loopback.size()) == 0;
}

TEST_CASE("addresses may be of IPv6") {
  const TcpAddress address = find_addresses("::1", 29500).addresses.front();
  CHECK(address.text() == "[::1]:29500");
  CHECK(address.is_loopback());
  CHECK_FALSE(address.is_wildcard());
  CHECK(find_addresses("::", 0).addresses.front().is_wildcard());
  if (has_ipv6()) CHECK(route_address(rank_at("::1"), kAtOnce) == "::1");
}

TEST_CASE("FSDP_ADDRESS replaces the route, and must be an address of this host") {
  CHECK(route_address(rank_at("10.1.2.3", "127.0.0.1"), kAtOnce) == "127.0.0.1");
  CHECK(is_refused(rank_at("10.1.2.3", "eth0"), "FSDP_ADDRESS='eth0' is not an IP address"));
  for (const std::string other : {"203.0.113.7", "0.0.0.0", "::"}) {
    CHECK(is_refused(rank_at("10.1.2.3", other),
                     "FSDP_ADDRESS=" + other + " is not an address of this host"));
  }
}

TEST_CASE("a master that names no host, or nothing, is refused") {
  CHECK(is_refused(rank_at("no-such-host.invalid"), "no-such-host.invalid does not resolve"));
  CHECK(is_refused(rank_at("0.0.0.0"), "MASTER_ADDR=0.0.0.0 names no host"));
  CHECK(is_refused(rank_at(""), "MASTER_ADDR is not set"));
}

// Debian gives a machine's own name the address 127.0.1.1.
TEST_CASE("a name that is a loopback address on this host needs FSDP_ADDRESS") {
  const FoundAddresses own = find_addresses(host_name(), 0);
  if (own.addresses.empty() || !own.addresses.front().is_loopback()) return;
  CHECK(is_refused(rank_at(host_name()), "on this host, which other hosts cannot reach"));
  const MasterAddress master = find_master(rank_at(host_name(), "127.0.0.1"), kAtOnce);
  CHECK(master.host == "127.0.0.1");
  CHECK(master.addresses.front().text() == "127.0.0.1:29500");
}

}  // namespace
}  // namespace fsdp
