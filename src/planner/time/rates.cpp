#include "fsdp/rates.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "fsdp/error.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "planner/time/rates_names.h"

namespace fsdp {
namespace {

using nlohmann::json;

constexpr double kGiga = 1e9;
constexpr double kReportVersion = 1;  // of fsdp-doctor's report (programs/doctor/hosts_report.cpp)
constexpr const char* kHint = "docs/rehearsal.md describes the format of a rates file";

// An object of the file, with its place for messages.
class RatesObject {
 public:
  RatesObject(const json& object, std::string place, const std::string& file,
              const char* hint = kHint)
      : object_(object), place_(std::move(place)), file_(file), hint_(hint) {
    if (!object_.is_object()) fail(fmt::format("{} is not an object", what()));
  }

  bool has(const char* key) const { return object_.contains(key); }
  const json& at(const char* key) const {
    if (!has(key)) fail(fmt::format("{} has no \"{}\"", what(), key));
    return object_[key];
  }
  std::string text(const char* key) const {
    const json& value = at(key);
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
      fail(fmt::format("\"{}\" of {} is not a text", key, what()));
    }
    return value.get<std::string>();
  }
  double number(const char* key, bool may_be_zero) const {
    return number_of(at(key), fmt::format("\"{}\" of {}", key, what()), may_be_zero);
  }
  double rate(const char* key) const { return number(key, /*may_be_zero=*/false); }
  double number_of(const json& value, const std::string& name, bool may_be_zero) const {
    const double number = value.is_number() ? value.get<double>() : -1;
    if (number > 0 || (may_be_zero && number == 0)) return number;
    fail(fmt::format("{} is {}, expected a number {} 0", name, value.dump(),
                     may_be_zero ? "of at least" : "above"));
  }
  RatesObject object(const char* key) const { return {at(key), key, file_, hint_}; }
  const json& array(const char* key) const {
    if (!at(key).is_array()) fail(fmt::format("\"{}\" of {} is not an array", key, what()));
    return object_[key];
  }
  RatesObject element(const json& value, std::string place) const {
    return {value, std::move(place), file_, hint_};
  }
  // Refuses a key that is not in the list, because its value would have no effect.
  void allow(std::initializer_list<std::string_view> keys) const {
    for (const auto& [key, value] : object_.items()) {
      if (std::ranges::find(keys, key) == keys.end()) {
        fail(fmt::format("{} has an unknown field \"{}\"", what(), key));
      }
    }
  }
  const json& json_of() const { return object_; }

  [[noreturn]] void fail(std::string text) const {
    throw IoError(ExitCode::kCorruptData, {.what = std::move(text), .where = file_, .hint = hint_});
  }

 private:
  std::string what() const { return place_.empty() ? "the file" : fmt::format("\"{}\"", place_); }

