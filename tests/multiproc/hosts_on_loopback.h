// Starts ranks of several hosts as processes of this machine, which connect over its loopback.
#pragma once

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "multiproc/token_file.h"
#include "support/run_process.h"

namespace fsdp::testing {

// A socket that occupies a port of this machine, and the number of the port.
struct HeldPort {
  Descriptor socket_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  int number = 0;
  HeldPort() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    REQUIRE(bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
    REQUIRE(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
    number = ntohs(address.sin_port);
  }
};

inline std::string free_port() { return std::to_string(HeldPort().number); }

// Returns the variables of a launcher for one of four ranks, with two ranks on each host.
inline Environment rank_of_host(int rank, const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", std::to_string(rank % 2)},
          {"LOCAL_WORLD_SIZE", "2"},
          {"GROUP_RANK", std::to_string(rank / 2)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"FSDP_JOB_TOKEN_FILE", token_file()},
          {"TORCHELASTIC_RESTART_COUNT", "0"}};
}

inline std::vector<Environment> ranks_of_hosts(const std::string& port) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < 4; ++rank) environments.push_back(rank_of_host(rank, port));
  return environments;
}

// Runs one process for each environment, all at the same time. TEST_TIMEOUT_MS has the time-out.
inline std::vector<ProcessResult> run_ranks_by_hand(const std::vector<std::string>& command,
                                                    std::vector<Environment> environments,
                                                    const std::string& timeout_ms) {
  std::vector<Process> processes;
  for (Environment& environment : environments) {
    environment["TEST_TIMEOUT_MS"] = timeout_ms;
    processes.emplace_back(command, environment);
  }
  return wait_for_all(processes, std::chrono::seconds(150));
}

}  // namespace fsdp::testing
