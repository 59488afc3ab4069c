// Formats the results of check_hosts.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "fsdp/program_text.h"
#include "programs/doctor/check_hosts.h"

namespace fsdp::doctor {
namespace {

constexpr int kReportVersion = 1;

std::string rate_text(double bytes_per_s) {
  if (bytes_per_s == 0) return "–";
  return bytes_per_s < 1e9 ? fmt::format("{:.1f} MB/s", bytes_per_s / 1e6)
                           : fmt::format("{:.2f} GB/s", bytes_per_s / 1e9);
}

}  // namespace

std::string hosts_table(const CheckedHosts& checked) {
  std::string table = fmt::format("{:<6} {:<32} {}\n", "host", "name", "address");
  for (size_t host = 0; host < checked.hosts.size(); ++host) {
    const auto& [name, address] = checked.hosts[host];
    table += fmt::format("{:<6} {:<32} {}\n", host, printable(name), printable(address));
  }
  table += fmt::format("\n{:<6} {:<6} {:>12}", "from", "to", "latency");
  for (const int64_t bytes : kMessageSizes) table += fmt::format(" {:>12}", format_bytes(bytes));
  table += "\n";
  for (const CheckedLink& link : checked.links) {
    table += fmt::format("{:<6} {:<6} ", link.from, link.to);
    if (!link.failure.empty()) {
      table += fmt::format("fails: {}\n", printable(link.failure));
      continue;
    }
    table += fmt::format("{:>9.1f} µs", link.rates.latency_us);
    for (const double rate : link.rates.rates) table += fmt::format(" {:>12}", rate_text(rate));
    table += "\n";
  }
  return table;
}

std::string hosts_json(const CheckedHosts& checked) {
  nlohmann::ordered_json hosts = nlohmann::ordered_json::array();
  for (size_t host = 0; host < checked.hosts.size(); ++host) {
    hosts.push_back({{"host", host},
                     {"name", printable(checked.hosts[host].name)},
                     {"address", checked.hosts[host].address}});
  }
  nlohmann::ordered_json links = nlohmann::ordered_json::array();
  for (const CheckedLink& link : checked.links) {
    nlohmann::ordered_json entry{{"from", link.from}, {"to", link.to}};
    if (!link.failure.empty()) {
      entry["failure"] = printable(link.failure);
    } else {
      entry["latency_us"] = link.rates.latency_us;
      nlohmann::ordered_json rates = nlohmann::ordered_json::array();
      for (size_t size = 0; size < link.rates.rates.size(); ++size) {
        if (link.rates.rates[size] == 0) continue;
        rates.push_back(
            {{"message_bytes", kMessageSizes[size]}, {"bytes_per_second", link.rates.rates[size]}});
      }
      entry["rates"] = std::move(rates);
    }
    links.push_back(std::move(entry));
  }
  const nlohmann::ordered_json report{
      {"version", kReportVersion}, {"hosts", std::move(hosts)}, {"links", std::move(links)}};
  return report.dump(2) + "\n";
}

}  // namespace fsdp::doctor
