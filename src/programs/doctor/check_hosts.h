// Checks whether the hosts of a job reach each other, and measures the connections between them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/environment.h"
#include "fsdp/mesh.h"
#include "programs/doctor/link_rates.h"

namespace fsdp::doctor {

struct CheckedHost {
  std::string name;
  std::string address;  // by which other hosts reach it (route_address)
};

// One direction between two hosts: `from` connects to `to` and sends.
struct CheckedLink {
  int from = 0, to = 0;
  LinkRates rates{};
  std::string failure{};  // empty if the connection works
};

struct CheckedHosts {
  std::vector<CheckedHost> hosts;  // by number
  std::vector<CheckedLink> links;  // each ordered pair of hosts
};

struct HostsTimes {
  std::chrono::milliseconds start{60'000};       // until all hosts have arrived
  std::chrono::milliseconds connection{5'000};   // until a connection is open
  std::chrono::milliseconds all_links{100'000};  // links that begin later are not measured
  std::chrono::milliseconds longest_size{200};   // for messages of one size
};

// Measures all links between hosts. All hosts call this function at the same time and get the same
// result. The hosts are the ranks of `environment`, one on each host. Pairs of hosts that have no
// host in common are measured at the same time.
// Errors: those of open_job_store and route_address. CommError if a host does not arrive, or
//   leaves.
CheckedHosts check_hosts(const LaunchEnvironment& environment, const MeshOptions& options,
                         const HostsTimes& times = {});

// Returns the other host of `host` in this round, or nothing. In the rounds from 0 to
// rounds_of(hosts) - 1, each host has each other host once.
std::optional<int> partner_of(int host, int round, int hosts);
int rounds_of(int hosts);

// Returns a table of hosts and one of links, in lines for a terminal.
std::string hosts_table(const CheckedHosts& checked);
// Returns the same as JSON: {"version": 1, "hosts": […], "links": […]}.
std::string hosts_json(const CheckedHosts& checked);
// Returns the number of links that do not work.
int broken_links(const CheckedHosts& checked);

}  // namespace fsdp::doctor
