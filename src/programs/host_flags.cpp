#include "host_flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <string_view>
#include <vector>

#include "comm/store/store_token.h"
#include "programs/command_line.h"

namespace fsdp {
namespace {

constexpr int kMostRanks = 1 << 16;

std::optional<int> number_of_hosts(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  return is_number && value >= 1 && value <= kMostRanks ? std::optional(value) : std::nullopt;
}

}  // namespace

void HostFlags::add_to(CLI::App& app) {
  app.add_option("--nnodes", nnodes_);
  app.add_option("--node-rank,--node_rank", index_)->check(CLI::Range(0, kMostRanks));
  app.add_option("--master-addr,--master_addr", address_);
  app.add_option("--master-port,--master_port", port_)->check(CLI::Range(1, 65535));
  app.add_option("--token-file,--token_file", token_file_);
  app.add_flag("--no-token,--no_token", no_token_);
}

// Returns the numbers of hosts that --nnodes names: "2", or "1:2".
HostOptions HostFlags::numbers() const {
  if (nnodes_.empty()) return {};
  const size_t colon = nnodes_.find(':');
  const auto most = number_of_hosts(colon == nnodes_.npos ? nnodes_ : nnodes_.substr(colon + 1));
  const auto least = number_of_hosts(nnodes_.substr(0, colon));
  if (!least || !most || *least > *most) {
    refuse_usage(fmt::format("--nnodes {} is no number of hosts", nnodes_),
                 fmt::format("use --nnodes H, or --nnodes MIN:MAX with --max-restarts; at most {}",
                             kMostRanks));
  }
  return {.least = *least, .most = *most, .count = *most};
}

void HostFlags::require_all(const HostOptions& hosts) const {
  std::vector<std::string> set, missing;
  const auto look = [&](const char* name, bool is_set) {
    (is_set ? set : missing).emplace_back(name);
  };
  look("--node-rank", index_.has_value());
  look("--master-addr", !address_.empty());
  look("--master-port", port_.has_value());
  look("--token-file or --no-token", no_token_ || !token_file_.empty());
  if (nnodes_.empty() && !set.empty()) {
    refuse_usage(fmt::format("{} needs --nnodes", set.front()),
                 "add --nnodes H, the number of hosts");
  }
  // On one host, --nnodes 1 alone is enough.
  if (!missing.empty() && (hosts.most > 1 || !set.empty())) {
    refuse_usage(fmt::format("--nnodes {} needs {}", nnodes_, fmt::join(missing, ", ")),
                 "see fsdp-run --help");
  }
}

void HostFlags::check(const HostOptions& hosts, const LaunchOptions& options,
                      const RestartOptions& restarts) const {
  require_all(hosts);
  if (no_token_ && !token_file_.empty()) {
    refuse_usage("--token-file and --no-token are both set", "use one of them");
  }
  if (index_.value_or(0) >= hosts.most) {
    refuse_usage(fmt::format("--node-rank {}, expected less than --nnodes {}", *index_, hosts.most),
                 "number the hosts from 0");
  }
  if (int64_t{hosts.most} * options.ranks > kMostRanks) {
    refuse_usage(fmt::format("--nnodes {} with -n {} makes more than {} ranks", nnodes_,
                             options.ranks, kMostRanks),
                 "use fewer ranks");
  }
  if (hosts.least < hosts.most && options.max_restarts == 0) {
    refuse_usage(fmt::format("--nnodes {} needs restarts", nnodes_), "add --max-restarts N");
  }
  if (hosts.most > 1 && restarts.min_ranks > 0) {
    refuse_usage("--min-ranks needs one host", "use --nnodes MIN:MAX");
  }
}

HostOptions HostFlags::hosts(const LaunchOptions& options, const RestartOptions& restarts) const {
  HostOptions hosts = numbers();
  check(hosts, options, restarts);
  if (address_.empty()) return {};
  hosts.number = hosts.index = *index_;
  hosts.address = address_;
  hosts.port = *port_;
  hosts.token_file = no_token_ ? "" : std::filesystem::absolute(token_file_).string();
  hosts.agree_on_starts = hosts.most > 1 && options.max_restarts > 0;
  // The ranks read the token later. This call reports a wrong file before any rank starts.
  read_token({.job_token_file = hosts.token_file, .no_token = no_token_});
  return hosts;
}

}  // namespace fsdp
