#include "programs/doctor/check_hosts.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "comm/store/tcp_socket.h"
#include "fsdp/error.h"

namespace fsdp::doctor {
namespace {

using std::chrono::milliseconds;

TEST_CASE("in the rounds of a check each host has each other host once") {
  for (int hosts = 2; hosts <= 9; ++hosts) {
    CAPTURE(hosts);
    for (int host = 0; host < hosts; ++host) {
      std::set<int> partners;
      for (int round = 0; round < rounds_of(hosts); ++round) {
        const auto partner = partner_of(host, round, hosts);
        if (!partner) continue;
        CHECK(partner_of(*partner, round, hosts) == host);
        partners.insert(*partner);
      }
      CHECK(partners.size() == static_cast<size_t>(hosts - 1));
      CHECK_FALSE(partners.contains(host));
    }
  }
}

int free_port() {
  const OpenedSocket opened = listen_at(find_addresses("127.0.0.1", 0).addresses.front());
  return address_of_socket(opened.socket.get()).port();
}

// Runs the check on `hosts` hosts, which are threads. Returns what each one returned.
std::vector<CheckedHosts> check_as_threads(int hosts) {
  const int port = free_port();
  std::vector<CheckedHosts> results(static_cast<size_t>(hosts));
  std::vector<std::thread> threads;
  for (int host = 0; host < hosts; ++host) {
    threads.emplace_back([&, host] {
      results[static_cast<size_t>(host)] =
          check_hosts({.rank = host,
                       .world_size = hosts,
                       .master_addr = "127.0.0.1",
                       .master_port = port,
                       .no_token = true,
                       .own_address = "127.0.0." + std::to_string(host + 1)},
                      {}, {.longest_size = milliseconds(2)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST_CASE("hosts measure each connection in both directions, and all get the same result") {
  const std::vector<CheckedHosts> results = check_as_threads(3);
  for (const CheckedHosts& checked : results) {
    CHECK(hosts_json(checked) == hosts_json(results.front()));
  }
  const CheckedHosts& checked = results.front();
  CHECK(broken_links(checked) == 0);
  REQUIRE(checked.links.size() == 6);
  for (const CheckedLink& link : checked.links) {
    CHECK(link.failure == "");
    CHECK(link.rates.latency_us > 0);
    REQUIRE(link.rates.rates.size() == kMessageSizes.size());
    CHECK(link.rates.rates.front() > 0);
  }
  const auto report = nlohmann::json::parse(hosts_json(checked));
  CHECK(report.at("version") == 1);
  CHECK(report.at("hosts").at(2).at("address") == "127.0.0.3");
  CHECK(report.at("links").at(1).at("to") == 2);
  CHECK(report.at("links").at(1).at("rates").at(0).at("message_bytes") == 4096);
  CHECK(hosts_table(checked).find("\nfrom   to") != std::string::npos);
}

TEST_CASE("a host that does not arrive is named") {
  const LaunchEnvironment alone{.rank = 0,
                                .world_size = 3,
                                .master_addr = "127.0.0.1",
                                .master_port = free_port(),
                                .no_token = true};
  CHECK_THROWS_WITH_AS(check_hosts(alone, {}, {.start = milliseconds(50)}),
                       doctest::Contains("host 1, 2 of 3 did not arrive within 0 s"), CommError);
}

TEST_CASE("a connection that fails has its reason in the table and in the file") {
  const CheckedHosts checked{
      .hosts = {{.name = "a", .address = "10.0.0.1"}, {.name = "b", .address = "10.0.0.2"}},
      .links = {
          {.from = 0, .to = 1, .rates = {.latency_us = 45.06, .rates = {8e7, 1.1e9, 1.17e9, 0}}},
          {.from = 1, .to = 0, .failure = "Connection timed out"}}};
  CHECK(broken_links(checked) == 1);
  CHECK(hosts_table(checked) ==
        "host   name                             address\n"
        "0      a                                10.0.0.1\n"
        "1      b                                10.0.0.2\n"
        "\n"
        "from   to          latency      4.0 KiB     64.0 KiB      1.0 MiB     16.0 MiB\n"
        "0      1           45.1 µs    80.0 MB/s    1.10 GB/s    1.17 GB/s            –\n"
        "1      0      fails: Connection timed out\n");
  const auto links = nlohmann::json::parse(hosts_json(checked)).at("links");
  CHECK(links.at(0).at("rates").size() == 3);
  CHECK(links.at(1) == nlohmann::json{{"from", 1}, {"to", 0}, {"failure", "Connection timed out"}});
}

}  // namespace
}  // namespace fsdp::doctor
