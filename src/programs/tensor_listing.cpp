#include "programs/tensor_listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "fsdp/program_text.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

// The largest widths of the columns for names and shapes, in characters. A longer name widens only
// its own line and not the whole table.
constexpr int64_t kMaxNameColumns = 80;
constexpr int64_t kMaxShapeColumns = 40;

// Counts characters: all bytes except UTF-8 continuation bytes. This is a good estimate of the
// columns.
int64_t columns_of(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

std::string padded(std::string text, int64_t columns) {
  text.append(static_cast<size_t>(std::max<int64_t>(0, columns - columns_of(text))), ' ');
  return text;
}

std::string with_commas(int64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

}  // namespace

std::string format_tensors(std::span<const StoredTensor> tensors) {
  using Row = std::array<std::string, 4>;
  std::vector<Row> rows = {{"name", "dtype", "shape", "bytes"}};
  for (const StoredTensor& tensor : tensors) {
    rows.push_back({printable(tensor.name), std::string(name_of(tensor.dtype)),
                    format_shape(tensor.shape), with_commas(tensor.nbytes)});
  }
  std::array<int64_t, 4> columns{};
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) columns[i] = std::max(columns[i], columns_of(row[i]));
  }
  columns[0] = std::min(columns[0], kMaxNameColumns);
  columns[2] = std::min(columns[2], kMaxShapeColumns);
  std::string table;
  for (const auto& [name, dtype, shape, bytes] : rows) {
    table += fmt::format("{}  {}  {}  {:>{}}\n", padded(name, columns[0]),
                         padded(dtype, columns[1]), padded(shape, columns[2]), bytes, columns[3]);
  }
  return table;
}

TensorTotals totals_of(std::span<const StoredTensor> tensors) {
  TensorTotals totals{.tensors = std::ssize(tensors)};
  for (const StoredTensor& tensor : tensors) {
    totals.nbytes += tensor.nbytes;
    totals.numel += tensor.numel;
  }
  return totals;
}

std::string format_totals(const TensorTotals& totals) {
  const auto counted = [](int64_t count, const char* noun) {
    return fmt::format("{} {}{}", with_commas(count), noun, count == 1 ? "" : "s");
  };
  std::string text = fmt::format("{}, {}, {}", counted(totals.tensors, "tensor"),
                                 counted(totals.numel, "element"), counted(totals.nbytes, "byte"));
  if (totals.nbytes >= 1024) text += fmt::format(" ({})", format_bytes(totals.nbytes));
  return text;
}

namespace {

constexpr size_t kMaxGroups = 16;

// Returns the leading parts, up to a dot, that all names have in common: "module.",
// "bert.encoder.".
std::string shared_beginning(std::span<const StoredTensor> tensors) {
  std::string shared = tensors.size() > 1 ? tensors[0].name : "";
  for (const StoredTensor& tensor : tensors) {
    const auto differs = std::ranges::mismatch(shared, tensor.name);
    shared.erase(differs.in1, shared.end());
  }
  shared.resize(shared.rfind('.') + 1);  // npos + 1 is 0
  return shared;
}

// Returns the totals of the groups of tensors with equal keys, the most bytes first.
template <class Key>
std::string format_by(std::string_view title, std::span<const StoredTensor> tensors,
                      const Key& key) {
  std::map<std::string, std::vector<StoredTensor>, std::less<>> groups;
  for (const StoredTensor& tensor : tensors) groups[key(tensor)].push_back(tensor);
  std::vector<std::pair<std::string, TensorTotals>> rows;
  for (const auto& [name, group] : groups) rows.emplace_back(printable(name), totals_of(group));
  std::ranges::stable_sort(rows, std::ranges::greater(),
                           [](const auto& row) { return row.second.nbytes; });
  int64_t columns = 0;
  for (const auto& [name, totals] : rows) columns = std::max(columns, columns_of(name));
  columns = std::min(columns, kMaxNameColumns);
  std::string text;
  for (size_t i = 0; i < std::min(rows.size(), kMaxGroups); ++i) {
    text += fmt::format("{:<8}  {}  {}\n", i == 0 ? title : "", padded(rows[i].first, columns),
                        format_totals(rows[i].second));
  }
  if (rows.size() > kMaxGroups) {
    text += fmt::format("{:<8}  and {} more\n", "", rows.size() - kMaxGroups);
  }
  return text;
}

}  // namespace

std::string format_groups(std::span<const StoredTensor> tensors) {
  const std::string shared = shared_beginning(tensors);
  std::string text = format_by("by type", tensors, [](const StoredTensor& tensor) {
    return std::string(name_of(tensor.dtype));
  });
  if (!shared.empty()) {
    text += fmt::format("all names begin with {}\n", quoted_name(shared));
  }
  return text + format_by("by name", tensors, [&](const StoredTensor& tensor) {
           const size_t dot = tensor.name.find('.', shared.size());
           return tensor.name.substr(0, dot == std::string::npos ? dot : dot + 1);
         });
}

std::string format_dtype_counts(std::span<const StoredTensor> tensors) {
  std::map<StoredDType, int64_t> counts;
  for (const StoredTensor& tensor : tensors) ++counts[tensor.dtype];
  std::string text;
  for (auto at = counts.rbegin(); at != counts.rend(); ++at) {  // the widest types first
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(at->first), at->second);
  }
  return text;
}

}  // namespace fsdp
