// Writes rates files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "fsdp/rates.h"
#include "planner/time/rates_names.h"

namespace fsdp {
namespace {

// Fields keep their order.
using Fields = nlohmann::ordered_json;

double gbps(double bytes) { return bytes / 1e9; }

std::string_view type_name(c10::ScalarType dtype) {
  return std::ranges::find(kRatesTypes, dtype, &RatesType::dtype)->name;
}

Fields pairs(const std::vector<SizeTime>& times) {
  Fields list = Fields::array();
  for (const SizeTime& each : times) list.push_back({each.bytes, each.ns});
  return list;
}

Fields device_of(const Rates& rates) {
  Fields device{{"copy_gbps", gbps(rates.copy)}, {"host_ns_per_call", rates.host_ns_per_call}};
  if (rates.host_ns_per_kernel > 0) device["host_ns_per_kernel"] = rates.host_ns_per_kernel;
  if (rates.host_copy > 0) device["host_copy_gbps"] = gbps(rates.host_copy);
  if (rates.transfer > 0) device["transfer_gbps"] = gbps(rates.transfer);
  return device;
}

void add_types(Fields& file, const Rates& rates) {
  file["products"] = Fields::object();
  for (const TypeRates& type : rates.types) {
    const std::string name(type_name(type.dtype));
    if (type.attention > 0) file["attention"][name] = type.attention;
    if (type.peak > 0) file["peak"][name] = type.peak;
    for (const ProductRate& each : type.products) {
      file["products"][name].push_back({each.side, each.flops});
    }
  }
}

Fields links_of(const Rates& rates) {
  Fields links = Fields::array();
  if (rates.host.bytes > 0) {
    Fields host{{"scope", "host"},
                {"gbps", gbps(rates.host.bytes)},
                {"base_ns", rates.base_ns},
                {"step_ns", rates.host.step_ns}};
    if (!rates.host.gathers.empty()) {
      host["core"] = rates.host.core;
      host["gathers"] = pairs(rates.host.gathers);
      host["reductions"] = pairs(rates.host.reductions);
    }
    links.push_back(std::move(host));
  }
  if (rates.net.bytes > 0) {
    links.push_back(
        {{"scope", "net"}, {"gbps", gbps(rates.net.bytes)}, {"step_ns", rates.net.step_ns}});
  }
  return links;
}

}  // namespace

std::string to_json(const Rates& rates) {
  Fields file{{"format", kRatesFormat},
              {"machine", rates.machine},
              {"source", rates.source},
              {"device", device_of(rates)}};
  add_types(file, rates);
  file["link"] = links_of(rates);
  file["contention"] = rates.contention;
  if (rates.cpu.cores > 0) {
    file["cpu"] = {
        {"cores", rates.cpu.cores}, {"ranks", rates.cpu.ranks}, {"threads", rates.cpu.threads}};
  }
  for (const auto& [name, bytes] : rates.kernels) file["kernels"][name] = gbps(bytes);
  for (const auto& [key, ns] : rates.operators) file["operators"][key] = ns;
  for (const RatesResidual& each : rates.residuals) {
    file["residuals"].push_back({{"rows", each.rows},
                                 {"count", each.count},
                                 {"median", each.median},
                                 {"p90", each.p90},
                                 {"worst", each.worst}});
  }
  for (const auto& [name, origin] : rates.origins) file["origins"][name] = origin;
  if (rates.thin_rows > 0) {
    file["basis"] = "thin";
    file["rows"] = rates.thin_rows;
  }
  return file.dump(1) + '\n';
}

}  // namespace fsdp
