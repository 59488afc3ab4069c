#include "io/manifest_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>

#include "fsdp/program_text.h"
#include "io/plain_file.h"
#include "io/safetensors_header.h"

namespace fsdp {
namespace {

bool is_time(std::string_view time) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00Z";
  return std::ranges::equal(time, kForm, [](char c, char form) {
    return form == '0' ? c >= '0' && c <= '9' : c == form;
  });
}

// Returns true if the strides number the elements from 0 to numel - 1 without a gap. The stride of
// a dimension of size 1 has no effect.
bool is_dense(const ManifestTensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.strides[i] < 0) return false;
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] > 1) dimensions.emplace_back(tensor.strides[i], tensor.shape[i]);
  }
  std::ranges::sort(dimensions);
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride != expected) return false;
    expected *= size;  // at most numel, which was checked
  }
  return true;
}

std::string fault_of(const ManifestTensor& tensor) {
  const auto fault = [&](const std::string& what) {
    return fmt::format("tensor {}: {}", quoted_name(tensor.name), what);
  };
  if (tensor.name == kMetadataKey) return fault("a tensor cannot have this name");
  if (std::ssize(tensor.shape) > kMaxDimensions) {
    return fault(fmt::format("it has more than {} dimensions", kMaxDimensions));
  }
  if (bits_of(tensor.dtype) % 8 != 0) {
    return fault(fmt::format("an element of {} is not a whole byte", name_of(tensor.dtype)));
  }
  if (!count_elements(tensor.dtype, tensor.shape)) {
    return fault(fmt::format("{} of shape {} has no size in bytes", name_of(tensor.dtype),
                             format_shape(tensor.shape)));
  }
  if (tensor.strides.size() != tensor.shape.size()) {
    return fault(fmt::format("it has {} strides for {} dimensions", tensor.strides.size(),
                             tensor.shape.size()));
  }
  if (!is_dense(tensor)) {
    return fault(fmt::format("strides {} are not dense for shape {}", format_shape(tensor.strides),
                             format_shape(tensor.shape)));
  }
  if (tensor.granule < 1) return fault(fmt::format("its granule is {}", tensor.granule));
  return {};
}

// Returns a name that occurs twice among the names and other names of all tensors, or null.
const std::string* name_given_twice(const std::vector<ManifestTensor>& tensors) {
  std::vector<const std::string*> names;
  size_t count = tensors.size();
  for (const ManifestTensor& tensor : tensors) count += tensor.other_names.size();
  names.reserve(count);
  for (const ManifestTensor& tensor : tensors) {
    names.push_back(&tensor.name);
    for (const std::string& name : tensor.other_names) names.push_back(&name);
  }
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  std::ranges::sort(names, less);
  const auto equal = [](const std::string* a, const std::string* b) { return *a == *b; };
  const auto at = std::ranges::adjacent_find(names, equal);
  return at == names.end() ? nullptr : *at;
}

std::string fault_of_tensors(const std::vector<ManifestTensor>& tensors) {
  if (std::ssize(tensors) > kMaxManifestTensors) {
    return fmt::format("more than {} tensors", kMaxManifestTensors);
  }
  int64_t dimensions = 0;
  for (const ManifestTensor& tensor : tensors) {
    if (std::string fault = fault_of(tensor); !fault.empty()) return fault;
    dimensions += std::ssize(tensor.shape);
  }
  if (dimensions > kMaxManifestDimensions) {
    return fmt::format("more than {} dimensions in all tensors", kMaxManifestDimensions);
  }
  if (const std::string* name = name_given_twice(tensors)) {
    return fmt::format("the tensor name {} occurs twice", quoted_name(*name));
  }
  return {};
}

std::string fault_of_objects(const std::vector<ManifestObject>& objects) {
  std::vector<std::string_view> names;
  for (const ManifestObject& object : objects) {
    if (object.name.empty()) return "an object has no name";
    names.push_back(object.name);
  }
  std::ranges::sort(names);
  const auto at = std::ranges::adjacent_find(names);
  if (at == names.end()) return {};
  return fmt::format("the object {} occurs twice", quoted_name(*at));
}

std::string fault_of_files(const std::vector<ManifestFile>& files) {
  std::vector<std::string_view> names;
  for (const ManifestFile& file : files) {
    if (!is_plain_name(file.name) || file.name.starts_with('.')) {
      return fmt::format("{} is not a plain file name", quoted_name(file.name));
    }
    // The name of a `.sum` file is the name of its shard with another ending. Because all shards
    // have the same ending, no two shards have the same `.sum` file.
    if (!file.name.ends_with(".safetensors")) {
      return fmt::format("file {} does not end with .safetensors", quoted_name(file.name));
    }
    if (file.bytes < 0) {
      return fmt::format("file {} has {} bytes", quoted_name(file.name), file.bytes);
    }
    names.push_back(file.name);
  }
  std::ranges::sort(names);
  if (const auto at = std::ranges::adjacent_find(names); at != names.end()) {
    return fmt::format("file {} occurs twice", quoted_name(*at));
  }
  if (files.empty() || files.back().name != kIntervalsName) {
    return fmt::format("the last file is not {}", kIntervalsName);
  }
  return {};
}

