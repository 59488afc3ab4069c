// Tests ranks of several hosts that connect through rank 0's store. They are real processes on this
// machine.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "launch.h"
#include "multiproc/hosts_on_loopback.h"
#include "multiproc/token_file.h"

namespace fsdp::testing {
namespace {

std::vector<ProcessResult> run(const std::vector<Environment>& environments,
                               const std::vector<std::string>& words,
                               const std::string& timeout_ms = "20000") {
  std::vector<std::string> command{TORCH_RANK, "host"};
  command.insert(command.end(), words.begin(), words.end());
  return run_ranks_by_hand(command, environments, timeout_ms);
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

TEST_CASE("a rank with another token ends at once, and names its file and the store") {
  const std::string port = free_port();
  auto environments = ranks_of_hosts(port);
  environments[2]["FSDP_JOB_TOKEN_FILE"] = "";
  const TokenFile other('o');
  environments[3]["FSDP_JOB_TOKEN_FILE"] = other.path();
  const auto results = run(environments, {"5"}, "3000");
  const std::vector<std::string> told = {
      "rank 2 of 4 did not arrive within 3.0 s", "rank 2 of 4 did not arrive within 3.0 s",
      "ranks of several hosts need a token, but FSDP_JOB_TOKEN_FILE is not set",
      "the ranks' store at 127.0.0.1:" + port +
          " does not accept this rank's token (FSDP_JOB_TOKEN_FILE=" + other.path() +
          "); hint: copy rank 0's token file to this host"};
  for (size_t rank = 0; rank < results.size(); ++rank) {
    CAPTURE(results[rank].err);
    CHECK(results[rank].code == 78);
    CHECK(lines_with(results[rank].err, "\n") == 1);
    CHECK(has_text(results[rank].err, told[rank]));
    CHECK(results[rank].seconds < 10 * kPatience);
  }
}

TEST_CASE("without a token rank 0 warns once, and a job with FSDP_NO_TOKEN=1 runs") {
  const std::string port = free_port();
  auto environments = ranks_of_hosts(port);
  for (Environment& environment : environments) {
    environment["FSDP_JOB_TOKEN_FILE"] = "";
    environment["FSDP_NO_TOKEN"] = "1";
  }
  const auto results = run(environments, {"20"});
  for (size_t rank = 0; rank < results.size(); ++rank) {
    CHECK(results[rank].out == "0.20 1.20 2.20 3.20\n");
    CHECK(lines_with(results[rank].err, "\n") == (rank == 0 ? 1 : 0));
  }
  CHECK(has_text(results[0].err, "any process that reaches 127.0.0.1:" + port + " can join"));
}

// Returns the local addresses, as /proc/net/tcp writes them, of listeners at the port.
std::vector<std::string> listeners_at(const std::string& port) {
  std::vector<std::string> found;
  for (const char* const table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(table);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state != "0A" || colon == std::string::npos) continue;
      const int at = std::stoi(local.substr(colon + 1), nullptr, 16);
      if (std::to_string(at) == port) found.push_back(local.substr(0, colon));
    }
  }
  return found;
}

TEST_CASE("the store of a job listens at 127.0.0.1 alone, whatever strangers do there") {
  const std::string port = free_port();
  std::vector<Process> processes;
  for (Environment& environment : ranks_of_hosts(port)) {
    environment["TEST_TIMEOUT_MS"] = "20000";
    processes.emplace_back(std::vector<std::string>{TORCH_RANK, "host", "300"}, environment);
  }
  std::vector<std::string> listeners;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (listeners.empty() && std::chrono::steady_clock::now() < give_up) {
    listeners = listeners_at(port);
  }
  CHECK(listeners == std::vector<std::string>{"0100007F"});
  // Strangers flood the port with silent connections and noise while the ranks work.
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 500; ++i) {
    strangers.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    if (connect(strangers.back().get(), reinterpret_cast<const sockaddr*>(&address),
                sizeof address) != 0) {
      break;  // the job has ended
    }
    if (i % 2 == 0) send(strangers.back().get(), "noise", 5, MSG_NOSIGNAL);
  }
  for (Process& process : processes) {
    const ProcessResult result = process.wait();
    CAPTURE(result.err);
    CHECK(result.code == 0);
    CHECK(result.out == "0.300 1.300 2.300 3.300\n");
  }
}

}  // namespace
}  // namespace fsdp::testing