  const json& object_;
  const std::string place_;
  const std::string& file_;
  const char* hint_;
};

// Returns the rates of the type, which are added if they do not exist yet.
TypeRates& type_of(Rates& rates, const RatesObject& object, std::string_view name) {
  const auto* type = std::ranges::find(kRatesTypes, name, &RatesType::name);
  if (type == kRatesTypes.end()) {
    object.fail(
        fmt::format("\"{}\" is no element type, expected float32, bfloat16, float16 or "
                    "float64",
                    name));
  }
  for (TypeRates& each : rates.types) {
    if (each.dtype == type->dtype) return each;
  }
  rates.types.push_back(TypeRates{.dtype = type->dtype});
  return rates.types.back();
}

// Reads a list of pairs of numbers above 0, in ascending order of their first numbers. `what` names
// the list in messages.
template <class Pair>
std::vector<Pair> read_pairs(const RatesObject& object, const json& list, const std::string& what) {
  if (!list.is_array() || list.empty()) object.fail(what + " is not a list of pairs");
  std::vector<Pair> pairs;
  double last = 0;
  for (const json& each : list) {
    if (!each.is_array() || each.size() != 2) object.fail(what + " is not a list of pairs");
    const double first = object.number_of(each[0], "the first number of a pair in " + what, false);
    const double second =
        object.number_of(each[1], "the second number of a pair in " + what, false);
    if (first <= last) object.fail(what + " is not in ascending order");
    pairs.push_back({first, second});
    last = first;
  }
  return pairs;
}

void read_products(Rates& rates, const RatesObject& products) {
  for (const auto& [name, list] : products.json_of().items()) {
    type_of(rates, products, name).products =
        read_pairs<ProductRate>(products, list, fmt::format("\"{}\" of \"products\"", name));
  }
}

std::vector<SizeTime> read_times(const RatesObject& link, const char* key) {
  return read_pairs<SizeTime>(link, link.at(key), fmt::format("\"{}\" of \"link\"", key));
}

void read_links(Rates& rates, const RatesObject& file) {
  for (const json& each : file.array("link")) {
    const RatesObject link = file.element(each, "link");
    const std::string scope = link.text("scope");
    if (scope != "host" && scope != "net") {
      link.fail(fmt::format("\"scope\" of a link is '{}', expected host or net", scope));
    }
    LinkRates& rate = scope == "host" ? rates.host : rates.net;
    if (rate.bytes > 0) link.fail(fmt::format("two links have the scope {}", scope));
    rate = {.bytes = kGiga * link.rate("gbps"), .step_ns = link.number("step_ns", true)};
    if (scope == "host") {
      link.allow({"scope", "gbps", "base_ns", "step_ns", "core", "gathers", "reductions"});
      rates.base_ns = link.number("base_ns", true);
      if (link.has("core")) rate.core = link.number("core", true);
      if (link.has("gathers") || link.has("reductions")) {
        rate.gathers = read_times(link, "gathers");
        rate.reductions = read_times(link, "reductions");
      }
    } else {
      link.allow({"scope", "gbps", "step_ns"});
    }
  }
  if (rates.net.bytes > 0 && rates.host.bytes == 0) {
    file.fail("\"link\" has the scope net, but not the scope host");
  }
}

void read_device(Rates& rates, const RatesObject& device) {
  device.allow(
      {"copy_gbps", "host_ns_per_call", "host_ns_per_kernel", "host_copy_gbps", "transfer_gbps"});
  rates.copy = kGiga * device.rate("copy_gbps");
  rates.host_ns_per_call = device.number("host_ns_per_call", true);
  if (device.has("host_ns_per_kernel")) {
    rates.host_ns_per_kernel = device.number("host_ns_per_kernel", true);
  }
  if (device.has("host_copy_gbps")) rates.host_copy = kGiga * device.rate("host_copy_gbps");
  if (device.has("transfer_gbps")) rates.transfer = kGiga * device.rate("transfer_gbps");
}

void read_cpu(Rates& rates, const RatesObject& cpu) {
  cpu.allow({"cores", "ranks", "threads"});
  rates.cpu = {.cores = static_cast<int>(cpu.rate("cores")),
               .ranks = static_cast<int>(cpu.rate("ranks")),
               .threads = static_cast<int>(cpu.rate("threads"))};
}

void read_kernels(Rates& rates, const RatesObject& kernels) {
  for (const auto& [name, value] : kernels.json_of().items()) {
    if (std::ranges::find(kTimedKernels, name) == kTimedKernels.end()) {
      kernels.fail(fmt::format("\"kernels\" has an unknown kernel \"{}\"", name));
    }
    rates.kernels[name] = kGiga * kernels.rate(name.c_str());
  }
}

void read_residuals(Rates& rates, const RatesObject& file) {
  for (const json& each : file.array("residuals")) {
    const RatesObject row = file.element(each, "residuals");
    row.allow({"rows", "count", "median", "p90", "worst"});
    rates.residuals.push_back({.rows = row.text("rows"),
                               .count = static_cast<int64_t>(row.rate("count")),
                               .median = row.number("median", true),
                               .p90 = row.number("p90", true),
                               .worst = row.number("worst", true)});
  }
}

void read_basis(Rates& rates, const RatesObject& file) {
  if (!file.has("basis")) {
    if (file.has("rows")) file.fail("the file has \"rows\", but no \"basis\"");
    return;
  }
  if (const std::string basis = file.text("basis"); basis != "thin") {
    file.fail(fmt::format("\"basis\" of the file is '{}', expected thin", basis));
  }
  const json& rows = file.at("rows");
  if (!rows.is_number_integer() || rows.get<int64_t>() < 1) {
    file.fail(
        fmt::format("\"rows\" of the file is {}, expected a whole number above 0", rows.dump()));
  }
  rates.thin_rows = rows.get<int64_t>();
}

void read_origins(Rates& rates, const RatesObject& origins) {
  origins.allow({"products", "attention", "copy", "host", "net", "latency", "contention"});
  for (const auto& [name, value] : origins.json_of().items()) {
    const std::string origin = origins.text(name.c_str());
    if (origin != "measured" && origin != "played" && origin != "published" &&
        origin != "assumed") {
      origins.fail(
          fmt::format("the origin of {} is '{}', expected measured, played, published or "
                      "assumed",
                      name, origin));
    }
    rates.origins[name] = origin;
  }
}

}  // namespace

