#include "comm/store/master_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/descriptor.h"
#include "comm/store/reach.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;

constexpr auto kBetweenLookUps = milliseconds(200);

bool names_loopback(const std::string& host) {
  return is_numeric_host(host) || host.find("localhost") != std::string::npos;
}

Descriptor datagram_socket(const TcpAddress& address) {
  return Descriptor(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

// Returns the address that FSDP_ADDRESS names, with the given port.
TcpAddress own_address(const LaunchEnvironment& environment, int port) {
  const std::string& host = environment.own_address;
  const auto refuse = [&](std::string what) {
    throw InvalidArgument({.what = std::move(what),
                           .where = "environment",
                           .hint = "set FSDP_ADDRESS to an IP address of this host (ip address "
                                   "lists them), or unset it"});
  };
  if (!is_numeric_host(host)) refuse(fmt::format("FSDP_ADDRESS='{}' is not an IP address", host));
  const TcpAddress address = find_addresses(host, port).addresses.front();
  // Only an address of this host can be bound. Port 0 is always free.
  const TcpAddress any_port = find_addresses(host, 0).addresses.front();
  const Descriptor socket = datagram_socket(address);
  if (address.is_wildcard() || bind(socket.get(), any_port.get(), any_port.size()) != 0) {
    refuse(fmt::format("FSDP_ADDRESS={} is not an address of this host", host));
  }
  return address;
}

}  // namespace

void require_master(const LaunchEnvironment& environment) {
  const auto refuse = [&](const char* name) {
    throw InvalidArgument(
        {.what = fmt::format("{} is not set, but the ranks are on several hosts "
                             "(LOCAL_WORLD_SIZE={}, WORLD_SIZE={})",
                             name, environment.local_world_size, environment.world_size),
         .where = "environment",
         .hint = "set MASTER_ADDR and MASTER_PORT to rank 0's address (torchrun sets them, mpirun "
                 "-x passes them on)"});
  };
  if (environment.master_addr.empty()) refuse("MASTER_ADDR");
  if (!environment.master_port) refuse("MASTER_PORT");
}

MasterAddress find_master(const LaunchEnvironment& environment, milliseconds within) {
  const std::string& host = environment.master_addr;
  const int port = *environment.master_port;
  const auto deadline = std::chrono::steady_clock::now() + within;
  FoundAddresses found = find_addresses(host, port);
  while (found.addresses.empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kBetweenLookUps);
    found = find_addresses(host, port);
  }
  if (found.addresses.empty()) {
    Reach reach = reach_of(host, port, milliseconds(0));
    throw InvalidArgument({.what = fmt::format("rendezvous at {}:{} failed", host, port),
                           .where = "MASTER_ADDR, MASTER_PORT",
                           .cause = std::move(reach.text),
                           .hint = std::move(reach.hint)});
  }
  if (found.addresses.front().is_wildcard()) {
    throw InvalidArgument({.what = fmt::format("MASTER_ADDR={} names no host", host),
                           .where = "environment",
                           .hint = "set MASTER_ADDR to an address of rank 0's host"});
  }
  if (names_loopback(host)) {
    return {.host = host, .port = port, .addresses = std::move(found.addresses)};
  }
  const std::string loopback = found.addresses.front().host();
  std::erase_if(found.addresses, [](const TcpAddress& each) { return each.is_loopback(); });
  if (!found.addresses.empty()) {
    return {.host = host, .port = port, .addresses = std::move(found.addresses)};
  }
  if (environment.own_address.empty()) {
    throw InvalidArgument(
        {.what = fmt::format("MASTER_ADDR={} is {} on this host, which other hosts cannot reach",
                             host, loopback),
         .where = "environment",
         .hint = "set MASTER_ADDR to an IP address of this host on all ranks, or FSDP_ADDRESS on "
                 "this host"});
  }
  return {
      .host = environment.own_address, .port = port, .addresses = {own_address(environment, port)}};
}

std::string route_address(const LaunchEnvironment& environment, milliseconds within) {
  require_master(environment);
  if (!environment.own_address.empty()) return own_address(environment, 0).host();
  const MasterAddress master = find_master(environment, within);
  int error = 0;
  for (const TcpAddress& address : master.addresses) {
    // A connect of a datagram socket sends nothing. It only chooses the route.
    const Descriptor socket = datagram_socket(address);
    if (socket && connect(socket.get(), address.get(), address.size()) == 0) {
      return address_of_socket(socket.get()).host();
    }
    error = errno;
  }
  throw InvalidArgument(
      {.what = fmt::format("this host has no route to MASTER_ADDR={}", environment.master_addr),
       .where = "environment",
       .cause = std::strerror(error),
       .hint = "check the network of this host, or set FSDP_ADDRESS to its address"});
}

}  // namespace fsdp
