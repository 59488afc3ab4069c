// Starts the launchers of two hosts, which are this machine.
#pragma once

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"
#include "multiproc/hosts_on_loopback.h"
#include "multiproc/token_file.h"

namespace fsdp::testing {

using Words = std::vector<std::string>;

inline std::string text_in(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// The launchers of two hosts.
class TwoLaunchers {
 public:
  explicit TwoLaunchers(std::string nnodes = "2") : nnodes_(std::move(nnodes)) {}

  std::string token() const { return token_.path(); }
  std::string folder() const { return folder_.path(); }

  Words flags(int host) const {
    return {"--nnodes",
            nnodes_,
            "--node-rank",
            std::to_string(host),
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port_,
            "--token-file",
            token(),
            "-n",
            "2"};
  }
  // Returns the command of a host's launcher with further flags.
  Words command(int host, const Words& more, const Words& program) const {
    Words command{FSDP_RUN};
    for (const Words& words : {flags(host), more, program}) {
      command.insert(command.end(), words.begin(), words.end());
    }
    return command;
  }
  // Starts the launchers of both hosts with further flags.
  std::vector<Process> start(const Words& more, const Words& program,
                             const Environment& environment = {}) const {
    std::vector<Process> launchers;
    for (const int host : {0, 1}) launchers.emplace_back(command(host, more, program), environment);
    return launchers;
  }
  std::vector<ProcessResult> run(const Words& more, const Words& program,
                                 const Environment& environment = {}) const {
    std::vector<ProcessResult> results;
    for (Process& launcher : start(more, program, environment)) results.push_back(launcher.wait());
    return results;
  }

 private:
  const TemporaryDirectory folder_;
  const TokenFile token_{'x'};
  const std::string port_ = free_port();
  const std::string nnodes_;
};

}  // namespace fsdp::testing
