#include "planning/time_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace planning {
namespace {

constexpr double kGiga = 1e9;

std::string text_of(int64_t ns) { return seconds_text(static_cast<double>(ns) / 1e9); }

// Returns "assumed", or nothing if the origin of the rate is not known.
std::string origin_of(const fsdp::Rates& rates, const std::string& name) {
  const auto found = rates.origins.find(name);
  return found == rates.origins.end() ? "" : found->second;
}

std::string link_of(const fsdp::CollectiveUse& use) { return use.net_limits() ? "net" : "host"; }

std::string cause_of(const fsdp::Rates& rates, const fsdp::CollectiveUse& use,
                     std::string_view name, int64_t exposed_ns) {
  const int64_t transfer = exposed_ns - use.exposed_latency_ns - use.exposed_kernels_ns;
  if (use.exposed_latency_ns >= std::max(transfer, use.exposed_kernels_ns)) {
    return fmt::format("the latency of {} ring steps in each of {} {}", use.ring_steps, use.count,
                       name);
  }
  if (use.exposed_kernels_ns > transfer) return "kernels that copy and cast beside them";
  const bool net = use.net_limits();
  return fmt::format("the bandwidth {} ({:.0f} GB/s)",
                     net ? "between hosts" : "between the ranks of a host",
                     (net ? rates.net : rates.host).bytes / kGiga);
}

// A row of the table of times.
struct TimeRow {
  std::string_view name;
  int64_t ns = 0;
  std::vector<std::string> notes{};  // empty notes are left out
};

std::string text_of(const TimeRow& row, int64_t total_ns) {
  std::vector<std::string> notes = row.notes;
  std::erase(notes, "");
  const double part = static_cast<double>(row.ns) / static_cast<double>(total_ns);
  std::string text = fmt::format("  {:<12} {:>12} {:>5.1f} %  {}", row.name, text_of(row.ns),
                                 100 * part, fmt::join(notes, ", "));
  text.erase(text.find_last_not_of(' ') + 1);
  return text + '\n';
}

std::vector<TimeRow> rows_of(const fsdp::Rates& rates, const fsdp::StepTime& time) {
  const std::string copy = origin_of(rates, "copy");
  std::vector<TimeRow> rows{
      {"compute", time.compute_ns()},
      {"  products", time.products_ns, {origin_of(rates, "products")}},
      {"  attention", time.attention_ns, {origin_of(rates, "attention")}},
      {"  other", time.operators_ns + time.kernels_ns, {copy}},
  };
  std::erase_if(rows, [](const TimeRow& row) { return row.ns == 0; });
  const auto add = [&](std::string_view name, int64_t exposed_ns, int64_t busy_ns,
                       const fsdp::CollectiveUse& use) {
    if (busy_ns == 0) return;
    const bool sends = use.host_ns + use.net_ns > 0;
    const std::string link = !sends ? "" : use.net_limits() ? "network binds" : "host link binds";
    rows.push_back({name,
                    exposed_ns,
                    {"exposed of " + text_of(busy_ns), link, origin_of(rates, link_of(use))}});
  };
  add("gathers", time.exposed_gather_ns, time.gather_ns, time.gathers);
  add("reductions", time.exposed_reduce_ns, time.reduce_ns, time.reductions);
  if (time.exposed_transfer_ns > 0) rows.push_back({"transfers", time.exposed_transfer_ns});
  if (time.optimizer_ns > 0) rows.push_back({"optimizer", time.optimizer_ns, {copy}});
  if (time.host_ns > 0) rows.push_back({"host", time.host_ns});
  return rows;
}

std::string cost_line(const PlanSettings& settings, const KnownModel& model,
                      const fsdp::StepTime& time) {
  const StepCost cost = cost_of(settings, model, settings.batch, time);
  std::vector<std::string> parts;
  if (cost.dollars) parts.push_back(fmt::format("${}", cost_text(*cost.dollars)));
  if (cost.kilowatt_hours) parts.push_back(fmt::format("{} kWh", cost_text(*cost.kilowatt_hours)));
  if (parts.empty()) return {};
  return fmt::format("a billion {}s cost {}\n", priced_unit(model), fmt::join(parts, " and "));
}

}  // namespace

std::string seconds_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

double tokens_per_second(const BatchShape& batch, const fsdp::StepTime& time) {
  return 1e9 * static_cast<double>(batch.sequences * batch.length) /
         static_cast<double>(time.total_ns);
}

double operations_per_token(const PlanSettings& settings, const KnownModel& model,
                            int64_t parameters, int recompute) {
  const double passes = recompute == 0 ? 3.0 : 3.0 + 1.0 / recompute;  // every recompute-th unit
  const double pairs = 2.0 * static_cast<double>(settings.batch.length * model.attended_width);
  return 2.0 * passes * (static_cast<double>(parameters) + pairs);
}

