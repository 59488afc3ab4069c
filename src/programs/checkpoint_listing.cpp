#include "programs/checkpoint_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "fsdp/error.h"
#include "fsdp/program_text.h"
#include "io/safetensors_header.h"
#include "programs/checkpoint_check.h"
#include "programs/tensor_listing.h"

namespace fsdp {
namespace {

using Row = std::array<std::string, 7>;
constexpr Row kTitles{"step", "sequence", "time", "ranks", "strategy", "size", "state"};
constexpr std::array kIsNumber{true, true, false, true, false, true, false};

std::string state_of(const Error& error) {
  const ErrorText& text = error.text();
  if (error.code() == ExitCode::kCorruptData) return "damaged: " + printable(text.what);
  return printable(text.cause.empty() ? text.what : text.what + "; " + text.cause);
}

std::string state_of(const FoundCheckpoint& checkpoint) {
  try {
    check_files(checkpoint.folder, checkpoint.files);
  } catch (const Error& error) {
    return state_of(error);
  }
  return checkpoint.finite ? "whole" : "not finite";
}

Row row_of(const FoundCheckpoint& checkpoint) {
  return {fmt::format("{}", checkpoint.step),
          fmt::format("{}", checkpoint.sequence),
          checkpoint.time,
          fmt::format("{}", checkpoint.world_size),
          checkpoint.strategy.empty() ? "-" : printable(checkpoint.strategy),
          format_bytes(bytes_in(checkpoint.folder)),
          state_of(checkpoint)};
}

// Returns the row of a damaged checkpoint. The step is read from the folder's name, because the
// manifest cannot be read.
Row row_of(const std::pair<std::filesystem::path, Error>& damaged) {
  std::string step = damaged.first.filename().string().substr(std::string_view("step-").size());
  step.erase(0, std::min(step.find_first_not_of('0'), step.size() - 1));
  return {std::move(step),         "-", "-", "-", "-", format_bytes(bytes_in(damaged.first)),
          state_of(damaged.second)};
}

// The checkpoints of a run, newest first.
struct Group {
  std::string title;
  std::vector<Row> rows;
};

std::vector<Group> groups_of(const FoundCheckpoints& found) {
  std::map<std::string, std::vector<const FoundCheckpoint*>> runs;
  for (const auto* list : {&found.of_run, &found.of_other_runs}) {
    for (const FoundCheckpoint& each : *list) runs[each.run].push_back(&each);
  }
  std::vector<std::tuple<std::string, int64_t, std::string>> order;  // time, sequence, run
  for (auto& [run, checkpoints] : runs) {
    std::ranges::sort(checkpoints, std::ranges::greater(), &FoundCheckpoint::sequence);
    std::pair<std::string, int64_t> newest;
    for (const FoundCheckpoint* each : checkpoints) {
      newest = std::max(newest, std::pair(each->time, each->sequence));
    }
    order.emplace_back(newest.first, newest.second, run);
  }
  std::ranges::sort(order, std::ranges::greater());
  std::vector<Group> groups;
  for (const auto& [time, sequence, run] : order) {
    groups.push_back({.title = "run " + run});
    for (const FoundCheckpoint* each : runs[run]) groups.back().rows.push_back(row_of(*each));
  }
  if (found.damaged.empty()) return groups;
  if (order.size() != 1) groups.push_back({.title = "unknown run"});
  auto damaged = found.damaged;
  std::ranges::sort(damaged, std::ranges::greater(), [](const auto& each) { return each.first; });
  for (const auto& each : damaged) groups.back().rows.push_back(row_of(each));
  return groups;
}

std::vector<StoredTensor> tensors_of(const CheckpointManifest& manifest) {
  std::vector<StoredTensor> tensors;
  for (const ManifestTensor& tensor : manifest.tensors) {
    // The counts exist, because the reader of the manifest has checked that sizes do not overflow.
    const auto count = count_elements(tensor.dtype, tensor.shape);
    tensors.push_back({{.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape},
                       count->numel,
                       count->nbytes});
  }
  return tensors;
}

// Returns a line for each file. With `summary`, returns one line for all files.
std::string format_files(const CheckpointManifest& manifest, bool summary) {
  std::vector<int64_t> tensors(manifest.files.size());
  for (const ManifestInterval& each : manifest.intervals) ++tensors[static_cast<size_t>(each.file)];
  std::string text;
  int64_t bytes = 0;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const ManifestFile& file = manifest.files[i];
    bytes += file.bytes;
    text += fmt::format("file {}: {} bytes", printable(file.name), file.bytes);
    if (i + 1 < manifest.files.size()) {
      text += fmt::format(", parts of {} tensor{}", tensors[i], tensors[i] == 1 ? "" : "s");
    }
    text += '\n';
  }
  if (!summary) return text;
  return fmt::format("{} files, {}\n", manifest.files.size(), format_bytes(bytes));
}

std::string format_objects(const CheckpointManifest& manifest) {
  std::string text;
  for (const ManifestObject& object : manifest.objects) {
    text += fmt::format("object {}: {}\n", printable(object.name), printable(object.kind));
    for (const auto& [name, value] : object.values) {
      text += fmt::format("  {} = {}\n", printable(name), text_of(value));
    }
  }
  return text;
}

}  // namespace

std::string format_checkpoints(const FoundCheckpoints& found) {
  const std::vector<Group> groups = groups_of(found);
  std::array<size_t, kTitles.size()> widths{};
  const auto widen = [&](const Row& row) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  };
  widen(kTitles);
  for (const Group& group : groups) std::ranges::for_each(group.rows, widen);
  widths.back() = 0;  // the end of a line is not padded
  std::string text;
  const auto append = [&](const Row& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += fmt::format(fmt::runtime(kIsNumber[i] ? "{}{:>{}}" : "{}{:<{}}"), i == 0 ? "" : "  ",
                          row[i], widths[i]);
    }
    text += '\n';
  };
  append(kTitles);
  for (const Group& group : groups) {
    if (groups.size() > 1) text += group.title + "\n";
    std::ranges::for_each(group.rows, append);
  }
  return text;
}

std::string format_manifest(const CheckpointManifest& manifest, bool summary) {
  std::string text = fmt::format(
      "step {}, checkpoint {} of run {}\nsaved {} by {} rank{}{}\n", manifest.step,
      manifest.sequence, manifest.run, manifest.time, manifest.world_size,
      manifest.world_size == 1 ? "" : "s",
      manifest.resumed_from < 0 ? ""
                                : fmt::format(", resumed from step {}", manifest.resumed_from));
  if (!manifest.finite) text += "note: a value is not finite\n";
  for (const auto& [name, value] : manifest.conditions) {
    text += fmt::format("condition {} = {}\n", printable(name), quoted_name(value));
  }
  text += format_objects(manifest) + format_files(manifest, summary);
  for (const ManifestTensor& tensor : manifest.tensors) {
    for (const std::string& name : tensor.other_names) {
      text += fmt::format("tensor {} is {}\n", quoted_name(name), quoted_name(tensor.name));
    }
  }
  const std::vector<StoredTensor> tensors = tensors_of(manifest);
  if (summary) return text + format_totals(totals_of(tensors)) + "\n" + format_groups(tensors);
  const std::string dtypes = format_dtype_counts(tensors);
  return text + format_tensors(tensors) + format_totals(totals_of(tensors)) +
         (dtypes.empty() ? "\n" : fmt::format(": {}\n", dtypes));
}

std::string text_of(const ManifestValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  return quoted_name(std::get<std::string>(value));
}

}  // namespace fsdp
