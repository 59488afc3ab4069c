// Tests ranks of several hosts that connect through LibTorch's store. They are real processes on
// this machine.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

#include "comm/descriptor.h"
#include "launch.h"

namespace fsdp::testing {
namespace {

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

std::string free_port() { return std::to_string(HeldPort().number); }

// Returns the variables that torchrun sets for one of four ranks, with two ranks on each host.
Environment rank_of_host(int rank, const std::string& port) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", std::to_string(rank % 2)},
          {"LOCAL_WORLD_SIZE", "2"},
          {"GROUP_RANK", std::to_string(rank / 2)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", port},
          {"TORCHELASTIC_RESTART_COUNT", "0"}};
}

std::vector<Environment> ranks_of_hosts(const std::string& port) {
  std::vector<Environment> environments;
  for (int rank = 0; rank < 4; ++rank) environments.push_back(rank_of_host(rank, port));
  return environments;
}

std::vector<ProcessResult> run(std::vector<Environment> environments,
                               const std::vector<std::string>& words,
                               const std::string& timeout_ms = "20000") {
  std::vector<std::string> command{TORCH_RANK, "host"};
  command.insert(command.end(), words.begin(), words.end());
  std::vector<Process> processes;
  for (Environment& environment : environments) {
    environment["TEST_TIMEOUT_MS"] = timeout_ms;
    processes.emplace_back(command, environment);
  }
  std::vector<ProcessResult> results(processes.size());
  std::vector<std::thread> waiters;
  for (size_t i = 0; i < processes.size(); ++i) {
    waiters.emplace_back([&, i] { results[i] = processes[i].wait(); });
  }
  for (std::thread& waiter : waiters) waiter.join();
  return results;
}

bool has_text(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("processes of several hosts meet at rank 0's store, and leave it in any order") {
  const std::string port = free_port();
  for (int start = 0; start < 2; ++start) {  // the second start uses the same port
    for (const ProcessResult& result : run(ranks_of_hosts(port), {"20"})) {
      CHECK(result.err == "");
      CHECK(result.out == "0.20 1.20 2.20 3.20\n");
      CHECK(result.code == 0);
    }
  }
}

TEST_CASE("a process that dies is named on its host and on the other, within seconds") {
  for (const int dies : {0, 1, 3}) {
    CAPTURE(dies);
    const auto results =
        run(ranks_of_hosts(free_port()), {"1000000", "kill", std::to_string(dies), "5"});
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == dies) continue;
      CAPTURE(results[rank].err);
      CHECK(results[rank].code == 75);
      CHECK(results[rank].seconds < 10 * kPatience);
      CHECK(has_text(results[rank].err, "rank " + std::to_string(dies)));
    }
  }
}

// Rank 2 is on the host of the dead process and can see its end, but is busy elsewhere. The ranks
// that wait for the dead rank are on the other host.
TEST_CASE("a process that dies is told to the other host by one of its own that waits for nobody") {
  const auto results = run(ranks_of_hosts(free_port()), {"1000000", "kill", "3", "5", "2"});
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(results[rank].err);
    CHECK(results[rank].code == 75);
    CHECK(results[rank].seconds < 10 * kPatience);
    CHECK(has_text(results[rank].err, "rank 3 died: its process (pid "));
    CHECK(lines_with(results[rank].err, "\n") == 1);
  }
}

TEST_CASE("a rank that gives up is the cause on both hosts") {
  const auto results = run(ranks_of_hosts(free_port()), {"1000000", "throw", "2", "5"});
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(results[rank].err);
    CHECK(results[rank].code == (rank == 2 ? 74 : 75));
    CHECK(has_text(results[rank].err, "the disk is full"));
  }
}

TEST_CASE("a rank that is stopped is named when the time is over") {
  const std::string port = free_port();
  auto environments = ranks_of_hosts(port);
  environments.pop_back();
  Environment guilty = rank_of_host(3, port);
  guilty["TEST_TIMEOUT_MS"] = "2000";
  const Process stops({TORCH_RANK, "host", "1000000", "stop", "3", "5"}, guilty);
  for (const ProcessResult& result : run(environments, {"1000000"}, "2000")) {
    CAPTURE(result.err);
    CHECK(result.code == 75);
    CHECK(result.seconds < 12 * kPatience);
    CHECK(has_text(result.err, "rank 3"));
  }
}

TEST_CASE("an address at which nobody serves a store is refused on every rank") {
  auto unknown = ranks_of_hosts(free_port());
  for (Environment& environment : unknown) environment["MASTER_ADDR"] = "no-such-host.invalid";
  const HeldPort held;
  REQUIRE(listen(held.socket_.get(), 64) == 0);  // it accepts no connection
  const std::vector<Environment> alone{rank_of_host(1, free_port())};
  struct Nowhere {
    std::vector<Environment> environments;
    std::string why, hint;
  };
  for (const auto& [environments, why, hint] :
       {Nowhere{unknown, "no-such-host.invalid does not resolve on this host: ",
                "set MASTER_ADDR on all ranks"},
        {ranks_of_hosts(std::to_string(held.number)),
         "the process that listens at 127.0.0.1 on port ",
         {}},
        {alone, "nothing listens at 127.0.0.1 on port ", "start rank 0, or its launcher"}}) {
    for (const ProcessResult& result : run(environments, {"5"}, "1500")) {
      CAPTURE(result.err);
      const bool is_server = has_text(result.err, "if the port is in use");
      CHECK((is_server || has_text(result.err, why)));
      CHECK((is_server || has_text(result.err, "hint: " + hint)));
      CHECK(result.code == 78);
      CHECK(has_text(result.err, "rendezvous at "));
      CHECK(has_text(result.err, "MASTER_ADDR, MASTER_PORT"));
      CHECK(lines_with(result.err, "\n") == 1);
    }
  }
}

TEST_CASE("what a rank lacks to meet others of several hosts is named") {
  for (const std::string name : {"MASTER_ADDR", "MASTER_PORT"}) {
    Environment environment = rank_of_host(1, "29511");
    environment[name] = "";
    const ProcessResult result = run({environment}, {"5"}).front();
    CHECK(result.code == 78);
    CHECK(has_text(result.err, name + " is not set"));
  }
  auto one_missing = ranks_of_hosts(free_port());
  one_missing.erase(one_missing.begin() + 2);
  for (const ProcessResult& result : run(one_missing, {"5"}, "1500")) {
    CAPTURE(result.err);
    CHECK(result.code == 78);
    CHECK(has_text(result.err, "rank 2 of 4 did not arrive within 1.5 s"));
  }
}

}  // namespace
}  // namespace fsdp::testing
