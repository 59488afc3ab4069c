// The flags of fsdp-run for several hosts.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "fsdp_run_ranks.h"
#include "restarts.h"

namespace fsdp {

inline constexpr const char* kRunUsage = "fsdp-run -n N [FLAGS] [--] PROGRAM [ARGUMENTS]";

class HostFlags {
 public:
  void add_to(CLI::App& app);
  // Returns the hosts that the flags describe. `options` and `restarts` have the other flags.
  // Errors: InvalidArgument (64) if the flags do not fit together, (78) if the token file cannot be
  //   used.
  HostOptions hosts(const LaunchOptions& options, const RestartOptions& restarts) const;

 private:
  void check(const HostOptions& hosts, const LaunchOptions& options,
             const RestartOptions& restarts) const;
  void require_all(const HostOptions& hosts) const;
  HostOptions numbers() const;

  std::optional<int> index_, port_;
  std::string nnodes_, address_, token_file_;
  bool no_token_ = false;
};

}  // namespace fsdp