std::optional<double> flops_utilization(const PlanSettings& settings, const KnownModel& model,
                                        int64_t parameters, const fsdp::StepTime& time) {
  const auto dtype = settings.run.engine.mixed_precision.param_dtype.value_or(torch::kFloat32);
  const fsdp::TypeRates* const type = settings.rates->find(dtype);
  if (type == nullptr || type->peak == 0) return std::nullopt;
  return operations_per_token(settings, model, parameters, /*recompute=*/0) *
         tokens_per_second(settings.batch, time) / type->peak;
}

// predicted = measured · (1 + residual)
std::optional<TimeInterval> interval_of(const fsdp::Rates& rates, const fsdp::StepTime& time) {
  double p90 = 0;
  for (const fsdp::RatesResidual& each : rates.residuals) p90 = std::max(p90, each.p90);
  if (p90 == 0 || p90 >= 1) return std::nullopt;
  const auto total = static_cast<double>(time.total_ns);
  return TimeInterval{.least_ns = std::llround(total / (1 + p90)),
                      .most_ns = std::llround(total / (1 - p90))};
}

SlowestPart slowest_part(const fsdp::Rates& rates, const fsdp::StepTime& time) {
  const std::string copy =
      fmt::format("the bandwidth of device memory ({:.0f} GB/s)", rates.copy / kGiga);
  const SlowestPart parts[] = {
      {"products", time.products_ns, "the device's rate of matrix products"},
      {"attention", time.attention_ns, "the device's rate of attention"},
      {"other compute", time.operators_ns + time.kernels_ns, copy},
      {"optimizer", time.optimizer_ns, copy},
      {"gathers", time.exposed_gather_ns,
       cause_of(rates, time.gathers, "gathers", time.exposed_gather_ns)},
      {"reductions", time.exposed_reduce_ns,
       cause_of(rates, time.reductions, "reductions", time.exposed_reduce_ns)},
      {"transfers", time.exposed_transfer_ns,
       fmt::format("copies between device and host ({:.0f} GB/s)", rates.transfer / kGiga)},
      {"host", time.host_ns, "the time of the rank's thread for each operator"}};
  return *std::ranges::max_element(parts, {}, &SlowestPart::ns);
}

StepCost cost_of(const PlanSettings& settings, const KnownModel& model, const BatchShape& batch,
                 const fsdp::StepTime& time) {
  constexpr double kBillion = 1e9, kSecondsPerHour = 3600;
  const double samples = static_cast<double>(batch.sequences);
  const double units = model.counts_samples ? samples : samples * static_cast<double>(batch.length);
  // Each rank has a GPU and processes `units` per step.
  const double hours =
      static_cast<double>(time.total_ns) / 1e9 / kSecondsPerHour * kBillion / units;
  StepCost cost;
  if (settings.dollars_per_hour > 0) cost.dollars = settings.dollars_per_hour * hours;
  if (settings.watts > 0) cost.kilowatt_hours = settings.watts / 1e3 * hours;
  return cost;
}

std::string priced_unit(const KnownModel& model) {
  return model.counts_samples ? "sample" : "token";
}

std::string cost_text(double cost) {
  return cost >= 1000 ? fmt::format("{:.0f}", cost) : fmt::format("{:.3g}", cost);
}

std::string time_text(const PlanSettings& settings, const KnownModel& model,
                      const fsdp::StepPlan& plan) {
  if (!plan.time) return {};
  const fsdp::Rates& rates = *settings.rates;
  const fsdp::StepTime& time = *plan.time;
  std::string text = fmt::format("\na step {:>20}  {:.0f} tokens/s a rank", text_of(time.total_ns),
                                 tokens_per_second(settings.batch, time));
  if (const auto part = flops_utilization(settings, model, plan.parameters, time)) {
    text += fmt::format(", MFU {:.1f} %", 100 * *part);
  }
  text += '\n';
  if (const auto interval = interval_of(rates, time)) {
    text += fmt::format("  {} to {} by the errors of nine of ten tried steps\n",
                        text_of(interval->least_ns), text_of(interval->most_ns));
  }
  for (const TimeRow& row : rows_of(rates, time)) text += text_of(row, time.total_ns);
  const auto add = [&](const std::string& sentence) {
    for (const std::string& line : fsdp::wrapped(sentence, 80)) text += line + '\n';
  };
  const SlowestPart slowest = slowest_part(rates, time);
  add(fmt::format("slowest thing to change: {} ({}), by {}", slowest.part, text_of(slowest.ns),
                  slowest.cause));
  text += cost_line(settings, model, time);
  add("basis: " + time.basis);
  for (const fsdp::RatesResidual& each : rates.residuals) {
    add(fmt::format("errors of predicted steps: {}: {}, median {:.1f} %, worst {:.1f} %", each.rows,
                    each.count, 100 * each.median, 100 * each.worst));
  }
  return text;
}

}  // namespace planning
