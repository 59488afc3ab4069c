#include "planning/plan_table.h"

#include <fmt/format.h>
#include <fsdp/program_text.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "comm/mesh_parts.h"
#include "named_optimizer.h"
#include "plan/placement.h"
#include "planning/plan_report.h"

namespace planning {
namespace {

using fsdp::format_bytes;

// No plan tries more sequences per rank.
constexpr int64_t kMostSequences = int64_t{1} << 20;

bool knows_room(const Room& room) { return room.device > 0 || room.host > 0; }

TableRow row_of(const PlanSettings& settings, Planners& planners) {
  const PlanSearch search(settings, planners);
  TableRow row{
      .ranks = settings.ranks,
      .hosts = settings.hosts,
      .strategy = std::string(fsdp::name_of(settings.run.engine.strategy)),
      .sequences = settings.batch.sequences,
      .needed = search.needed(),
      .rest_bytes = search.plan().memory.rest.total() + search.plan().torch.rest,
      .sent_bytes = search.plan().traffic.total_bytes(),
      .checkpoint_bytes = search.plan().checkpoint ? search.plan().checkpoint->most_bytes : 0,
      .time = search.plan().time,
      .parameters = search.plan().parameters,
      .units = search.plan().units};
  row.fits = fits(row.needed, settings.room());
  if (row.time) {
    row.utilization = flops_utilization(settings, planners.model(), row.parameters, *row.time);
    row.cost = cost_of(settings, planners.model(), settings.batch, *row.time);
  }
  return row;
}

// Returns the part of the memory that the row needs. It fits up to 1.
double load_of(const TableRow& row, const Room& room) {
  const auto part = [](int64_t needed, int64_t of) {
    return of == 0 ? 0.0 : static_cast<double>(needed) / static_cast<double>(of);
  };
  return std::max(part(row.needed.device, room.device), part(row.needed.host, room.host));
}

// Returns the row of the largest batch that fits. The needs grow nearly linearly with the batch, so
// the search follows the line through the last two rows. Every third time it halves the interval,
// so that it always ends soon.
TableRow largest_row(PlanSettings settings, Planners& planners) {
  const Room room = settings.room();
  const auto with = [&](int64_t sequences) {
    settings.batch.sequences = sequences;
    return row_of(settings, planners);
  };
  TableRow best = with(1);
  if (!best.fits) {
    best.sequences = 0;
    return best;
  }
  int64_t too_many = kMostSequences + 1, next = 2;
  TableRow last = best;
  for (int tried = 1; best.sequences + 1 < too_many; ++tried) {
    TableRow row = with(next);
    const double slope = (load_of(row, room) - load_of(last, room)) /
                         static_cast<double>(row.sequences - last.sequences);
    const double left = (1 - load_of(row, room)) / slope;
    const int64_t at = row.sequences;
    const auto on_line =
        slope > 0 ? at + static_cast<int64_t>(std::floor(std::clamp(left, -1e9, 1e9))) : 2 * at;
    if (row.fits) {
      best = row;
    } else {
      too_many = row.sequences;
    }
    last = std::move(row);
    const int64_t middle = best.sequences + (too_many - best.sequences) / 2;
    next = std::clamp(tried % 3 == 0 ? std::min(middle, 4 * best.sequences) : on_line,
                      best.sequences + 1, std::max(best.sequences + 1, too_many - 1));
  }
  return best;
}

// A column of the table. Its cells are aligned to the right, except those of names.
struct Column {
  std::string name;
  std::vector<std::string> cells;
  bool is_name = false;
};

std::string text_of(const std::vector<Column>& columns, size_t rows) {
  std::vector<size_t> widths;
  for (const Column& column : columns) {
    size_t width = column.name.size();
    for (const std::string& cell : column.cells) width = std::max(width, cell.size());
    widths.push_back(width);
  }
  std::string text;
  for (size_t row = 0; row <= rows; ++row) {
    std::string line;
    for (size_t i = 0; i < columns.size(); ++i) {
      const Column& column = columns[i];
      const std::string& cell = row == 0 ? column.name : column.cells[row - 1];
      if (i > 0) line += "  ";
      line += column.is_name ? fmt::format("{:<{}}", cell, widths[i])
                             : fmt::format("{:>{}}", cell, widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

template <class Cell>
Column column_of(std::string name, const std::vector<TableRow>& rows, const Cell& cell,
                 bool is_name = false) {
  Column column{.name = std::move(name), .cells = {}, .is_name = is_name};
  for (const TableRow& row : rows) column.cells.push_back(cell(row));
  return column;
}

// Returns the tokens per second of a rank. 0 if the row has no batch that fits.
double rate_of(const PlanSettings& settings, const TableRow& row) {
  return tokens_per_second({.sequences = row.sequences, .length = settings.batch.length},
                           *row.time);
}

int64_t exposed_ns(const fsdp::StepTime& time) {
  return time.exposed_gather_ns + time.exposed_reduce_ns;
}

// Adds the time of a step, the time in which compute waits for collectives, tokens per second, and
// the cost.
void add_times(std::vector<Column>& columns, const PlanSettings& settings, const KnownModel& model,
               const std::vector<TableRow>& rows) {
  columns.push_back(column_of("step", rows, [](const TableRow& row) {
    return seconds_text(static_cast<double>(row.time->total_ns) / 1e9);
  }));
  columns.push_back(column_of("exposed", rows, [](const TableRow& row) {
    return seconds_text(static_cast<double>(exposed_ns(*row.time)) / 1e9);
  }));
  columns.push_back(column_of("tokens/s", rows, [&](const TableRow& row) {
    return fmt::format("{:.0f}", rate_of(settings, row));
  }));
  columns.push_back(column_of("MFU", rows, [](const TableRow& row) {
    return row.utilization ? fmt::format("{:.1f} %", 100 * *row.utilization) : "-";
  }));
  const auto add_cost = [&](const char* unit, std::optional<double> StepCost::*part) {
    if (!(rows.front().cost.*part)) return;
    columns.push_back(column_of(fmt::format("{}/10^9 {}s", unit, priced_unit(model)), rows,
                                [&](const TableRow& row) {
                                  return row.sequences == 0 ? "-" : cost_text(*(row.cost.*part));
                                }));
  };
  add_cost("$", &StepCost::dollars);
  add_cost("kWh", &StepCost::kilowatt_hours);
}

// Returns, for each strategy, the part of the tokens per second of a rank that is kept when ranks
// are added: "from 128 to 512 ranks it keeps 0.92, to 4096 0.53". Empty if all rows have the same
// number of ranks.
std::string retention_text(const PlanSettings& settings, const std::vector<TableRow>& rows) {
  std::string text;
  for (const fsdp::StrategyRow& each : fsdp::strategies()) {
    std::vector<const TableRow*> of;
    for (const TableRow& row : rows) {
      if (row.strategy == each.name && row.sequences > 0) of.push_back(&row);
    }
    std::ranges::stable_sort(of, {}, &TableRow::ranks);
    std::string kept;
    for (const TableRow* row : of) {
      if (row->ranks == of.front()->ranks) continue;
      const double part = rate_of(settings, *row) / rate_of(settings, *of.front());
      kept += kept.empty() ? fmt::format("to {} ranks it keeps {:.2f}", row->ranks, part)
                           : fmt::format(", to {} {:.2f}", row->ranks, part);
    }
    if (kept.empty()) continue;
    const std::string sentence =
        fmt::format("{}: from {} {} of the tokens/s a rank", each.name, of.front()->ranks, kept);
    for (const std::string& line : fsdp::wrapped(sentence, 80)) text += line + '\n';
  }
  return text;
}

std::string command_of(const PlanSettings& settings, const TableRow& row) {
  std::vector<std::string> words{"fsdp-plan"};
  words.insert(words.end(), settings.common_words.begin(), settings.common_words.end());
  words.insert(words.end(), {"--ranks", std::to_string(row.ranks)});
  if (row.hosts > 1) words.insert(words.end(), {"--hosts", std::to_string(row.hosts)});
  words.insert(words.end(), {"--strategy", row.strategy, "--batch", std::to_string(row.sequences)});
  return fsdp::shell_command(words);
}

}  // namespace

std::vector<TableRow> plan_rows(const PlanSettings& settings, Planners& planners) {
  std::vector<TableRow> rows;
  for (size_t i = 0; i < settings.ranks_of.size(); ++i) {
    PlanSettings run = settings;
    run.ranks = settings.ranks_of[i];
    run.hosts = settings.hosts_with(i);
    use_threads_of(run);
    if (!settings.all_strategies) choose_strategy(run, planners);
    const fsdp::Strategy chosen = run.run.engine.strategy;
    const bool has_groups =
        fsdp::shape_of(run.run.mesh, run.ranks, run.ranks_per_host()).has_two_axes();
    for (const fsdp::StrategyRow& each : fsdp::strategies()) {
      if (settings.all_strategies && each.is_by_groups() && !has_groups) continue;
      if (!settings.all_strategies && each.strategy != chosen) continue;
      run.run.engine.strategy = each.strategy;
      rows.push_back(settings.largest_batch ? largest_row(run, planners) : row_of(run, planners));
    }
  }
  return rows;
}

int recommended(const PlanSettings& settings, const std::vector<TableRow>& rows) {
  int best = -1;
  const auto cost = [&](int i) {
    const TableRow& row = rows[static_cast<size_t>(i)];
    return std::tuple(row.ranks,
                      static_cast<double>(row.sent_bytes) / static_cast<double>(row.sequences));
  };
  if (!knows_room(settings.room())) return best;
  for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
    if (rows[static_cast<size_t>(i)].fits && (best < 0 || cost(i) < cost(best))) best = i;
  }
  return best;
}

std::string table_text(const PlanSettings& settings, const KnownModel& model,
                       const std::vector<TableRow>& rows) {
  const auto bytes = [](int64_t TableRow::*field) {
    return [field](const TableRow& row) { return format_bytes(row.*field); };
  };
  std::vector<Column> columns{
      column_of("ranks", rows, [](const TableRow& row) { return std::to_string(row.ranks); })};
  if (settings.most_hosts() > 1) {
    columns.push_back(
        column_of("hosts", rows, [](const TableRow& row) { return std::to_string(row.hosts); }));
  }
  columns.push_back(column_of(
      "strategy", rows, [](const TableRow& row) { return row.strategy; }, true));
  columns.push_back(column_of("batch", rows, [](const TableRow& row) {
    return row.sequences == 0 ? "-" : std::to_string(row.sequences);
  }));
  columns.push_back(column_of("at rest", rows, bytes(&TableRow::rest_bytes)));
  columns.push_back(column_of("of a device", rows,
                              [](const TableRow& row) { return format_bytes(row.needed.device); }));
  const Room room = settings.room();
  if (room.host > 0) {
    columns.push_back(column_of("of a host", rows,
                                [](const TableRow& row) { return format_bytes(row.needed.host); }));
  }
  columns.push_back(column_of("sent", rows, bytes(&TableRow::sent_bytes)));
  if (settings.rates) add_times(columns, settings, model, rows);
  if (settings.save)
    columns.push_back(column_of("checkpoint", rows, bytes(&TableRow::checkpoint_bytes)));
  if (knows_room(room)) {
    columns.push_back(column_of(
        "", rows, [](const TableRow& row) { return row.fits ? "fits" : ""; }, true));
  }
  std::string text =
      fmt::format("{}, {} tokens a sequence\n{} on {}; {}\n\n",
                  title_of(model, rows.front().parameters, rows.front().units),
                  settings.batch.length, type_name(settings.run.engine.mixed_precision),
                  settings.on_gpus() ? "GPUs" : "CPUs", optimizer_named(settings.optim).title);
  text += text_of(columns, rows.size());
  if (room.device > 0) {
    text += fmt::format("\na device has {}", format_bytes(room.device));
    text += settings.memory_bytes > 0 && settings.reserve() > 0
                ? fmt::format(", without a reserve of {} (--reserve)\n",
                              format_bytes(settings.reserve()))
                : "\n";
  }
  if (settings.rates) {
    text += retention_text(settings, rows);
    const std::string basis = "times: " + rows.front().time->basis;
    for (const std::string& line : fsdp::wrapped(basis, 80)) text += line + '\n';
  }
  if (const int best = recommended(settings, rows); best >= 0) {
    text += "recommended: " + command_of(settings, rows[static_cast<size_t>(best)]) + '\n';
  }
  return text;
}

std::string table_json(const PlanSettings& settings, const KnownModel& model,
                       const std::vector<TableRow>& rows) {
  std::string text;
  for (const TableRow& row : rows) {
    nlohmann::ordered_json json{{"model", settings.model},
                                {"ranks", row.ranks},
                                {"hosts", row.hosts},
                                {"strategy", row.strategy},
                                {"batch", row.sequences},
                                {"seq_len", settings.batch.length},
                                {"rest_bytes", row.rest_bytes},
                                {"device_bytes", row.needed.device},
                                {"host_bytes", row.needed.host},
                                {"sent_bytes", row.sent_bytes}};
    if (row.time) {
      json["step_ns"] = row.time->total_ns;
      json["exposed_ns"] = exposed_ns(*row.time);
      json["tokens_per_second"] = rate_of(settings, row);
      json["optimizer_ns"] = row.time->optimizer_ns;
      json["products_ns"] = row.time->products_ns;
      json["attention_ns"] = row.time->attention_ns;
      json["gather_ns"] = row.time->gather_ns;
      json["reduce_ns"] = row.time->reduce_ns;
      if (row.utilization) json["mfu"] = *row.utilization;
      if (const auto interval = interval_of(*settings.rates, *row.time)) {
        json["step_least_ns"] = interval->least_ns;
        json["step_most_ns"] = interval->most_ns;
      }
      const SlowestPart slowest = slowest_part(*settings.rates, *row.time);
      json["slowest"] = slowest.part;
      json["slowest_ns"] = slowest.ns;
      json["slowest_cause"] = slowest.cause;
      const std::string of = "_per_billion_" + priced_unit(model) + "s";
      if (row.cost.dollars) json["dollars" + of] = *row.cost.dollars;
      if (row.cost.kilowatt_hours) json["kwh" + of] = *row.cost.kilowatt_hours;
    }
    if (settings.save) json["checkpoint_bytes"] = row.checkpoint_bytes;
    if (knows_room(settings.room())) json["fits"] = row.fits;
    text += json.dump() + '\n';
  }
  return text;
}

}  // namespace planning