const TypeRates* Rates::find(c10::ScalarType dtype) const {
  const auto found = std::ranges::find(types, dtype, &TypeRates::dtype);
  return found == types.end() ? nullptr : &*found;
}

Rates parse_rates(std::string_view text, const std::string& file) {
  const json document = parse_json({.text = text, .file = file});
  const RatesObject root(document, "", file);
  if (const std::string format = root.text("format"); format != kRatesFormat) {
    root.fail(fmt::format("the format is '{}', expected '{}'", format, kRatesFormat));
  }
  root.allow({"format", "machine", "source", "device", "products", "attention", "peak", "link",
              "contention", "cpu", "kernels", "operators", "residuals", "origins", "basis",
              "rows"});
  Rates rates{.machine = root.text("machine"), .source = root.text("source")};
  read_device(rates, root.object("device"));
  read_products(rates, root.object("products"));
  const auto read_numbers = [&](const char* key, double TypeRates::*field) {
    if (!root.has(key)) return;
    const RatesObject object = root.object(key);
    for (const auto& [name, value] : object.json_of().items()) {
      type_of(rates, object, name).*field = object.rate(name.c_str());
    }
  };
  read_numbers("attention", &TypeRates::attention);
  read_numbers("peak", &TypeRates::peak);
  read_links(rates, root);
  rates.contention = root.number("contention", true);
  if (root.has("cpu")) read_cpu(rates, root.object("cpu"));
  if (root.has("kernels")) read_kernels(rates, root.object("kernels"));
  if (root.has("operators")) {
    const RatesObject operators = root.object("operators");
    for (const auto& [key, ns] : operators.json_of().items()) {
      rates.operators[key] = operators.number(key.c_str(), true);
    }
  }
  if (root.has("residuals")) read_residuals(rates, root);
  read_basis(rates, root);
  if (root.has("origins")) read_origins(rates, root.object("origins"));
  return rates;
}

Rates read_rates(const std::filesystem::path& file) {
  return parse_rates(MappedFile(file).text(), file.string());
}

void set_link_of_hosts(Rates& rates, const std::filesystem::path& report) {
  const std::string file = report.string();
  const MappedFile content(report);
  const json document = parse_json({.text = content.text(), .file = file});
  const RatesObject root(document, "", file, "make it with fsdp-doctor --nnodes H --out FILE");
  if (const double version = root.number("version", true); version != kReportVersion) {
    root.fail(fmt::format("the version is {}, expected {}", version, kReportVersion));
  }
  if (rates.host.bytes == 0) root.fail("the rates have no link of the scope host");
  LinkRates slowest;
  for (const json& each : root.array("links")) {
    const RatesObject link = root.element(each, "links");
    if (link.has("failure")) {
      link.fail(fmt::format("the connection from host {:.0f} to host {:.0f} failed",
                            link.number("from", true), link.number("to", true)));
    }
    slowest.step_ns = std::max(slowest.step_ns, link.rate("latency_us") * 1e3);
    double best = 0;
    for (const json& rate : link.array("rates")) {
      best = std::max(best, link.element(rate, "rates").rate("bytes_per_second"));
    }
    if (best == 0) link.fail("a connection was not measured");
    slowest.bytes = slowest.bytes == 0 ? best : std::min(slowest.bytes, best);
  }
  if (slowest.bytes == 0) root.fail("the report has no connection");
  rates.net = slowest;
  rates.origins["net"] = "measured";
}

}  // namespace fsdp