int64_t count_entries(const CheckpointManifest& manifest) {
  int64_t count =
      std::ssize(manifest.conditions) + std::ssize(manifest.objects) + std::ssize(manifest.files);
  for (const ManifestObject& object : manifest.objects) count += std::ssize(object.values);
  for (const ManifestTensor& tensor : manifest.tensors) count += std::ssize(tensor.other_names);
  return count;
}

// Returns the fault of the interval that follows the first `covered` elements of its tensor.
std::string fault_of(const ManifestInterval& interval, const ManifestTensor& tensor,
                     int64_t covered, int64_t shards) {
  const int64_t total = tensor.numel();
  const std::string name = quoted_name(tensor.name);
  if (interval.file < 0 || interval.file >= shards) {
    return fmt::format("{} has elements in file {}, but there are {} shards", name, interval.file,
                       shards);
  }
  if (interval.numel < 1)
    return fmt::format("{} has an interval of {} elements", name, interval.numel);
  if (interval.begin < 0 || interval.numel > total || interval.begin > total - interval.numel) {
    return fmt::format("{} has {} elements from {}, but only {} in all", name, interval.numel,
                       interval.begin, total);
  }
  const int64_t end = interval.begin + interval.numel;
  if (interval.begin < covered) {
    return fmt::format("{} has elements [{}, {}) twice", name, interval.begin,
                       std::min(covered, end));
  }
  if (interval.begin > covered) {
    return fmt::format("{} lacks elements [{}, {})", name, covered, interval.begin);
  }
  if (interval.begin % tensor.granule != 0 || (end % tensor.granule != 0 && end != total)) {
    return fmt::format("{} has elements [{}, {}), which cut a granule of {}", name, interval.begin,
                       end, tensor.granule);
  }
  return {};
}

}  // namespace

std::string fault_of(const CheckpointManifest& manifest) {
  if (!hash_from_text(manifest.run)) {
    return fmt::format("the run {} is not 32 hexadecimal digits", quoted_name(manifest.run));
  }
  if (manifest.sequence < 1) return fmt::format("the sequence is {}", manifest.sequence);
  if (manifest.step < 0) return fmt::format("the step is {}", manifest.step);
  if (manifest.resumed_from < -1 || manifest.resumed_from > manifest.step) {
    return fmt::format("step {} was resumed from step {}", manifest.step, manifest.resumed_from);
  }
  if (!is_time(manifest.time)) {
    return fmt::format("the time {} is not as 2026-01-31T23:59:59Z", quoted_name(manifest.time));
  }
  if (manifest.world_size < 1) return fmt::format("the world size is {}", manifest.world_size);
  if (count_entries(manifest) > kMaxManifestEntries) {
    return fmt::format("more than {} values, conditions, files and other names",
                       kMaxManifestEntries);
  }
  std::string fault = fault_of_objects(manifest.objects);
  if (fault.empty()) fault = fault_of_tensors(manifest.tensors);
  if (fault.empty()) fault = fault_of_files(manifest.files);
  return fault;
}

std::string fault_of_intervals(const CheckpointManifest& manifest,
                               std::span<const ManifestInterval> intervals) {
  const auto place = [](const ManifestInterval& each) {
    return std::pair(each.tensor, each.begin);
  };
  const auto count = std::ssize(manifest.tensors);
  for (size_t i = 0; i < intervals.size(); ++i) {
    if (intervals[i].tensor < 0 || intervals[i].tensor >= count) {
      return fmt::format("interval {} is of tensor {}, but there are {} tensors", i,
                         intervals[i].tensor, count);
    }
    if (i > 0 && place(intervals[i]) < place(intervals[i - 1])) {
      return fmt::format("interval {} is not in the order of tensors and elements", i);
    }
  }
  // The last file is intervals.safetensors. All others are shards.
  const int64_t shards = std::ssize(manifest.files) - 1;
  auto at = intervals.begin();
  for (int64_t i = 0; i < count; ++i) {
    const ManifestTensor& tensor = manifest.tensors[static_cast<size_t>(i)];
    int64_t covered = 0;
    for (; at != intervals.end() && at->tensor == i; ++at) {
      if (std::string fault = fault_of(*at, tensor, covered, shards); !fault.empty()) return fault;
      covered = at->begin + at->numel;
    }
    if (covered != tensor.numel()) {
      return fmt::format("{} lacks elements [{}, {})", quoted_name(tensor.name), covered,
                         tensor.numel());
    }
  }
  return {};
}

}  // namespace fsdp
